"""Every published value has a line that says where it is regenerated, and a verdict or a reason."""

import pytest
from study_small import small_verdicts

from ipusim import files
from ipusim.errors import DataError
from ipusim.study import coverage
from ipusim.study.claims import load_specs
from ipusim.study.data.published import claiming, load_claims, load_rows
from ipusim.study.verdicts.compare import NOT_MODELLED, PREDICTED

COMPARED = ("argonne", "mk2", "tamu")


def lines_of(study: str) -> dict[str, list[dict]]:
    """What a recomputed claim says, without computing it."""
    if study not in COMPARED:
        return {}
    found: dict[str, list[dict]] = {}
    for spec in load_specs(study):
        line = {"status": NOT_MODELLED, "note": spec.not_modelled}
        if spec.parts:
            line = {"status": PREDICTED, "predicted": 2.0, "gpu_side": "A100", "verdict": "near"}
        found.setdefault(spec.claim_id, []).append({"note": spec.note} | line)
    return found


@pytest.fixture(scope="module")
def frame():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coverage, "_compared", lines_of)
        return coverage.coverage(small_verdicts())


def test_every_claim_is_answered_once():
    for study in claiming():
        answers = set(coverage.load_answers(study))
        compared = {spec.claim_id for spec in load_specs(study)} if study in COMPARED else set()
        assert not answers & compared
        assert answers | compared == set(load_claims(study)["claim_id"])


def test_every_value_has_a_line_with_a_verdict_or_a_reason(frame):
    claims = sum(len(load_claims(study)) for study in claiming())
    assert claims == 129
    assert frame["kind"].eq("claim").sum() == claims
    assert len(frame) > len(load_rows()) + claims
    assert frame["row_id"].is_unique
    assert (frame["verdict"].ne("") | frame["note"].ne("")).all()
    assert frame.loc[frame["answer"] == coverage.OPEN, "note"].str.len().min() > 5


def test_properties_of_machines_and_networks_are_derived(frame):
    known = frame.set_index("row_id")
    for claim in ("qwant.claims.QW03", "qwant.claims.QW06", "qwant.claims.QW13"):
        assert known.loc[claim, ["answer", "verdict"]].tolist() == [coverage.DERIVED, "hit"]
    assert known.loc["tamu.claims.TA11", "note"].startswith("8, +0.0 %")
    # put into the model, so no test
    assert known.loc["qwant.claims.QW02", "verdict"] == ""


def test_a_claim_that_repeats_a_row_has_its_verdict(frame):
    known = frame.set_index("row_id")
    line = known.loc["qwant.claims.QW09"]
    assert line["answer"] == coverage.RESTATED
    assert line["verdict"] == known.loc["qwant.table1.batch2", "verdict"]


def test_every_kind_of_answer_is_given(frame):
    kinds = ("PREDICTED", "DERIVED", "RESTATED", "TAKEN_OVER", "OPEN")
    assert set(frame["answer"]) == {getattr(coverage, kind) for kind in kinds}


def test_a_claim_without_an_answer_is_named(monkeypatch):
    monkeypatch.setattr(coverage, "_compared", lambda study: {})
    monkeypatch.setattr(coverage, "load_answers", lambda study: {})
    monkeypatch.setattr(coverage, "_of_hardware", list)
    with pytest.raises(DataError, match=r"'QW01' of qwant has neither"):
        coverage.coverage(small_verdicts())


def test_a_damaged_answer_is_named(tmp_path, monkeypatch):
    (tmp_path / "published").mkdir()
    (tmp_path / coverage.FILE).write_text('[qwant]\nQW01 = { rows = "x" }\n')
    monkeypatch.setattr(files, "data_dir", lambda: tmp_path)
    with pytest.raises(DataError, match="'rows' of 'QW01' in published/coverage.toml"):
        coverage.load_answers("qwant")
