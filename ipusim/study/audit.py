"""What published documents say about themselves and about each other.

Computed from published rows and run configurations alone; nothing here is predicted. What is
arithmetic on the numbers of one row stands in ``data/audits.toml``.
"""

from itertools import combinations

import numpy as np
import pandas as pd

from ipusim.errors import check_name
from ipusim.files import read_tables
from ipusim.machine.system import load_system, system_names
from ipusim.study.data.published import PublishedRow, by_metric, frame_of, load_rows
from ipusim.view import view

FILE = "audits.toml"
CLOCK_TOLERANCE = 0.10
"""A ratio of two chips that differs by more from the ratio of their clocks is more than clock."""
CONFLICT_PERCENT = 5.0
"""Two documents that differ by more on one configuration disagree."""
_IN_FLIGHT = ["batches_by_printed_label", "batches_as_run"]


def table(name: str) -> pd.DataFrame:
    """Return a table of ``data/audits.toml``."""
    spec = read_tables(FILE)[name]
    rows = load_rows(study=spec["study"], table=spec.get("table"))
    frame = by_metric(rows, *spec["metrics"])
    for needed in spec.get("run", ()):
        frame[needed] = [getattr(run, needed) for run in frame["run"]]
    return view(frame, spec).reset_index(drop=True)


def qwant_digit_slip() -> pd.DataFrame:
    """Show what another printed efficiency would make of the power at batch 10 of Table 3.

    9.08 images/s/W differ from the printed 9.68 in one digit; that they were meant is a reading,
    not a fact. Beside either stands the mean power of the neighbouring batch sizes.
    """
    batch_size, efficiency = 10, 9.08
    frame = table("qwant_power").set_index("batch_size", drop=False)
    line = frame.loc[batch_size]
    beside = frame[(frame["batch_size"] - batch_size).abs() == 2]
    read = np.array([line["efficiency_images_per_s_per_w"], efficiency])
    return pd.DataFrame(
        {
            "reading": ["printed", "one digit changed"],
            "efficiency_images_per_s_per_w": read,
            "implied_power_w": line["throughput_images_per_s"] / read,
            "neighbours_w": beside["implied_power_w"].mean(),
        }
    )


def tamu_work(table_name: str) -> pd.DataFrame:
    """Return the work of the rows of a table of TAMU; an UnknownNameError for one without it."""
    work = table("tamu_work")
    check_name("table", table_name, work["table"].unique())
    return work[work["table"] == table_name].drop(columns="table").reset_index(drop=True)


def _parts(row: PublishedRow) -> tuple[list[str], int]:
    """Return what a label prints beside platform and batch, and the batch; 0 for none."""
    parts = [part for part in row.label.split(", ") if part]
    batch = next((part for part in parts if part.startswith("batch ")), "")
    platforms = (row.system, row.system.replace("Bow-2000", "4x Bow-2000"))
    kept = [part for part in parts if part != batch and part not in platforms]
    return kept, int(batch.removeprefix("batch ") or 0)


def _throughputs(*studies: str) -> pd.DataFrame:
    """Return the throughputs of documents, with their machine and what their label prints."""
    known = [row for study in studies for row in load_rows(study=study, metric="throughput")]
    rows = [row for row in known if row.system in system_names() and row.value > 0]
    printed = ("row_id", "study", "table", "label", "printed", "value", "system")
    frame = frame_of(rows, *printed, "run.mode", "run.model", "run.confidence", "run")
    systems, parts = [load_system(row.system) for row in rows], [_parts(row) for row in rows]
    return frame.assign(
        kind=frame["table"].str.split().str[-1],
        model=frame["model"].fillna(frame["label"]),
        ipus=[system.ipus for system in systems],
        chip=[system.chip.name for system in systems],
        clock_hz=[system.chip.clock_hz for system in systems],
        words=[", ".join(kept) for kept, _ in parts],
        framework=[kept[-1].lower() for kept, _ in parts],
        printed_batch=[batch for _, batch in parts],
    )


def little_groups() -> pd.DataFrame:
    """Group Little's law, with the batch as run, by framework and platform."""
    groups = table("littles_law").groupby(["framework", "system"])
    batches = groups["batches_as_run"].agg(rows="size", least="min", median="median", largest="max")
    return batches.assign(labels_differ=groups["label_differs"].sum()).reset_index()


def batch_labels() -> pd.DataFrame:
    """List the rows whose printed batch is not the one that their recipe gives.

    As run is micro-batch x replicas x accumulation. In training no latency is printed, so that
    nothing is known to be in flight.
    """
    frame = _throughputs("results")
    known = [bool(run.micro_batch and run.replicas) for run in frame["run"]]
    frame = frame[known].query("printed_batch > 0")
    frame = frame.assign(run_batch=[run.items_per_step for run in frame["run"]])
    frame["run_over_printed"] = frame["run_batch"] / frame["printed_batch"]
    frame = frame.join(table("littles_law").set_index("row_id")[_IN_FLIGHT], on="row_id")
    shown = ["row_id", "table", "label", "printed_batch", "run_batch", "run_over_printed"]
    shown += [*_IN_FLIGHT, "confidence"]
    return frame.query("printed_batch != run_batch")[shown].reset_index(drop=True)


def scaling_efficiency() -> pd.DataFrame:
    """Compute throughput per IPU over that of the smallest system with the same configuration.

    Above 100 % is what more chips of the same program cannot give.
    """
    frame = _throughputs("results", "argonne")
    groups = frame.groupby(["study", "kind", "chip", "words"], sort=False)
    # of several rows on one system it is not told which of them scales
    scales = groups["ipus"].transform("nunique") == groups["ipus"].transform("size")
    frame = frame.assign(group=groups.ngroup(), each=frame["value"] / frame["ipus"])[scales]
    frame = frame.sort_values(["group", "ipus"], ignore_index=True)
    smallest = frame.groupby("group").transform("first")
    efficiency = 100.0 * frame["value"] / frame["ipus"] / smallest["each"]
    shown = frame[["row_id", "label"]].assign(
        smallest=smallest["system"],
        efficiency_percent=efficiency,
        same_batch=frame["printed_batch"] == smallest["printed_batch"],
        above_100=efficiency > 100.0,
    )
    return shown[frame.duplicated("group")].reset_index(drop=True)


def bow_over_classic() -> pd.DataFrame:
    """Compare rows that print the same but for the chip with the ratio of the clocks."""
    frame, same = _throughputs("results"), ["kind", "ipus", "printed_batch", "words"]
    frame = frame[~frame.duplicated([*same, "chip"], keep=False)]
    bow, classic = (frame[frame["chip"] == chip] for chip in ("Bow", "GC200"))
    pairs = bow.merge(classic, on=same, suffixes=("", "_classic"))
    shown = pairs[["row_id", "row_id_classic", "kind", "label"]].assign(
        ratio=pairs["value"] / pairs["value_classic"],
        clock_ratio=pairs["clock_hz"] / pairs["clock_hz_classic"],
    )
    shown.columns = ["bow_row", "classic_row", "table", "label", "ratio", "clock_ratio"]
    off = shown["ratio"] / shown["clock_ratio"] - 1.0
    reading = np.select([off.abs() <= CLOCK_TOLERANCE, off > 0], ["clock", "above"], "below")
    return shown.assign(reading=reading)


def document_conflicts() -> pd.DataFrame:
    """Compare slides and results page on one model, platform, framework and, if printed, batch."""
    same = ["model", "mode", "system", "framework"]
    pairs = _throughputs("argonne").merge(_throughputs("results"), on=same, suffixes=("", "_page"))
    batch, other = pairs["printed_batch"], pairs["printed_batch_page"]
    pairs = pairs[(batch == other) | (batch == 0) | (other == 0)]
    shown = pairs[["row_id", "row_id_page", "label_page", "value", "value_page"]]
    shown = shown.set_axis(["slides_row", "page_row", "label", "slides", "page"], axis=1)
    shown = shown.reset_index(drop=True)
    difference = 100.0 * (shown["page"] / shown["slides"] - 1.0)
    disagree = difference.abs() > CONFLICT_PERCENT
    return shown.assign(difference_percent=difference, disagree=disagree)


def repeated_values() -> pd.DataFrame:
    """List printed throughputs of several configurations; four digits may repeat by chance."""
    lines = [
        (text, *one, *two)
        for text, same in _throughputs("results").groupby("printed", sort=False)
        for one, two in combinations(same[["row_id", "label"]].to_numpy(), 2)
    ]
    names = ["printed", "row_id", "label", "other_row", "other_label"]
    return pd.DataFrame(lines, columns=names)


def placeholders() -> pd.DataFrame:
    """List published numbers that are 0, which no run gives."""
    return frame_of((row for row in load_rows() if not row.value), "row_id", "label", "printed")
