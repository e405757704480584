"""Published programs, which all ran: how many of them the model of memory calls too large."""

from collections.abc import Iterable
from operator import attrgetter

import pandas as pd

from ipusim.files import read_tables
from ipusim.machine import load_system
from ipusim.runtime.calibration import Ran
from ipusim.study.cached import PooledPredictor
from ipusim.study.data.published import PublishedRow, frame_of, load_rows, rows_by_id
from ipusim.study.predict import request_for

KNOWN = ("exact tag", "other tag")
"""How the confidence of a recipe begins that is read from public code."""
FILE = "studies/fidelity.toml"
"""What it says of ``one_program`` are options that runs of one share, besides the chip."""


def programs_that_ran(rows: Iterable[PublishedRow] | None = None) -> tuple[PublishedRow, ...]:
    """Return the first row, of all by default, of each modelled program of a known recipe."""
    found: dict[tuple[object, ...], PublishedRow] = {}
    shared = attrgetter(*read_tables(FILE)["one_program"])
    for row in load_rows() if rows is None else rows:
        run = row.run
        if not run.not_modelled and run.confidence.startswith(KNOWN):
            found.setdefault((load_system(row.system).chip.name, *shared(run)), row)
    return tuple(found.values())


def ran(predictor: PooledPredictor, rows: Iterable[PublishedRow] | None = None) -> Ran:
    """Return what the model of memory says of `programs_that_ran`."""
    asked = {row: request_for(row.run, "specification") for row in programs_that_ran(rows)}
    predictor.prepare(asked.values())
    shares = {row.row_id: predictor.answer(one).fullest_share for row, one in asked.items()}
    over = {row_id: share - 1 for row_id, share in shares.items() if share > 1}
    return Ran(programs=len(shares), over=over)


def ran_table(found: Ran) -> pd.DataFrame:
    """Return the programs that come out larger than a tile, largest first."""
    known, over = rows_by_id(), sorted(found.over.items(), key=lambda item: -item[1])
    frame = frame_of((known[name] for name, _ in over), "row_id", "label", "system", "run.mode")
    return frame.assign(over_percent=[100 * share for _, share in over])
