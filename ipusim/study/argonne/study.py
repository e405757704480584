"""The Argonne slides: every ratio beside what is predicted, and the tables of the notebook.

What stands behind a ratio is in ``data/runs/claims_argonne.toml``; `ipusim.study.claims` recomputes
it. Where the slides do not name the GPU, every candidate has a line of its own; of BraggNN's
reference time arithmetic on the slides alone says which GPU it can have been.
"""

from collections.abc import Mapping

import pandas as pd

from ipusim.api import simulate
from ipusim.study.argonne import dataflow
from ipusim.study.argonne.dataflow import GpuRun
from ipusim.study.breakdown import phase_shares
from ipusim.study.claims import Side, Sides, allowed, around, claims_frame, load_specs
from ipusim.study.data.published import load_claims
from ipusim.study.verdicts.compare_gpu import conformal_ratios, gpu_compare

STUDY = "argonne"
REFERENCE, GOAL, OUT_OF_THE_BOX, AGAINST_A100, AGAINST_V100 = (
    f"AR{number}" for number in (41, 42, 44, 45, 46)
)
SLIDES_CHIP = "GC200"
"""The chip of the slides, which say Mk2."""


def board_factors(run: GpuRun) -> tuple[float, float]:
    """Return a board's `conformal_ratios` by training rows of its stack, as factors on seconds."""
    low, high = conformal_ratios(gpu_compare(), stack=run.report.stack, mode="training")
    return 1 / high, 1 / low


def _board(name: str) -> Side:
    """Return the time of BraggNN's training on a GPU of the slides."""
    run = dataflow.simulate_board(name)
    return around(run.training_s, board_factors(run), is_time=True, name=f"{name}, GPU")


def _flow(name: str) -> Side:
    """Return the time of BraggNN's training on one GC200; the slides say Mk2."""
    report = dataflow.simulate_flow(dataflow.load_dataflow(name))
    return around(dataflow.training_seconds(report), is_time=True, fits=report.fits)


def compare_claims() -> pd.DataFrame:
    """Recompute every ratio and time of the slides; of BraggNN the interval is the GPU's alone."""
    frame = claims_frame(STUDY, Sides(STUDY, own={"board": _board, "flow": _flow}))
    words = []
    for count, side in zip(frame["gpus"], frame["gpu_side"], strict=True):
        board, _, origin = side.rpartition(", ")
        origin = "modelled" if origin == "modelled" else "published"
        words.append(f"{count:.0f} x {board}, {origin}" if side else "")
    return frame.assign(unit=frame["claim_id"].map(load_claims(STUDY)["unit"]), gpu=words)


def _said(claim: str) -> tuple[float, float]:
    """Return what the slides say of BraggNN, as the two ends of the text."""
    return allowed(load_claims(STUDY)["value"][claim], "")


def reference_frame() -> pd.DataFrame:
    """Work out the versions' times by the slides' ratios for each GPU that the 800 s may be of."""
    ratios = {"V100": _said(AGAINST_V100)[0], "A100": _said(AGAINST_A100)[0]}
    low, high = _said(OUT_OF_THE_BOX)
    frame = pd.DataFrame({"candidate": list(ratios)})
    frame["final_s"] = [_said(REFERENCE)[0] / ratio for ratio in ratios.values()]
    for board, ratio in ratios.items():
        frame[f"{board.lower()}_s"] = frame["final_s"] * ratio
    frame["first_fast_s"], frame["first_slow_s"] = frame["v100_s"] / high, frame["v100_s"] / low
    return frame.assign(meets_goal=frame["final_s"] < _said(GOAL)[0])


def implied_seconds() -> dict[str, tuple[float, float]]:
    """Return the times that follow if the 800 s are those of a V100, as two ends each."""
    line = reference_frame().set_index("candidate").loc["V100"]
    names = {
        "V100": ("v100_s", "v100_s"),
        "A100": ("a100_s", "a100_s"),
        "stock": ("first_fast_s", "first_slow_s"),
        "on_chip": ("final_s", "final_s"),
    }
    return {name: (float(line[low]), float(line[high])) for name, (low, high) in names.items()}


def time_to_train(frame: pd.DataFrame, boards: Mapping[str, GpuRun]) -> dict[str, pd.DataFrame]:
    """Return the seconds to train on GPUs and in dataflows, with what follows from the slides."""
    on_gpus = [
        (f"{name}, stock loader", run.training_s, "GPU", name) for name, run in boards.items()
    ]
    chips = zip(frame["chip"], frame["title"], frame["training_s"], frame["flow"], strict=True)
    on_ipus = [
        (f"{chip}, {title}", seconds, chip, flow if chip == SLIDES_CHIP else "")
        for chip, title, seconds, flow in chips
    ]
    bars = pd.DataFrame([*on_gpus, *on_ipus], columns=["name", "training_s", "chip", "key"])
    said = implied_seconds()
    ends = [(place, end) for place, key in enumerate(bars["key"]) for end in said.get(key, ())]
    bars = bars.assign(written_at=21, goal_s=_said(GOAL)[0])
    return {"bars": bars, "slides": pd.DataFrame(ends, columns=["bar", "s"])}


def uno_frame() -> pd.DataFrame:
    """Return what bounds Uno on one IPU: a step by its parts, over the batch."""
    parts = [part.ipu for spec in load_specs(STUDY) for part in spec.parts]
    (options,) = (ipu for ipu in parts if ipu.get("model") == "uno")
    lines = []
    for batch in (32, 128, 512, 2048):
        report = simulate(**(options | {"micro_batch": batch}), as_if_it_fits=True)
        step = report.result.step_s
        device, transfers = (report.result.parts_s[name] for name in ("device", "transfers"))
        item_bytes = report.result.io.input_bytes / batch
        lines.append(
            {
                "batch": batch,
                "kb_per_sample": 1e-3 * item_bytes,
                "device_ms": 1e3 * device,
                "transfers_ms": 1e3 * transfers,
                "other_ms": 1e3 * (step - device - transfers),
                "step_ms": 1e3 * step,
                "link_percent": 100 * transfers / device,
                "samples_per_s": report.throughput.value,
                "link_samples_per_s": report.config.system.host_bytes_per_s(1) / item_bytes,
            }
        )
    return pd.DataFrame(lines)


def flows_frame() -> pd.DataFrame:
    """Return what a loader process does with an item in each dataflow, and how long it takes."""
    times = dataflow.worker_times_us()
    return pd.DataFrame(
        {
            "title": flow.title,
            "steps": ", ".join(f"{step.replace('_', ' ')} {times[step]:g}" for step in flow.worker),
            "item_us": 1e6 * dataflow.item_seconds(flow),
            "model": flow.model,
            "source": flow.source,
        }
        for flow in dataflow.load_dataflows().values()
    )


def boards_frame(boards: Mapping[str, GpuRun]) -> pd.DataFrame:
    """Return the parts of a step on each GPU with the stock loader, in milliseconds."""
    return pd.DataFrame(
        {
            "board": run.report.gpu,
            "stack": run.report.stack,
            "precision": run.report.precision,
            "kernels": run.report.host_ops,
            **{name: 1e3 * part for name, part in run.report.parts.items()},
            "loader_ms": 1e3 * run.loader_s,
            "step_ms": 1e3 * run.step_s,
            "training_s": run.training_s,
            "source": run.source,
        }
        for run in boards.values()
    )


def scaling_by_ipus(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `dataflow.scaling_frame` with the seconds to train in a column per number of IPUs."""
    keys = ["line", "chip"]
    named = frame.assign(heading=[f"{n} IPU{'s' if n > 1 else ''}" for n in frame["ipus"]])
    wide = named.pivot_table(index=keys, columns="heading", values="training_s", sort=False)
    last = frame.groupby(keys, sort=False)["bound"].last().reset_index()
    return wide.reset_index().merge(last, on=keys)


def phases_frame() -> pd.DataFrame:
    """Return how a training step divides into phases, in either precision and on either chip."""
    flow = dataflow.load_dataflow("on_chip")
    return phase_shares(
        {
            f"{chip}, {precision}": dataflow.simulate_flow(flow, chip=chip, precision=precision)
            for chip in dataflow.SYSTEMS
            for precision in ("32.32", "16.16")
        }
    )
