"""The tour's controls and its static figure."""

from __future__ import annotations

import pandas as pd
import pytest

from ipusim.errors import ConfigError, UnknownNameError
from ipusim.study import book
from ipusim.study.book.explorer import FALLBACK, Explorer, sweep_panels

GOOD = {"model": "resnet18", "systems": ["C2"], "micro_batches": [1, 2]}


@pytest.fixture(scope="module")
def explorer():
    return Explorer(model="resnet18", system="c2")


def test_controls_show_the_report(explorer):
    assert explorer.system.value == "C2"
    assert "resnet18, micro-batch 1" in explorer.answer.value
    explorer.micro_batch.value = 2
    assert "resnet18, micro-batch 2" in explorer.answer.value
    explorer.system.value = "Bow-2000"
    assert "Bow" in explorer.answer.value


def test_what_makes_no_sense_is_said(explorer, monkeypatch):
    def refuse():
        raise ConfigError("This <run> makes no sense.")

    monkeypatch.setattr(explorer, "report", refuse)
    explorer.update()
    assert explorer.answer.value == "<p>This &lt;run&gt; makes no sense.</p>"


def test_there_is_a_sentence_where_widgets_cannot_be_shown(explorer):
    shown = explorer._repr_mimebundle_()
    assert shown["text/plain"] == FALLBACK == repr(explorer)
    assert "application/vnd.jupyter.widget-view+json" in shown


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"systems": []}, "systems is"),
        ({"systems": "C2"}, "give a list"),
        ({"micro_batches": [0]}, "1 or more"),
        ({"micro_batches": []}, "1 or more"),
        ({"micro_batches": 4}, "1 or more"),
        ({"micro_batches": [True]}, "1 or more"),
    ],
)
def test_bad_parameters_of_the_tour(changed, says):
    book.open("tour", **GOOD)
    with pytest.raises(ConfigError, match=says):
        book.open("tour", **(GOOD | changed))


@pytest.mark.parametrize("changed", [{"model": "resnet51"}, {"systems": ["C3 card"]}])
def test_unknown_names_in_the_tour(changed):
    with pytest.raises(UnknownNameError, match="did you mean|nearest|use"):
        book.open("tour", **(GOOD | changed))


def test_a_run_that_does_not_fit_is_not_drawn():
    frame = pd.DataFrame(
        {
            "system": ["C2", "C2", "Bow-2000"],
            "micro_batch": [1, 2, 1],
            "latency_ms": [1.0, 2.0, 0.5],
            "throughput_items_per_s": [10.0, 11.0, 30.0],
            "fits": [True, False, True],
        }
    )
    axes = sweep_panels(frame).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes[0].lines}
    assert lines == {"C2": [1.0], "Bow-2000": [0.5]}
