"""The results page of Graphcore: its tables beside their predictions, by family."""

from collections.abc import Sequence

import pandas as pd

from ipusim.files import data_dir, read_records
from ipusim.study import audit
from ipusim.study.data.published import PublishedRow, load_rows, published_tables
from ipusim.study.table import MISSING, VERDICT_MARKS, format_number, format_percent
from ipusim.study.verdicts.summary import verdict_on, with_error

STUDY = "results"
PRINTED = ("model", "variant", "platform", "sdk", "framework", "dataset", "batch_size", "precision")
"""What the page prints of a line beside its numbers, in its order."""
NUMBERS = ("published", "unit", "roofline", "specification", "calibrated", "low80", "high80",
           "error_percent", "verdict")  # fmt: skip
DIGITS = 3
_MACHINES = {"Classic": "Classic (GC200)", "Bow": "Bow"}


def study_rows(chosen: Sequence[str] = ()) -> tuple[PublishedRow, ...]:
    """Return the rows of the page, those of some model families or all."""
    rows = load_rows(study=STUDY)
    return tuple(row for row in rows if not chosen or row.family in chosen)


def table_frame(frame: pd.DataFrame, *tables: str) -> pd.DataFrame:
    """Set some tables of the page beside their predictions, line by line in its order.

    ``fold`` is the family with what its values come to, ``batch_as_run`` stands where the printed
    batch is another; each number has, under the name of its metric, the columns `NUMBERS` and three
    texts: ``printed``, ``shown`` (prediction and 80 % interval) and ``marked`` (error with the mark
    of the verdict).
    """
    rows = [row for table in tables for row in load_rows(study=STUDY, table=table)]
    values = {row.row_id: row.printed for row in rows}
    printed = {
        record["row_id"]: {name: record.get(name, "").removeprefix("SDK ") for name in PRINTED}
        for table in published_tables()
        if table.study == STUDY
        for record in read_records(data_dir() / "published" / table.file)
    }
    wrong = audit.batch_labels().set_index("row_id")["run_batch"].to_dict()
    own = with_error(frame[frame["table"].isin(tables)])
    families = {name: _family_line(name, group) for name, group in own.groupby("family")}
    lines = []
    for run_id, numbers in own.groupby("run_id", sort=False):
        line = {"row_id": run_id, **printed[run_id], "batch_as_run": wrong.get(run_id, pd.NA)}
        for number in numbers.to_dict("records"):
            metric, mark = number["metric"], VERDICT_MARKS.get(number["verdict"], "")
            ends = [format_number(number[name], DIGITS) for name in ("low80", "high80")]
            interval = "" if MISSING in ends else f" ({' to '.join(ends)})"
            error = format_percent(number["error_percent"])
            texts = {
                "printed": f"{values[number['row_id']]} {number['unit']}",
                "shown": format_number(number["calibrated"], DIGITS) + interval,
                "marked": f"{mark}\N{NO-BREAK SPACE}{error}".strip(),
            }
            known = {name: number[name] for name in NUMBERS}
            line |= {f"{metric}_{name}": value for name, value in {**known, **texts}.items()}
            line |= {"fold": families[number["family"]], "note": number["note"]}
        lines.append(line)
    shown = pd.DataFrame(lines, columns=None if lines else ["row_id", "fold", "note"])
    return shown if shown.empty else shown.astype({"batch_as_run": "Int64"})


def _family_line(name: str, group: pd.DataFrame) -> str:
    verdict = verdict_on([group])
    if not verdict.counted:
        return f"{name}: no value that is a test"
    worst = format_percent(verdict.worst_percent)
    return (
        f"{name}: {verdict.hit} hit, {verdict.near} near, {verdict.miss} miss; "
        f"error typical {verdict.typical_percent:.1f} %, worst {worst} %"
    )


def published_and_predicted(frame: pd.DataFrame, mode: str) -> dict[str, pd.DataFrame]:
    """Return a mode's predicted over published rates, Classic and Bow, in bands of families."""
    titles = {f"{machine} {mode}": title for machine, title in _MACHINES.items()}
    used = frame[frame["table"].isin(titles) & (frame["metric"] == "throughput")]
    used = used[used["calibrated"].notna()]
    rows = used.assign(machine=used["table"].map(titles))
    places = rows.groupby(["family", "machine"], sort=False)
    widths = places.size().unstack(fill_value=0).max(axis=1)
    ends = (widths + 1).cumsum()
    shares = ["low80", "calibrated", "high80", "specification"]
    rows[shares] = rows[shares].div(rows["published"], axis=0)
    # the rows of a family lie in the middle of its band
    middles = rows["family"].map(ends - widths / 2).astype(float)
    first = middles - places["row_id"].transform("size") / 2
    counts = [(rows["machine"] == title).sum() for title in titles.values()]
    machines = pd.DataFrame({"machine": titles.values(), "count": counts})
    bands = {"family": ends.index, "end": ends, "middle": ends - (widths + 2) / 2}
    return {
        "machines": machines.assign(slots=ends.max() if len(ends) else 0),
        "families": pd.DataFrame(bands).reset_index(drop=True),
        "rows": rows.assign(at=first + places.cumcount()),
    }
