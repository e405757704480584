"""What the results page, the slides and the papers say about themselves and about each other.

Computed from published rows and run configurations alone; nothing here is predicted.
"""

import math
from itertools import combinations

import numpy as np
import pandas as pd

from ipusim.machine.system import load_system, system_names
from ipusim.study.audit import littles_law
from ipusim.study.data.published import PublishedRow, by_metric, frame_of, load_rows, rows_by_id

CLOCK_TOLERANCE = 0.10
"""A ratio of two chips that differs by more from the ratio of their clocks is more than clock."""
CONFLICT_PERCENT = 5.0
"""Two documents that differ by more on one configuration disagree."""


def _parts(row: PublishedRow) -> tuple[list[str], int | None]:
    """Return what a label prints beside platform and batch, and the batch."""
    parts = [part for part in row.label.split(", ") if part]
    batch = next((part for part in parts if part.startswith("batch ")), None)
    platforms = (row.system, row.system.replace("Bow-2000", "4x Bow-2000"))
    kept = [part for part in parts if part != batch and part not in platforms]
    return kept, int(batch.removeprefix("batch ")) if batch else None


def _throughputs(study: str) -> list[PublishedRow]:
    rows = load_rows(study=study, metric="throughput")
    return [row for row in rows if row.system in system_names() and row.value > 0]


def little_rows() -> pd.DataFrame:
    """Return the rows of `ipusim.study.audit.littles_law` with their framework and system."""
    frame, by_id = littles_law(), rows_by_id()
    rows = [by_id[row_id] for row_id in frame["row_id"]]
    frameworks = [_parts(row)[0][-1] for row in rows]
    return frame.assign(framework=frameworks, system=[row.system for row in rows])


def little_groups() -> pd.DataFrame:
    """Group Little's law by framework and platform: how many batches a latency spans.

    Per framework and system: rows, the least, median and largest number of batches in flight that
    throughput x latency gives with the batch as run, and rows with a wrong printed batch.
    """
    groups = little_rows().groupby(["framework", "system"])
    batches = groups["batches_as_run"]
    columns = {"rows": groups.size(), "least": batches.min(), "median": batches.median()}
    columns |= {"largest": batches.max(), "labels_differ": groups["label_differs"].sum()}
    return pd.DataFrame(columns).reset_index()


def batch_labels() -> pd.DataFrame:
    """List the rows whose printed batch is not the one that their recipe gives.

    Per row: row_id, table, label, printed batch, batch as run (micro-batch x replicas x
    accumulation), their quotient, and the batches in flight that Little's law gives with either
    (NaN in training, where no latency is printed).
    """
    rows = [
        row
        for row in _throughputs("results")
        if None not in (_parts(row)[1], row.run.micro_batch, row.run.replicas)
    ]
    frame = frame_of(rows, "row_id", "table", "label", "run.items_per_step", "run.confidence")
    frame.insert(3, "printed_batch", [_parts(row)[1] for row in rows])
    frame = frame.rename(columns={"items_per_step": "run_batch"})
    frame["run_over_printed"] = frame["run_batch"] / frame["printed_batch"]
    little = littles_law().set_index("row_id")[["batches_by_printed_label", "batches_as_run"]]
    frame = frame.join(little, on="row_id")
    frame.insert(8, "confidence", frame.pop("confidence"))
    return frame[frame["printed_batch"] != frame["run_batch"]].reset_index(drop=True)


def scaling_efficiency() -> pd.DataFrame:
    """Compute the efficiency of every configuration that was published on several systems.

    Per row but the smallest of its group (study, label without platform and batch, chip):
    throughput per IPU over that of the smallest system in percent, whether the batch is the same,
    and whether it is above 100 %, which more chips of the same program cannot give.
    """
    groups: dict[tuple[str, ...], list[PublishedRow]] = {}
    for study in ("results", "argonne"):
        for row in _throughputs(study):
            key = (study, row.table.split(" ")[-1], load_system(row.system).chip.name)
            groups.setdefault((*key, *_parts(row)[0]), []).append(row)
    lines = []
    for rows in groups.values():
        sizes = {load_system(row.system).ipus for row in rows}
        if len(sizes) < 2 or len(sizes) < len(rows):
            continue  # one system, or several rows on one: which of them scales is not told
        smallest, *larger = sorted(rows, key=lambda row: load_system(row.system).ipus)
        base = smallest.value / load_system(smallest.system).ipus
        for row in larger:
            efficiency = 100.0 * row.value / load_system(row.system).ipus / base
            same_batch = _parts(row)[1] == _parts(smallest)[1]
            lines.append((row.row_id, row.label, smallest.system, efficiency, same_batch))
    names = ["row_id", "label", "smallest", "efficiency_percent", "same_batch"]
    frame = pd.DataFrame(lines, columns=names)
    return frame.assign(above_100=frame["efficiency_percent"] > 100.0)


def bow_over_classic() -> pd.DataFrame:
    """Compare rows that print the same but for the chip with the ratio of the clocks.

    Per pair on as many IPUs: both rows, table, label of the Bow row, published ratio, ratio of the
    clocks, and how the two compare: "clock", "above" or "below".
    """
    sides: dict[str, dict[tuple[object, ...], list[PublishedRow]]] = {"Bow": {}, "GC200": {}}
    for row in _throughputs("results"):
        kept, batch = _parts(row)
        system = load_system(row.system)
        key = (row.table.split(" ")[-1], system.ipus, batch, *kept)
        sides[system.chip.name].setdefault(key, []).append(row)
    lines = []
    for key, (bow, *more) in sides["Bow"].items():
        classics = sides["GC200"].get(key, [])
        if more or len(classics) != 1:
            continue
        clocks = [load_system(row.system).chip.clock_hz for row in (bow, classics[0])]
        ratio, clock = bow.value / classics[0].value, clocks[0] / clocks[1]
        lines.append((bow.row_id, classics[0].row_id, key[0], bow.label, ratio, clock))
    names = ["bow_row", "classic_row", "table", "label", "ratio", "clock_ratio"]
    frame = pd.DataFrame(lines, columns=names)
    off = frame["ratio"] / frame["clock_ratio"] - 1.0
    reading = np.select([off.abs() <= CLOCK_TOLERANCE, off > 0], ["clock", "above"], "below")
    return frame.assign(reading=reading)


def mlperf_scaling() -> pd.DataFrame:
    """Compute what time to train costs in chips as systems grow.

    Per MLPerf row: label, IPUs, minutes, IPU-minutes, and the efficiency against the smallest
    system of the same model and framework in percent.
    """
    rows = load_rows(study="results", table="MLPerf v2.0")
    frame = frame_of(rows, "row_id", "label", "value").rename(columns={"value": "minutes"})
    frame.insert(2, "ipus", [load_system(row.system).ipus for row in rows])
    frame["ipu_minutes"] = frame["minutes"] * frame["ipus"]
    smallest = frame["ipu_minutes"].groupby([", ".join(_parts(row)[0]) for row in rows])
    return frame.assign(
        efficiency_percent=100.0 * smallest.transform("first") / frame["ipu_minutes"]
    )


def throughput_times_time() -> pd.DataFrame:
    """Multiply throughput and time where a row prints both: the items that it worked through.

    Per run of the OGB-LSC table: label, throughput (items/s), time (s), items, and passes over the
    set where its size is known (``epoch_items``; NaN elsewhere).
    """
    rows = load_rows(study="results", table="OGB-LSC")
    rate, time = by_metric(rows, "throughput", "time_to_train")
    items = rate["value"] * time["value"]
    return pd.DataFrame(
        {
            "row_id": rate["row_id"],
            "label": rate["label"],
            "throughput_items_per_s": rate["value"],
            "time_s": time["value"],
            "items": items,
            "epochs": items / [run.epoch_items or math.nan for run in rate["run"]],
        }
    )


def _configuration(row: PublishedRow) -> tuple[object, ...]:
    run = row.run
    return (run.model or row.label, run.mode, row.system, _parts(row)[0][-1].lower())


def document_conflicts() -> pd.DataFrame:
    """Compare rows of two documents on one configuration.

    Per row of the slides that the results page has too (same model, platform, framework and printed
    batch where both print one): both rows, both values, the difference in percent, and whether they
    disagree by more than 5 %.
    """
    page: dict[tuple[object, ...], list[PublishedRow]] = {}
    for row in _throughputs("results"):
        page.setdefault(_configuration(row), []).append(row)
    lines = []
    for row in _throughputs("argonne"):
        for other in page.get(_configuration(row), ()):
            batches = _parts(row)[1], _parts(other)[1]
            if None not in batches and batches[0] != batches[1]:
                continue
            lines.append((row.row_id, other.row_id, other.label, row.value, other.value))
    frame = pd.DataFrame(lines, columns=["slides_row", "page_row", "label", "slides", "page"])
    difference = 100.0 * (frame["page"] / frame["slides"] - 1.0)
    disagree = difference.abs() > CONFLICT_PERCENT
    return frame.assign(difference_percent=difference, disagree=disagree)


def repeated_values() -> pd.DataFrame:
    """List printed throughputs that occur in more than one configuration of the results page.

    Per pair: the printed number, both rows and both labels. A number of four digits may repeat by
    chance.
    """
    by_text: dict[str, list[PublishedRow]] = {}
    for row in _throughputs("results"):
        by_text.setdefault(row.printed, []).append(row)
    lines = [
        (text, one.row_id, one.label, two.row_id, two.label)
        for text, same in by_text.items()
        for one, two in combinations(same, 2)
    ]
    names = ["printed", "row_id", "label", "other_row", "other_label"]
    return pd.DataFrame(lines, columns=names)


def placeholders() -> pd.DataFrame:
    """List published numbers that are 0, which no run gives."""
    return frame_of((row for row in load_rows() if not row.value), "row_id", "label", "printed")
