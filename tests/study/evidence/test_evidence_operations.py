"""Single operations against Graphcore's IPUModel; each limit is a promise.

The target for pooling and reductions of 2021-03 and for recurrent layers is a median of 15 %.
Limits stand near what was reached, so that a worse estimator is noticed.
"""

import shutil

import pytest

from ipusim import files
from ipusim.errors import DataError
from ipusim.files import read
from ipusim.study.evidence import operations as evidence
from ipusim.study.evidence.graphs import graph_of

POOLING, REDUCE = "pooling, forward and gradient", "reduce"


@pytest.fixture(scope="module")
def rows():
    return evidence.suite_rows(evidence.OTHERS)


@pytest.fixture(scope="module")
def table():
    return evidence.operations_table(evidence.OTHERS).set_index(evidence.GROUPS)


@pytest.fixture(scope="module")
def recurrent():
    return evidence.operations_table(evidence.RECURRENT).set_index(["operation", "chip"])


@pytest.mark.parametrize(
    ("key", "count", "median", "most"),
    [
        ((POOLING, "2021-03", "GC200"), 5, 7.0, 29.0),
        ((POOLING, "2021-03", "GC2"), 5, 4.2, 22.0),
        ((POOLING, "2020-03", "GC2"), 5, 5.4, 20.0),
        ((REDUCE, "2021-03", "GC200"), 5, 3.0, 16.0),
        ((REDUCE, "2021-03", "GC2"), 5, 3.0, 16.0),
        ((REDUCE, "2020-03", "GC2"), 5, 21.0, 35.5),
        (("embedding, lookup and update", "2021-03", "GC200"), 2, 2.7, 4.1),
        (("embedding, lookup and update", "2021-03", "GC2"), 2, 2.8, 3.6),
    ],
)
def test_operations_against_ipumodel(table, key, count, median, most):
    line = table.loc[key]
    assert line["rows"] == count
    assert line["median_abs_error_percent"] <= median
    assert line["max_abs_error_percent"] <= most


def test_memory_of_reductions_is_close(rows):
    """Partials count on the tiles that hold them."""
    ours = rows[(rows["operation"] == REDUCE) & (rows["snapshot"] == "2021-03")]
    assert ours["memory_error_percent"].abs().max() <= 7.7
    assert ours["memory_error_percent"].abs().median() <= 5.2


def test_every_row_of_the_suites_is_predicted(rows, table):
    assert len(rows) == table["rows"].sum() == 34
    assert (rows["predicted_cycles"] > 0).all()


def test_pools_in_groups_of_channels_are_close(rows):
    """One row has single channels apart: its copies by the half-word are not modelled."""
    recent = rows[(rows["operation"] == POOLING) & (rows["snapshot"] == "2021-03")]
    grouped = recent[recent["name"] != "inception_tr_bs1_i9_dmax_pool"]
    assert len(grouped) == len(recent) - 2
    assert grouped["error_percent"].abs().max() <= 11.0


@pytest.mark.parametrize(
    ("operation", "chip", "most"),
    [
        # 6, and 3 of a GRU on GC2, before partials were dealt out in groups of channels, of which
        # a step's few sums have less than one for each tile; 6.4, 5.0 of three passes, 3.0 and 3.3
        # before operands that are rearranged lay in whole blocks, of which a step's are few; 7.1,
        # and of GRUs 3.2 and 4.1, before units were rows of what is transposed, as in RnnUtil.hpp.
        ("lstm, forward", "GC200", 7.4),
        ("lstm, forward", "GC2", 7.0),
        ("lstm, three passes", "GC200", 8.0),
        ("lstm, three passes", "GC2", 6.1),
        ("gru, forward", "GC200", 3.9),
        ("gru, forward", "GC2", 4.8),
        # 3 before products brought their operands into order, which IPUModel's weight gradients
        # of a GRU seem not to do.
        ("gru, three passes", "GC200", 6.0),
        ("gru, three passes", "GC2", 6.0),
    ],
)
def test_recurrent_layers_against_ipumodel(recurrent, operation, chip, most):
    line = recurrent.loc[(operation, chip)]
    assert line["max_abs_error_percent"] <= most


def test_every_plan_is_the_one_that_ran(recurrent):
    """The worst tile of all 16 rows holds the partials of the predicted plans."""
    found = [tuple(map(int, text.split("/"))) for text in recurrent["fingerprints"]]
    assert sum(exact for exact, _ in found) == sum(of for _, of in found) == 16


def test_a_reduction_keeps_axes_that_are_not_neighbours():
    records = evidence.evidence_records("ipumodel_layers_dev.csv")
    record = next(line for line in records if line["name"] == "bert_reduce_0")
    graph, _ = graph_of(record)
    (op,) = graph.ops
    assert op.params.shape == (16, 4, 16, 32, 8)
    assert op.params.axes == (1, 3)
    assert op.params.outer * op.params.reduced == 16 * 4 * 16 * 32 * 8


def test_released_rows_are_compared_and_kept_apart():
    """What was kept back until the model was made: rows of both chips, none of them in the rest."""
    suites = read(evidence.Suite, evidence.SUITES_FILE)
    names = [suite for suite in suites if suite.file == "ipumodel_layers_released.csv"]
    assert all(suite.operation.endswith("(released)") for suite in names)
    records = evidence.evidence_records("ipumodel_layers_released.csv")
    known = {line["name"] for line in evidence.evidence_records("ipumodel_layers_dev.csv")}
    assert not known & {line["name"] for line in records}
    held = [
        line
        for line in records
        if any(suite.holds(line, target) for suite in names for target in suite.targets)
    ]
    # those of SDK 1.0.172 have no suite among the others either
    assert len(held) == len(records) - sum(line["snapshot"] == "sdk_1.0.172" for line in records)


def test_a_missing_file_is_named(monkeypatch, tmp_path):
    (tmp_path / "evidence").mkdir()
    shutil.copy(files.data_dir() / evidence.SUITES_FILE, tmp_path / "evidence")
    monkeypatch.setattr(files, "data_dir", lambda: tmp_path)
    with pytest.raises(DataError, match=r"ipumodel_layers_dev\.csv.*restore it"):
        evidence.suite_rows(evidence.OTHERS)
