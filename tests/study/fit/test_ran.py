"""What the model of memory says of programs that ran: each counted once."""

from dataclasses import replace

import pytest
from study_small import SmallPredictor, load_row

from ipusim.runtime.calibration import Ran
from ipusim.study.data.published import load_rows
from ipusim.study.fit.ran import programs_that_ran, ran, ran_table

ROWS = ("results.inference.049", "results.inference.050", "results.inference.058")
SHARES = {"results.inference.049": 1.25, "results.inference.050": 1.0}


class Known(SmallPredictor):
    """Fills the fullest tile by so much of it as SHARES says, by micro-batch; the rest to half."""

    def answer(self, request):
        rows = {load_row(row_id).run.micro_batch: share for row_id, share in SHARES.items()}
        share = rows.get(request.options["micro_batch"], 0.5)
        return replace(super().answer(request), fullest_share=share)


def test_what_is_beyond_its_tile_is_counted_by_how_much():
    found = ran(Known(), [load_row(row_id) for row_id in ROWS])
    assert found == Ran(programs=3, over={"results.inference.049": 0.25})
    said = "1 of 3 published programs, which all ran, comes out too large for a tile"
    assert str(found) == said
    line = ran_table(found).iloc[0]
    assert (line["row_id"], line["over_percent"]) == ("results.inference.049", 25.0)
    assert line["label"] == load_row("results.inference.049").label


def test_a_program_counts_once_and_only_where_its_recipe_is_known():
    programs = programs_that_ran()
    assert all(row.run.confidence.startswith(("exact tag", "other tag")) for row in programs)
    assert len({row.run.run_id for row in programs}) == len(programs) > 150
    row = load_row("results.inference.049")
    twice = replace(row.run, replicas=2 * row.run.replicas)
    assert programs_that_ran([row, replace(row, run=twice)]) == (row,)
    other = replace(row.run, micro_batch=2 * row.run.micro_batch)
    assert len(programs_that_ran([row, replace(row, run=other)])) == 2
    guessed = replace(row.run, confidence="inferred")
    assert programs_that_ran([replace(row, run=guessed)]) == ()
    assert len(programs_that_ran()) < len(load_rows())


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.01, "2 of 9 published programs, which all ran, come out as much too large"),
        (0.2, "1 of 9 published programs, which all ran, comes out as much too large"),
        (0.21, "none of 9 published programs, which all ran, comes out as much too large"),
    ],
)
def test_a_verdict_says_how_often_as_much_was_wrong(share, said):
    assert Ran(programs=9, over={"a": 0.2, "b": 0.01}).verdict(share) == said
