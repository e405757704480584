"""A report as a page, its advice, and two reports side by side."""

import math
import re

import pytest

import ipusim
from ipusim.errors import StudyError
from ipusim.report.page import figures
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model


@pytest.fixture(scope="module")
def report():
    return ipusim.simulate("resnet18", system="IPU-M2000", micro_batch=2)


def test_a_page_needs_no_network_and_is_the_same_twice(report, tmp_path):
    page = report.to_html(tmp_path / "a.html").read_text()
    assert not re.search(r"(?:src|href)=\"https?:|@import|<script", page)
    assert report.verdict in page and "ipusim simulate resnet18 --micro-batch 2" in page
    longest = report.heaviest(1).iloc[0]
    row = re.search(rf"<td>{longest['op']}</td>.*", page)[0]
    assert f"<td>{longest['time_us']:,.2f}</td><td>{longest['time_percent']:,.2f}</td>" in row
    low, high = report.interval80
    assert f"from {low:.2f} to {high:.2f} times the predicted time" in page
    for title in ("What would help", "Roofline", "Memory over the program", "Timeline", "Layers"):
        assert f"<h2>{title}</h2>" in page
    assert report.to_html(tmp_path / "b.html").read_text() == page
    with pytest.raises(StudyError, match=r"Cannot write .*c\.html"):
        report.to_html(tmp_path / "a.html" / "c.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_what_fits_says_how_full_its_tiles_are_and_what_it_gives(report):
    used, peak = (n / report.tile_bytes for n in (report.used_tile_bytes, report.peak_tile_bytes))
    assert round(100 * used) != round(100 * peak)  # the gap in the memory of a tile is not in use
    rate, ms = report.throughput.value, 1e3 * report.latency.value
    assert rate > 1e3
    assert report.verdict == (
        f"It fits {report.config.active_ipus} GC200, with {used:.0%} of the fullest tile in use, "
        f"and answers {rate:,.0f} items/s with a latency of {ms:.4g} ms."
    )


def test_figures_draw_what_the_report_holds(report):
    drawn = {name: figure.axes[0] for name, figure in figures(report).items()}
    parts = drawn["parts"]
    assert sum(bar.get_width() for bar in parts.patches) == pytest.approx(
        1e3 * report.result.step_s
    )
    live = drawn["liveness"]
    highest = next(line for line in live.lines if line.get_label() == "highest address")
    assert max(highest.get_ydata()) * 1024 == pytest.approx(report.peak_tile_bytes)
    for axis in drawn.values():
        assert axis.get_title(loc="left") and axis.get_xlabel()


def test_what_does_not_fit_has_no_rates_on_its_page(tmp_path):
    big = ipusim.simulate("resnet18", system="C2", micro_batch=256)
    assert not big.fits
    page = big.to_html(tmp_path / "a.html").read_text()
    assert "does not fit" in page and "items/s" not in page and "Roofline" not in page
    assert big.advice == ()


def test_advice_says_the_largest_part_first(report):
    shares = [int(text.split("%")[0]) for text in report.advice]
    assert shares == sorted(shares, reverse=True)
    assert any("host_dtype='uint8'" in text for text in report.advice)
    less = ipusim.simulate("resnet18", system="IPU-M2000", micro_batch=2, host_dtype="uint8")
    assert not any("host_dtype" in text for text in less.advice)


def test_advice_knows_single_partials_and_large_results():
    exact = ipusim.simulate("resnet18", system="IPU-M2000", micro_batch=2, partials="float")
    half = ipusim.simulate("resnet18", system="IPU-M2000", micro_batch=2, partials="half")
    assert any("partials='half'" in text for text in exact.advice)
    assert not any("partials='half'" in text for text in half.advice)

    def wide(micro_batch):
        g = GraphBuilder("wide")
        return g.finish(g.conv("conv", g.input("x", (micro_batch or 1, 1, 64, 64)), 64, 1))

    large = ipusim.simulate(Model(name="wide", family="wide", build=wide), micro_batch=4)
    assert any("return the argmax" in text for text in large.advice)
    assert not any("return the argmax" in text for text in exact.advice)


@pytest.mark.parametrize(
    ("framework", "iterations", "said"),
    [("pytorch", 1, True), ("pytorch", 1000, False), ("popart", 1, False)],
)
def test_what_lies_between_two_runs_is_worth_more_iterations(framework, iterations, said):
    options = {"system": "IPU-M2000", "framework": framework, "device_iterations": iterations}
    report = ipusim.simulate("resnet18", **options)
    assert any("more device_iterations" in text for text in report.advice) == said
    free = ipusim.simulate("resnet18", tier="specification", **options)
    assert not any("device_iterations" in text for text in free.advice)


def test_two_reports_side_by_side(report):
    more = ipusim.simulate("resnet18", system="IPU-M2000", micro_batch=4)
    table = ipusim.compare(report, more)
    assert table.loc["throughput, items/s", "ratio"] == pytest.approx(
        more.throughput.value / report.throughput.value
    )
    assert table.loc["host work, ms", "a"] == 0 and math.isnan(table.loc["host work, ms", "ratio"])
    assert table.loc["conv, cycles", "b"] > table.loc["conv, cycles", "a"]


def test_energy_and_price_of_an_item(report):
    assert report.energy_per_item_j == pytest.approx(report.power.value / report.throughput.value)
    assert report.price_per_item(3.6) == pytest.approx(1e-3 / report.throughput.value)
    with pytest.raises(ipusim.IpuSimError, match="price per hour is -1"):
        report.price_per_item(-1)
