"""The Argonne slides: every ratio beside what is predicted, and the tables of the notebook.

What stands behind a ratio is in ``data/runs/claims_argonne.toml``; `ipusim.study.claims` recomputes
it. Where the slides do not name the GPU, every candidate has a line of its own; of BraggNN's
reference time arithmetic on the slides alone says which GPU it can have been.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ipusim.api import simulate
from ipusim.study.argonne.dataflow import (
    SYSTEMS,
    GpuRun,
    item_seconds,
    load_dataflow,
    load_dataflows,
    simulate_board,
    simulate_flow,
    training_seconds,
    worker_times_us,
)
from ipusim.study.book.trace_charts import phase_shares
from ipusim.study.claims import Side, Sides, allowed, claims_frame as recompute, load_specs
from ipusim.study.data.published import load_claims
from ipusim.study.table import Table
from ipusim.study.verdicts.compare_gpu import conformal_ratios, gpu_compare

STUDY = "argonne"
REFERENCE, GOAL, OUT_OF_THE_BOX, AGAINST_A100, AGAINST_V100 = (
    f"AR{number}" for number in (41, 42, 44, 45, 46)
)
BRAGG = "BraggNN: "
"""How the titles of BraggNN's claims begin."""
_MILLISECONDS = 1e3


def board_factors(run: GpuRun) -> tuple[float, float]:
    """Return the 80 % interval of a board's step, as factors on the predicted seconds.

    From published training rows of the same stack, leave one model out (`conformal_ratios`).
    """
    frame = gpu_compare()
    known = frame[(frame["stack"] == run.report.stack) & (frame["mode"] == "training")]
    low, high = conformal_ratios(known)
    return 1 / high, 1 / low


def _board(name: str) -> Side:
    """Return the time of BraggNN's training on a GPU of the slides."""
    run = simulate_board(name)
    low, high = board_factors(run)
    seconds = run.training_s
    return Side(
        value=seconds, low80=low * seconds, high80=high * seconds, is_time=True, name=f"{name}, GPU"
    )


def _flow(name: str) -> Side:
    """Return the time of BraggNN's training on one GC200; the slides say Mk2."""
    report = simulate_flow(load_dataflow(name))
    seconds = training_seconds(report)
    return Side(value=seconds, low80=seconds, high80=seconds, is_time=True, fits=report.fits)


def claims_frame() -> pd.DataFrame:
    """Recompute every ratio and time of the slides.

    Returns
    -------
    pandas.DataFrame
        `ipusim.study.claims.claims_frame` with the unit that the slides print and ``gpu``, how many
        of which GPU stand on the other side and whether their rate is published. Of BraggNN the
        interval is that of the GPU alone.
    """
    frame = recompute(STUDY, Sides(STUDY, own={"board": _board, "flow": _flow}))
    units = load_claims(STUDY).set_index("claim_id")["unit"]
    sides = zip(frame["gpus"], frame["gpu_side"], strict=True)
    return frame.assign(
        unit=frame["claim_id"].map(units),
        gpu=[f"{count:.0f} x {_board_words(name)}" if name else "" for count, name in sides],
    )


def _board_words(name: str) -> str:
    board, _, origin = name.rpartition(", ")
    return f"{board}, {origin if origin == 'modelled' else 'published'}"


def of_bragg(frame: pd.DataFrame) -> pd.DataFrame:
    """Select the lines of `claims_frame` on BraggNN, their titles without its name."""
    part = frame[frame["title"].str.startswith(BRAGG)]
    return part.assign(title=part["title"].str.removeprefix(BRAGG))


def other_ratios(frame: pd.DataFrame) -> pd.DataFrame:
    """Select the lines of `claims_frame` on all other networks."""
    return frame[~frame["title"].str.startswith(BRAGG)]


def _bragg_ends() -> dict[str, tuple[float, float]]:
    """Return what the slides say of BraggNN, each as the two ends of the text."""
    values = load_claims(STUDY).set_index("claim_id")["value"]
    claims = (REFERENCE, GOAL, OUT_OF_THE_BOX, AGAINST_A100, AGAINST_V100)
    return {claim: allowed(values[claim], "") for claim in claims}


def goal_seconds() -> float:
    """Return the time to train that the slides aim at."""
    return _bragg_ends()[GOAL][0]


def reference_frame() -> pd.DataFrame:
    """Work out what the slides' time of 800 s means for each GPU that it may belong to.

    Returns
    -------
    pandas.DataFrame
        Per candidate ("V100", "A100"): the time of the final version that its ratio gives (s), the
        time of the other GPU that follows from the other ratio (s), the times of the first version
        from the ratio of 3 to 4 (s), and whether the final version meets the goal.
    """
    known = _bragg_ends()
    ratios = {"V100": known[AGAINST_V100][0], "A100": known[AGAINST_A100][0]}
    low, high = known[OUT_OF_THE_BOX]
    lines = []
    for board, ratio in ratios.items():
        final = known[REFERENCE][0] / ratio
        v100 = final * ratios["V100"]
        lines.append(
            {
                "candidate": board,
                "final_s": final,
                "v100_s": v100,
                "a100_s": final * ratios["A100"],
                "first_fast_s": v100 / high,
                "first_slow_s": v100 / low,
                "meets_goal": final < known[GOAL][0],
            }
        )
    return pd.DataFrame(lines)


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


def uno_frame(batches: tuple[int, ...] = (32, 128, 512, 2048)) -> pd.DataFrame:
    """Show what bounds Uno on one IPU: a step by its parts, over the batch.

    Returns
    -------
    pandas.DataFrame
        Per batch: batch, kB per sample that cross the link, device_ms, transfers_ms, other_ms,
        step_ms, link_percent (transfers over device), samples_per_s, and link_samples_per_s, the
        most that the link alone could pass on.
    """
    parts = [part.ipu for spec in load_specs(STUDY) for part in spec.parts]
    (options,) = (ipu for ipu in parts if ipu.get("model") == "uno")
    lines = []
    for batch in batches:
        report = simulate(**(options | {"micro_batch": batch}))
        parts_s, step = report.result.parts_s, report.result.step_s
        device, transfers = parts_s["device"], parts_s["transfers"]
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


def flows_table() -> Table:
    """Show what a loader process does with an item in each dataflow, and how long it takes."""
    times = worker_times_us()
    lines = []
    for flow in load_dataflows().values():
        steps = ", ".join(f"{step.replace('_', ' ')} {times[step]:g}" for step in flow.worker)
        lines.append(
            {
                "title": flow.title,
                "steps": steps,
                "item_us": 1e6 * item_seconds(flow),
                "model": flow.model,
                "source": flow.source,
            }
        )
    return Table(
        pd.DataFrame(lines),
        caption="What a loader process does with one item, in us (measured, see the text)",
        columns={
            "title": "dataflow",
            "steps": "steps of a process, us",
            "item_us": "in all, us",
            "model": "graph on the chip",
            "source": "source",
        },
        digits=3,
    )


def dataflow_table(frame: pd.DataFrame) -> Table:
    """Show `ipusim.study.argonne.dataflow.dataflow_frame`."""
    return Table(
        frame,
        caption="One IPU, batch 512, single precision, 500 epochs of 108 steps",
        columns={
            "title": "dataflow",
            "chip": "chip",
            "loader_ms": "loader, ms per batch",
            "chip_ms": "chip, ms",
            "step_ms": "step, ms",
            "bound": "bound by",
            "training_s": "time to train, s",
            "training_several_s": "several components, s",
        },
        digits=3,
    )


def boards_table(boards: Mapping[str, GpuRun]) -> Table:
    """Show the GPU runs with the stock loader."""
    lines = [
        {
            "board": run.report.gpu,
            "stack": run.report.stack,
            "precision": run.report.precision,
            "kernels": run.report.host_ops,
            **{name: _MILLISECONDS * part for name, part in run.report.parts.items()},
            "loader_ms": _MILLISECONDS * run.loader_s,
            "step_ms": _MILLISECONDS * run.step_s,
            "training_s": run.training_s,
            "source": run.source,
        }
        for run in boards.values()
    ]
    return Table(
        pd.DataFrame(lines),
        caption="GPUs with the stock loader, ms per step of 512",
        columns={
            "board": "board",
            "stack": "stack",
            "precision": "precision",
            "kernels": "kernels",
            "compute": "arithmetic",
            "memory": "memory",
            "launch": "launches",
            "loader_ms": "loader",
            "step_ms": "step",
            "training_s": "time to train, s",
            "source": "source",
        },
        digits=3,
    )


def reference_table() -> Table:
    """Show what 800 s mean for either GPU."""
    return Table(
        reference_frame(),
        caption="If the 800 s are those of ...",
        columns={
            "candidate": "GPU",
            "v100_s": "V100, s",
            "a100_s": "A100, s",
            "first_fast_s": "first version, s (4 x)",
            "first_slow_s": "(3 x)",
            "final_s": "final version, at most s",
            "meets_goal": "under two minutes",
        },
        digits=3,
    )


def ratios_table(frame: pd.DataFrame) -> Table:
    """Show what the slides say of BraggNN: the lines of `of_bragg`."""
    return Table(
        of_bragg(frame),
        caption="BraggNN on the slides, and predicted for a GC200",
        columns={
            "row_id": "row",
            "title": "claim",
            "printed": "slide",
            "predicted": "predicted",
            "low80": "low 80 %",
            "high80": "high 80 %",
            "unit": "unit",
            "error_percent": "error %",
            "verdict": "verdict",
            "note": "reason",
        },
        digits=3,
    )


def claims_table(frame: pd.DataFrame) -> Table:
    """Show the ratios of the other networks with intervals and verdicts."""
    return Table(
        other_ratios(frame),
        caption="Other ratios on the slides, one line per GPU that may be meant",
        columns={
            "row_id": "row",
            "title": "claim",
            "gpu": "GPU taken",
            "claimed": "slide, x",
            "predicted": "predicted, x",
            "low80": "low 80 %",
            "high80": "high 80 %",
            "error_percent": "error %",
            "verdict": "verdict",
            "fits": "fits the IPU",
        },
        digits=3,
    )


def reasons_table(frame: pd.DataFrame) -> Table:
    """Show what the ratios of the other networks rest on in words, once per claim."""
    return Table(
        other_ratios(frame).drop_duplicates("key"),
        caption="What these predictions rest on",
        columns={"title": "claim", "assumed": "assumed", "source": "source", "note": "reason"},
    )


def scaling_table(frame: pd.DataFrame) -> Table:
    """Show `ipusim.study.argonne.dataflow.scaling_frame`: seconds to train per number of IPUs."""
    wide = frame.pivot_table(
        index=["line", "chip"], columns="ipus", values="training_s", sort=False
    ).reset_index()
    last = frame.groupby(["line", "chip"], sort=False)["bound"].last().reset_index()
    wide = wide.merge(last, on=["line", "chip"])
    counts = [name for name in wide.columns if isinstance(name, int)]
    columns = {"line": "dataflow", "chip": "chip"}
    columns |= {count: f"{count} IPU" + ("s" if count > 1 else "") for count in counts}
    return Table(
        wide.rename(columns={count: str(count) for count in counts}),
        caption="Seconds to train 500 epochs",
        columns={str(key): name for key, name in columns.items()} | {"bound": "bound by, at last"},
        digits=3,
    )


def phases_table() -> Table:
    """Show how a training step divides into phases, in either precision and on either chip."""
    flow = load_dataflow("on_chip")
    reports = {
        f"{chip}, {precision}": simulate_flow(flow, chip=chip, precision=precision)
        for chip in SYSTEMS
        for precision in ("32.32", "16.16")
    }
    return Table(
        phase_shares(reports),
        caption="Cycles of 512 patches, forwards and backwards",
        columns={
            "label": "run",
            "supersteps": "supersteps",
            "cycles": "cycles",
            "sync_percent": "sync %",
            "exchange_percent": "exchange %",
            "copy_percent": "copy %",
            "compute_percent": "compute %",
        },
    )


def uno_table() -> Table:
    """Show what bounds Uno on one IPU, over the batch."""
    return Table(
        uno_frame(),
        caption="CANDLE Uno on one GC200, single precision",
        columns={
            "batch": "batch",
            "kb_per_sample": "kB per sample",
            "device_ms": "chip, ms",
            "transfers_ms": "transfers, ms",
            "other_ms": "update and fixed, ms",
            "step_ms": "step, ms",
            "link_percent": "transfers over chip, %",
            "samples_per_s": "samples/s",
            "link_samples_per_s": "most the link passes, samples/s",
        },
        digits=3,
    )
