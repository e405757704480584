"""IPUs beside GPUs in the TAMU study: Figures 1 and 2, images per second and watt, Table 4.

The figures are charts without numbers. Their GPU bars are predicted here, with an interval from
rows that were published elsewhere, and such a row stands beside a bar where there is one.
"""

import pandas as pd

from ipusim.errors import resolve_name
from ipusim.files import read_tables
from ipusim.machine import load
from ipusim.machine.gpu import GpuNode
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study.data.published import load_claims, load_rows
from ipusim.study.data.runs import load_run
from ipusim.study.tamu.memory import AUTOENCODER_RUN
from ipusim.study.tamu.scaling import SCALED_MICRO_BATCH
from ipusim.study.tamu.study import STUDY, TENSORFLOW_SERIES, table_frame
from ipusim.study.verdicts.compare import PREDICTED
from ipusim.study.verdicts.compare_gpu import conformal_ratios, gpu_compare
from ipusim.study.verdicts.errors import errors_of, verdict_of

MODEL, PRINTED_MODEL = "resnet50", "ResNet-50 v1.5"
COUNTS = (1, 2, 4, 8)
IPU = "GC200 IPU"
FILE = "runs/tamu_gpus.toml"
"""What stands in Figures 1 and 2 beside the IPUs, and the powers that the study quotes."""
NUMBERS = ("predicted", "low80", "high80", "published")
"""Columns of `bars` that hold throughputs."""


def bars(frame: pd.DataFrame, framework: str) -> pd.DataFrame:
    """Collect the bars of Figure 1 ("pytorch") or Figure 2 ("tensorflow"), images/s.

    `frame` holds verdicts on `study_rows`; published is NaN where nothing is. An UnknownNameError
    for another framework.
    """
    figure = resolve_name("framework", framework, read_tables(FILE)["figure"])
    both = pd.concat([ipu_bars(frame, figure), gpu_bars(figure)], ignore_index=True)
    return both.assign(error_percent=errors_of(both))


def ipu_bars(frame: pd.DataFrame, framework: str) -> pd.DataFrame:
    """Return the runs of Table 1 or 3; of several with as many IPUs the fewest instances."""
    figure = read_tables(FILE)["figure"][framework]
    chosen = table_frame(frame, figure["table"])
    chosen = chosen[chosen["series"] == figure["series"]]
    if figure["series"] == TENSORFLOW_SERIES:
        chosen = chosen[chosen["micro_batch"] == SCALED_MICRO_BATCH]
    chosen = chosen.sort_values(["chips", "instances"]).drop_duplicates("chips")
    names = {"chips": "devices", "calibrated": "predicted"}
    shown = chosen[["chips", "calibrated", "low80", "high80", "published"]].rename(columns=names)
    shown = shown.astype({"devices": int}).assign(published_source=f"TAMU {figure['table']}")
    shown.insert(0, "platform", IPU)
    return shown


def gpu_bars(framework: str) -> pd.DataFrame:
    """Predict the GPU bars of a figure, with 1, 2, 4, 8 and all boards of each machine.

    The interval comes from the training rows of the same stack, leave one model out; where a
    machine has no anchor it assumes that the board errs like those that have one.
    """
    stack, known = read_tables(FILE)["figure"][framework]["stack"], gpu_compare()
    alike = {"stack": stack, "mode": "training"}
    low, high = conformal_ratios(known, **alike)
    batch = read_tables(FILE)["run"]["batch"]
    alike |= {"model": PRINTED_MODEL, "precision": "mixed", "batch": batch}
    anchors = known[(known[list(alike)] == list(alike.values())).all(axis=1)]
    lines = []
    for platform, said in read_tables(FILE)["platform"].items():
        board, node = said.get("boards", {}).get(framework), load(GpuNode, said["system"])
        for gpus in sorted({*(count for count in COUNTS if count <= node.gpus), node.gpus}):
            given = {"gpus": gpus, "framework": stack, "precision": "mixed"}
            report = simulate_gpu(MODEL, said["system"], batch=batch, **given)
            found = anchors[(anchors["gpu"] == board) & (anchors["gpus"] == gpus)]["published"]
            published, anchor = float("nan"), "none at this number of boards"
            if len(found):
                measured = " and board" if board == report.gpu else f", measured on {board}"
                published, anchor = found.iloc[0], f"NVIDIA, same stack{measured}"
            source = said.get("no_board") or anchor
            lines.append((platform, gpus, report.throughput, published, source))
    names = ["platform", "devices", "predicted", "published", "published_source"]
    frame = pd.DataFrame(lines, columns=names)
    frame.insert(3, "low80", low * frame["predicted"])
    frame.insert(4, "high80", high * frame["predicted"])
    return frame


def per_watt(figures: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Divide the throughputs of `bars`, by framework, by the powers that the study quotes."""
    claims = load_claims(STUDY)["value"]
    lines = []
    for framework, frame in figures.items():
        for machine, said in read_tables(FILE)["power"].items():
            devices, watts = said["devices"], float(claims[said["claim"]])
            own = (frame["platform"] == said["platform"]) & (frame["devices"] == devices)
            bar = frame[own].iloc[0]
            head = {"framework": framework, "machine": machine, "devices": devices}
            head |= {"quoted_w": watts, "host_in_it": said["host"]}
            lines.append(head | {name: bar[name] / watts for name in NUMBERS})
    return pd.DataFrame(lines)


def table4_gpus() -> pd.DataFrame:
    """Predict the GPU rows of Table 4 on the same assumed network as its IPU rows.

    The printed micro-batch is taken as that of all boards together: at 10 a step takes 37 ms on one
    board and on two, which only a shared batch explains.
    """
    said, ipu = read_tables(FILE)["table4"], load_run(AUTOENCODER_RUN)
    most = load(GpuNode, said["system"]).gpus
    given = {"precision": said["precision"], "framework": said["stack"]}
    given |= {"optimizer": ipu.optimizer}  # the one that the IPU rows assume
    lines = []
    for row in load_rows(study=STUDY, table="Table 4", metric="throughput"):
        if row.run.model is not None:
            continue
        boards, printed = min(row.run.chips, most), row.run.micro_batch or 1
        batch = max(1, printed // boards)
        report = simulate_gpu(ipu.model, said["system"], gpus=boards, batch=batch, **given)
        lines.append(
            {
                "row_id": row.row_id,
                "boards": boards,
                "printed_batch": printed,
                "batch_per_board": report.batch,
                "published": row.value,
                "predicted": report.throughput,
                "step_ms": 1e3 * report.step_s,
                "published_step_ms": 1e3 * printed / row.value,
                **{f"{part}_ms": 1e3 * seconds for part, seconds in report.parts.items()},
            }
        )
    return pd.DataFrame(lines)


def with_gpus(frame: pd.DataFrame, gpus: pd.DataFrame) -> pd.DataFrame:
    """Return verdicts whose GPU rows of Table 4, rates and times, are those of `table4_gpus`."""
    filled = frame.set_index("row_id", drop=False)
    said = read_tables(FILE)["table4"]
    note = f"GPU model, {said['stack']}, {said['precision']}; the network is assumed"
    for name, rate in zip(gpus["row_id"], gpus["predicted"], strict=True):
        for row_id, value in ((name, rate), (f"{name}.time", said["images"] / rate)):
            if row_id in filled.index:
                verdict = verdict_of(value, *filled.loc[row_id, ["published", "metric"]])
                columns = ["calibrated", "verdict", "status", "note"]
                filled.loc[row_id, columns] = [value, verdict, PREDICTED, note]
    return filled.reset_index(drop=True)


def crossover(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare one IPU with one A100 at batch 10: images/s as published and predicted."""
    small = table_frame(frame, "Table 4").query("micro_batch == 10 & chips == 1")
    machine = small["label"].str.contains("IPU").map({True: "one_ipu", False: "one_a100"})
    both = small.groupby(machine.rename(None))[["published", "calibrated"]].first()
    shown = both.T[["one_ipu", "one_a100"]].rename_axis("numbers").reset_index()
    return shown.assign(ratio=shown["one_ipu"] / shown["one_a100"])
