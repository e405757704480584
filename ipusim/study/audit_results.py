"""What the results page, the slides and the papers say about themselves and about each other.

Computed from published rows and run configurations alone; nothing here is predicted.
"""

from __future__ import annotations

import math
from itertools import combinations

import pandas as pd

from ipusim.machine.system import load_system, system_names
from ipusim.study.audit import littles_law
from ipusim.study.data.published import PublishedRow, load_rows

CLOCK_TOLERANCE = 0.10
"""A ratio of two chips that differs by more from the ratio of their clocks is more than clock."""
CONFLICT_PERCENT = 5.0
"""Two documents that differ by more on one configuration disagree."""


def _parts(row: PublishedRow) -> tuple[list[str], int | None]:
    """Return what a label prints beside platform and batch, and the batch."""
    parts = [part for part in row.label.split(", ") if part]
    batch = next((part for part in parts if part.startswith("batch ")), None)
    kept = [part for part in parts if part != batch and part not in _platform_names(row)]
    return kept, int(batch.removeprefix("batch ")) if batch else None


def _platform_names(row: PublishedRow) -> tuple[str, ...]:
    return (row.system, row.system.replace("Bow-2000", "4x Bow-2000"))


def _throughputs(study: str) -> list[PublishedRow]:
    rows = load_rows(study=study, metric="throughput")
    return [row for row in rows if row.system in system_names() and row.value > 0]


def little_rows() -> pd.DataFrame:
    """Return the rows of `ipusim.study.audit.littles_law` with their framework and system."""
    frame = littles_law()
    by_id = {row.row_id: row for row in load_rows(study="results", metric="throughput")}
    return frame.assign(
        framework=[_parts(by_id[row_id])[0][-1] for row_id in frame["row_id"]],
        system=[by_id[row_id].system for row_id in frame["row_id"]],
    )


def little_groups() -> pd.DataFrame:
    """Group Little's law by framework and platform: how many batches a latency spans.

    Returns
    -------
    pandas.DataFrame
        Per framework and system: rows, the least, median and largest number of batches in flight
        that throughput x latency gives with the batch as run, and rows with a wrong printed batch.
    """
    return pd.DataFrame(
        [
            {
                "framework": framework,
                "system": system,
                "rows": len(group),
                "least": group["batches_as_run"].min(),
                "median": group["batches_as_run"].median(),
                "largest": group["batches_as_run"].max(),
                "labels_differ": int(group["label_differs"].sum()),
            }
            for (framework, system), group in little_rows().groupby(
                ["framework", "system"], sort=True
            )
        ]
    )


def batch_labels() -> pd.DataFrame:
    """List the rows whose printed batch is not the one that their recipe gives.

    Returns
    -------
    pandas.DataFrame
        Per row: row_id, table, label, printed batch, batch as run (micro-batch x replicas x
        accumulation), their quotient, and the batches in flight that Little's law gives with
        either (NaN in training, where no latency is printed).
    """
    little = littles_law().set_index("row_id")
    lines = []
    for row in _throughputs("results"):
        _, printed = _parts(row)
        run = row.run
        if printed is None or run.micro_batch is None or run.replicas is None:
            continue
        if printed == run.items_per_step:
            continue
        known = little.loc[row.row_id] if row.row_id in little.index else {}
        lines.append(
            {
                "row_id": row.row_id,
                "table": row.table,
                "label": row.label,
                "printed_batch": printed,
                "run_batch": run.items_per_step,
                "run_over_printed": run.items_per_step / printed,
                "batches_by_printed_label": known.get("batches_by_printed_label", math.nan),
                "batches_as_run": known.get("batches_as_run", math.nan),
                "confidence": run.confidence,
            }
        )
    return pd.DataFrame(lines)


def scaling_efficiency() -> pd.DataFrame:
    """Compute the efficiency of every configuration that was published on several systems.

    Returns
    -------
    pandas.DataFrame
        Per row but the smallest of its group (study, label without platform and batch, chip):
        throughput per IPU over that of the smallest system in percent, whether the batch is the
        same, and whether it is above 100 %, which more chips of the same program cannot give.
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
            lines.append(
                {
                    "row_id": row.row_id,
                    "label": row.label,
                    "smallest": smallest.system,
                    "efficiency_percent": efficiency,
                    "same_batch": _parts(row)[1] == _parts(smallest)[1],
                    "above_100": efficiency > 100.0,
                }
            )
    return pd.DataFrame(lines)


def bow_over_classic() -> pd.DataFrame:
    """Compare rows that print the same but for the chip with the ratio of the clocks.

    Returns
    -------
    pandas.DataFrame
        Per pair on as many IPUs: both rows, table, label of the Bow row, published ratio, ratio of
        the clocks, and how the two compare: "clock", "above" or "below".
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
        off = ratio / clock - 1.0
        lines.append(
            {
                "bow_row": bow.row_id,
                "classic_row": classics[0].row_id,
                "table": key[0],
                "label": bow.label,
                "ratio": ratio,
                "clock_ratio": clock,
                "reading": "clock" if abs(off) <= CLOCK_TOLERANCE else "above" if off > 0 else
                "below",
            }
        )  # fmt: skip
    return pd.DataFrame(lines)


def mlperf_scaling() -> pd.DataFrame:
    """Compute what time to train costs in chips as systems grow.

    Returns
    -------
    pandas.DataFrame
        Per MLPerf row: label, IPUs, minutes, IPU-minutes, and the efficiency against the smallest
        system of the same model and framework in percent.
    """
    rows = load_rows(study="results", table="MLPerf v2.0")
    smallest: dict[tuple[str, ...], float] = {}
    lines = []
    for row in rows:
        ipus = load_system(row.system).ipus
        cost = row.value * ipus
        base = smallest.setdefault(tuple(_parts(row)[0]), cost)
        lines.append(
            {
                "row_id": row.row_id,
                "label": row.label,
                "ipus": ipus,
                "minutes": row.value,
                "ipu_minutes": cost,
                "efficiency_percent": 100.0 * base / cost,
            }
        )
    return pd.DataFrame(lines)


def throughput_times_time() -> pd.DataFrame:
    """Multiply throughput and time where a row prints both: the items that it worked through.

    Returns
    -------
    pandas.DataFrame
        Per run of the OGB-LSC table: label, throughput (items/s), time (s), items, and passes over
        the set where its size is known (``epoch_items``; NaN elsewhere).
    """
    rows = load_rows(study="results", table="OGB-LSC")
    times = {row.run.run_id: row for row in rows if row.metric == "time_to_train"}
    lines = []
    for row in rows:
        if row.metric != "throughput":
            continue
        seconds = times[row.run.run_id].value
        items = row.value * seconds
        lines.append(
            {
                "row_id": row.row_id,
                "label": row.label,
                "throughput_items_per_s": row.value,
                "time_s": seconds,
                "items": items,
                "epochs": items / row.run.epoch_items if row.run.epoch_items else math.nan,
            }
        )
    return pd.DataFrame(lines)


def _configuration(row: PublishedRow) -> tuple[object, ...]:
    run = row.run
    return (run.model or row.label, run.mode, row.system, _parts(row)[0][-1].lower())


def document_conflicts() -> pd.DataFrame:
    """Compare rows of two documents on one configuration.

    Returns
    -------
    pandas.DataFrame
        Per row of the slides that the results page has too (same model, platform, framework and
        printed batch where both print one): both rows, both values, the difference in percent, and
        whether they disagree by more than 5 %.
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
            difference = 100.0 * (other.value / row.value - 1.0)
            lines.append(
                {
                    "slides_row": row.row_id,
                    "page_row": other.row_id,
                    "label": other.label,
                    "slides": row.value,
                    "page": other.value,
                    "difference_percent": difference,
                    "disagree": abs(difference) > CONFLICT_PERCENT,
                }
            )
    return pd.DataFrame(lines)


def repeated_values() -> pd.DataFrame:
    """List printed throughputs that occur in more than one configuration of the results page.

    Returns
    -------
    pandas.DataFrame
        Per pair: the printed number, both rows and both labels. A number of four digits may repeat
        by chance.
    """
    rows = _throughputs("results")
    by_text: dict[str, list[PublishedRow]] = {}
    for row in rows:
        by_text.setdefault(row.printed, []).append(row)
    return pd.DataFrame(
        [
            {
                "printed": text,
                "row_id": one.row_id,
                "label": one.label,
                "other_row": two.row_id,
                "other_label": two.label,
            }
            for text, same in by_text.items()
            for one, two in combinations(same, 2)
        ]
    )


def placeholders() -> pd.DataFrame:
    """List published numbers that are 0, which no run gives."""
    rows = [row for row in load_rows() if row.value == 0]
    return pd.DataFrame(
        [{"row_id": row.row_id, "label": row.label, "printed": row.printed} for row in rows],
        columns=["row_id", "label", "printed"],
    )
