"""From one chip to 65,536: as quick, as small, and never better than it could be."""

import time
import tracemalloc

import pytest

from ipusim.files import notebooks_dir
from ipusim.study import book
from ipusim.study.fidelity.scale import scale_table


@pytest.fixture(scope="module")
def frame():
    return scale_table("braggnn", ipus=(1, 4, 16, 256, 8192, 65536))


def test_more_chips_never_make_a_step_shorter_or_a_chip_more_efficient(frame):
    assert frame["step_ms"].is_monotonic_increasing
    assert frame["all_reduce_percent"].is_monotonic_increasing
    assert frame["efficiency_percent"].is_monotonic_decreasing
    assert frame["efficiency_percent"].iloc[0] == pytest.approx(100)
    assert list(frame["exists"]) == [True] * 4 + [False] * 2
    assert frame["power_kw"].iloc[-1] == pytest.approx(8 * frame["power_kw"].iloc[-2], rel=0.2)
    assert len(frame.attrs["assumptions"]) == 5
    assert "256 IPUs" in frame.attrs["assumptions"][0]
    told = (notebooks_dir() / "06_fidelity.ipynb").read_text()
    assert all(f"- {assumption}" in told for assumption in frame.attrs["assumptions"])


def test_a_step_on_all_of_them_takes_less_than_a_second_and_no_memory(frame):
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        scale_table("braggnn", ipus=(8192, 65536))
        seconds = time.perf_counter() - begin
        many = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        scale_table("braggnn", ipus=(8, 64))
        few = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seconds < 2
    assert many < few + 1_000_000


def test_the_figure_shades_what_does_not_exist(frame):
    page = book.open("fidelity")
    figure = page.figure("fidelity_scale", frame).figure
    assert [axis.get_ylabel() for axis in figure.axes][1] == "% of the step"
    assert all(axis.patches for axis in figure.axes)
    assert not page.figure("fidelity_scale", frame.iloc[:3]).figure.axes[1].patches
