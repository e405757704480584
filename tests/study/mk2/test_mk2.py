"""The claims of the MK2 blog: what is compared, by which arithmetic, and what a bound means."""

import math
import shutil

import pandas as pd
import pytest
from study_small import VERDICT_COLUMNS

from ipusim import files
from ipusim.errors import DataError, StudyError
from ipusim.study import book
from ipusim.study.claims import allowed, judge, load_specs, study_rows
from ipusim.study.data.published import load_claims
from ipusim.study.mk2 import study as mk2
from ipusim.study.verdicts.compare_gpu import gpu_compare


def made_up_verdicts(*, interval: float = math.nan) -> pd.DataFrame:
    """Verdicts in which every throughput is 1,000 per second and every latency 4 ms."""
    lines = []
    for row in study_rows("mk2"):
        value = 1000.0 if row.metric == "throughput" else 4.0
        value = 49.0 if row.metric not in ("throughput", "latency") else value
        line = dict.fromkeys(VERDICT_COLUMNS, "") | {
            "row_id": row.row_id,
            "published": row.value,
            "calibrated": value,
            "low80": value / interval,
            "high80": value * interval,
            "status": "predicted",
        }
        lines.append(line)
    return pd.DataFrame(lines)


@pytest.fixture(scope="module")
def frame():
    return mk2.compare_claims(frame=made_up_verdicts(interval=1.2)).set_index("claim_id")


def published_rate(row_id: str) -> float:
    rows = gpu_compare().set_index("row_id")
    return float(rows.loc[row_id, "published"])


def test_every_claim_has_a_line_and_every_line_a_claim():
    claims = set(load_claims("mk2")["claim_id"])
    assert [spec.claim_id for spec in load_specs("mk2")] == list(load_claims("mk2")["claim_id"])
    assert len(claims) == 21


def test_every_line_says_what_is_assumed_or_why_there_is_nothing():
    for spec in load_specs("mk2"):
        assert spec.not_modelled or (spec.assumed and spec.source), spec.key


def test_a_ratio_of_rates(frame):
    line = frame.loc["GB04"]
    assert line["predicted"] == pytest.approx(1000.0 / published_rate("gpu.G002"))
    assert line["claimed"] == 2.6
    assert line["per_chip"] == pytest.approx(line["predicted"] / 4)
    assert line["implied_gpu_rate"] == pytest.approx(1000.0 / 2.6)


def test_a_published_gpu_counts_as_exact(frame):
    line = frame.loc["GB04"]
    assert line["low80"] == pytest.approx(line["predicted"] / 1.2)
    assert line["high80"] == pytest.approx(line["predicted"] * 1.2)


def test_a_ratio_of_latencies_puts_the_gpu_above(frame):
    gpu_s = 1 / published_rate("gpu.G121")
    assert frame.loc["GB10", "predicted"] == pytest.approx(gpu_s / 4e-3)
    assert math.isnan(frame.loc["GB10", "per_chip"])


def test_phases_add_up_before_they_are_divided(frame):
    (spec,) = (item for item in load_specs("mk2") if item.key == "GB01")
    first, second = spec.parts
    ipu_s = (first.ipu_items + second.ipu_items) / 1000.0
    gpu_s = first.gpu_items / published_rate(first.gpus[0]["row"])
    gpu_s += second.gpu_items / published_rate(second.gpus[0]["row"])
    assert frame.loc["GB01", "predicted"] == pytest.approx(gpu_s / ipu_s)
    # 64 IPUs against the 8 boards of a DGX A100
    assert frame.loc["GB01", "per_chip"] == pytest.approx(gpu_s / ipu_s * 8 / 64)


def test_hours_of_a_run_and_their_ratio_to_the_blogs_own(frame):
    hours = 200 * 49.0 / 3600
    assert frame.loc["GB15", "predicted"] == pytest.approx(hours)
    assert frame.loc["GB16", "predicted"] == pytest.approx(48 / hours)
    assert frame.loc["GB15", "verdict"] == "hit"  # less than three hours


def test_a_gpu_without_software_is_never_slower(frame):
    known = frame[frame["against_bare_gpu"].notna() & frame["gpu_side"].str.contains("modelled")]
    assert (known["against_bare_gpu"] <= known["predicted"] * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("predicted", "qualifier", "verdict"),
    [
        (10.0, "over", "hit"),
        (5.0, "more than", "hit"),
        (4.0, "over", "near"),
        (3.0, "over", "miss"),
        (2.0, "less than", "hit"),
        (7.0, "less than", "miss"),
        (10.0, "", "miss"),
    ],
)
def test_a_bound_is_kept_from_one_side(predicted, qualifier, verdict):
    error, found = judge(predicted, allowed("5", qualifier))
    assert found == verdict
    agrees = verdict == "hit" and qualifier
    assert error == pytest.approx(0 if agrees else 100 * (predicted / 5.0 - 1))


def test_the_blogs_own_ratios_count_four_chips(frame):
    quotients = mk2.chip_arithmetic(frame.reset_index()).set_index("model")
    assert list(quotients["quotient"]) == [3.75, 4.0]


def test_nearest_published_gpu_row(frame):
    nearest = mk2.implied_rows(frame.reset_index()).set_index("claim_id")
    line = nearest.loc["GB04"]
    rows = gpu_compare()
    same = rows[(rows["model"] == "ResNet-50 v1.5") & (rows["task"] == "training")]
    same = same[same["gpus"] == 1]
    best = (same["published"] / line["implied_gpu_rate"] - 1).abs().min()
    assert abs(line["difference_percent"]) == pytest.approx(100 * best)


def test_an_unmodelled_row_leaves_its_claim_open_with_the_reason():
    verdicts = made_up_verdicts()
    chosen = verdicts["row_id"] == "results.training.098"
    verdicts.loc[chosen, ["status", "note"]] = ["not_modelled", "for a reason"]
    line = mk2.compare_claims(frame=verdicts).set_index("claim_id").loc["GB04"]
    assert line["status"] == "not_modelled"
    assert line["note"] == "for a reason"
    assert math.isnan(line["predicted"])


def test_views_show_every_claim_and_draw_every_ratio(frame):
    shown = frame.reset_index()
    page = book.open("mk2")
    table = page.table("mk2_claims", shown)
    assert len(table.cells) == 21
    # as the blog prints it, and not with the digits of a prediction
    assert [line[5] for line in table.cells][2:4] == ["3.4", "2.6"]
    assert len(page.table("mk2_sources", mk2.sources_frame()).cells) == 22
    figure = page.figure("mk2_claims", shown).figure
    ratios = page.table("mk2_arithmetic", shown).frame
    assert len(figure.axes[0].get_yticks()) == len(ratios) > 10
    with pytest.raises(StudyError, match="No ratio"):
        page.figure("mk2_claims", shown[shown["status"] != "predicted"])


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"throughput_ratio"', '"speed"', "'quantity' of 'GB03'.*'speed'.*throughput_ratio"),
        ("[GB05", "[GB99", "'GB99'.*none of the published"),
        ("gpu.G002", "gpu.X002", "gpu.X002"),
        ("gpu_items = 461242368", 'gpu_items = "many"', "'gpu_items' of 'GB01'.*'many'.*a number"),
        ("note = ", "remark = ", "'remark' of 'GB01'.*did you mean"),
        ("not_modelled = ", "source = ", "'GB02'.*parts or a reason"),
    ],
)
def test_damaged_specifications_give_one_sentence(tmp_path, monkeypatch, before, after, says):
    frame = made_up_verdicts()
    folder = tmp_path / "data"
    shutil.copytree(files.data_dir(), folder, ignore=shutil.ignore_patterns("expected"))
    monkeypatch.setenv(files.DATA_DIR_VARIABLE, str(folder))
    path = folder / "runs" / "claims_mk2.toml"
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(DataError, match=says) as caught:
        mk2.compare_claims(frame=frame)
    assert "\n" not in str(caught.value)
