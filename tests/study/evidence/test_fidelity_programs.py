"""Programs of compiled networks: what was counted, what is lowered, and that both are shown."""

import json
from pathlib import Path

import pytest

from ipusim.compiler.program import Superstep
from ipusim.files import evidence_records
from ipusim.study.evidence import programs
from ipusim.study.specs import load_spec

BERT, EFFICIENTNET, TINY, NANO = (
    "bert_large_squad_128_inference_popart",
    "efficientnet_edgetpu_L_tensorflow",
    "bert_demo_tiny_128_squad_training_poptorch",
    "nanogpt_training_poptorch",
)
COUNTS = {
    # counted in a profile, lowered here; a lowering that changes a count says so here
    (BERT, "whole"): (3105, "verified", 3862),
    (EFFICIENTNET, "whole"): (832, "verified", 933),
    (TINY, "whole"): (4664, "verified", 2164),
    (NANO, "forward"): (1650, "weak", 1319),
    (NANO, "backward"): (3050, "weak", 2451),
    (NANO, "update"): (2200, "weak", 534),
}


@pytest.fixture(scope="module")
def table():
    return programs.programs_table().set_index(["network", "part"])


def test_every_count_is_compared(table):
    shown = table[["programs", "label", "lowered"]].itertuples(index=False, name=None)
    assert dict(zip(table.index, shown, strict=True)) == COUNTS
    assert (table["source"].str.len() > 20).all()
    ratios = 100.0 * table["lowered"] / table["programs"]
    assert table["lowered_percent"].tolist() == pytest.approx(ratios.tolist())


def test_training_lacks_what_only_a_profile_lists(table):
    percent = table["lowered_percent"]
    # Sources of these are in data/evidence/README.md; inference has none of them.
    assert percent[TINY, "whole"] < 50
    assert (percent[NANO] < 85).all()
    assert percent[[(BERT, "whole"), (EFFICIENTNET, "whole")]].between(100, 125).all()


def test_counts_of_one_profile_agree_in_both_files():
    of_memory = {
        line["network"]: int(line["programs"])
        for line in evidence_records("ipu_network_memory.csv")
        if line["programs"]
    }
    assert of_memory == {name: COUNTS[name, "whole"][0] for name in (BERT, EFFICIENTNET, TINY)}


def test_the_study_shows_them():
    spec = load_spec("fidelity")
    assert {"programs", "lowered", "lowered_percent", "label"} <= {
        column.partition("=")[0] for column in spec["tables"]["fidelity_programs"]["columns"]
    }
    notebook = Path(__file__).parents[3] / "notebooks" / f"{spec['notebook']}.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    (cell,) = (cell for cell in cells if "fidelity_programs" in "".join(cell["source"]))
    shown = json.dumps(cell["outputs"])
    assert all(f"{count:,}" in shown for count, _, _ in COUNTS.values())


@pytest.mark.parametrize(("received", "count"), [(0, 1), (8, 3)])
def test_a_superstep_with_an_exchange_is_three_programs_however_often_it_runs(received, count):
    costs = dict.fromkeys(
        ("sync_cycles", "exchange_cycles", "copy_cycles", "compute_cycles", "tiles"), 1
    )
    step = Superstep("add", "Add", exchange_bytes=received, repeats=7, **costs)
    assert programs.programs_of(step) == count
