"""Figures of Bragg peaks: what they draw."""

import numpy as np
import pandas as pd
import pytest

from ipusim.study import book
from ipusim.study.argonne.braggnn.patches import prepare_patches
from ipusim.study.argonne.braggnn.peaks import simulate_peaks
from ipusim.study.argonne.training import distributions, peaks_with_centres

PAGE = book.open("argonne")


@pytest.fixture(scope="module")
def patches():
    peaks = simulate_peaks(12, seed=1)
    return prepare_patches(peaks.crops, peaks.centres)


def test_every_panel_marks_every_centre(patches):
    images, targets = patches
    centres = targets * 11
    found = {"fit": centres + 0.2, "BraggNN": centres - 0.1}
    tables = peaks_with_centres(images, centres, found)
    figure = PAGE.figure("bragg_patches", tables).figure
    assert len(figure.axes) == 12
    axis = figure.axes[7]
    drawn = [tuple(float(v[0]) for v in line.get_data()) for line in axis.get_lines()]
    expected = [centres[7], centres[7] + 0.2, centres[7] - 0.1]
    np.testing.assert_allclose(drawn, expected)
    np.testing.assert_array_equal(axis.get_images()[0].get_array(), images[7, 0])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["true centre", "fit", "BraggNN"]


def test_distributions_end_at_all_peaks():
    errors = {"a": np.array([0.3, 0.1]), "b": np.array([0.2, 0.4, 0.6])}
    figure = PAGE.figure("bragg_distribution", distributions(errors)).figure
    lines = figure.axes[0].get_lines()
    assert list(lines[0].get_xdata()) == [0.1, 0.3]
    assert list(lines[0].get_ydata()) == [50, 100]
    assert [line.get_label() for line in lines[:3]] == ["a", "b", "published"]


def test_loss_curves_have_one_line_per_run():
    frame = pd.DataFrame(
        {"method": ["a", "a", "b"], "step": [10, 20, 10], "rms_px": [2.0, 1.0, 1.5]}
    )
    lines = PAGE.figure("bragg_losses", frame).figure.axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[2.0, 1.0], [1.5]]
