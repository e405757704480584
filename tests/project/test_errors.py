"""Names are matched kindly, and every error is one sentence that says what to do."""

import pytest
from hypothesis import given, strategies as st

from ipusim import errors

NAMES = ("C2", "IPU-M2000", "IPU-POD16", "IPU-POD64", "Bow Pod16", "Bow Pod64")


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("c2", "C2"),
        ("ipu m2000", "IPU-M2000"),
        ("IPU_M2000", "IPU-M2000"),
        ("bow-pod-16", "Bow Pod16"),
        ("BOWPOD64", "Bow Pod64"),
        (" Ipu.Pod16 ", "IPU-POD16"),
    ],
)
def test_spelling_does_not_matter(given_name: str, expected: str) -> None:
    assert errors.resolve_name("system", given_name, NAMES) == expected


def test_alias_resolves_but_never_hides_a_name() -> None:
    aliases = {"M2000": "IPU-M2000", "c2": "IPU-POD16"}
    assert errors.resolve_name("system", "m2000", NAMES, aliases) == "IPU-M2000"
    assert errors.resolve_name("system", "C2", NAMES, aliases) == "C2"


@pytest.mark.parametrize(
    ("given_name", "nearest"),
    [("Bow Pod61", "Bow Pod16"), ("M2000", "IPU-M2000"), ("c3", "C2"), ("ipupod", "IPU-POD16")],
)
def test_unknown_name_names_the_nearest(given_name: str, nearest: str) -> None:
    assert errors.nearest_name(given_name, NAMES) == nearest
    with pytest.raises(errors.UnknownNameError, match=repr(nearest)) as caught:
        errors.resolve_name("system", given_name, NAMES)
    assert repr(given_name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 2, 2.5, b"C2", ["C2"]])
def test_a_name_that_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(errors.UnknownNameError) as caught:
        errors.resolve_name("system", value, NAMES)
    assert f"Unknown system {value!r}:" in str(caught.value)


def test_long_lists_are_not_printed() -> None:
    many = [f"model{index}" for index in range(100)]
    assert len(str(errors.unknown_name("model", "modle7", many))) < 100


def test_nothing_available_is_said_plainly() -> None:
    assert "no study is available" in str(errors.unknown_name("study", "x", []))


def test_every_error_has_one_base() -> None:
    for name in ("ConfigError", "UnknownNameError", "WorkloadError", "DataError", "StudyError"):
        assert issubclass(getattr(errors, name), errors.IpuSimError)


@given(
    name=st.sampled_from(NAMES),
    separators=st.lists(st.sampled_from(["", " ", "-", "_", "."]), min_size=10, max_size=10),
    upper=st.booleans(),
)
def test_any_separators_and_case_resolve(name: str, separators: list[str], upper: bool) -> None:
    bare = errors.normalise_name(name)
    spelt = "".join(a + b for a, b in zip(bare, separators, strict=False))
    spelt += bare[len(separators) :]
    assert errors.resolve_name("system", spelt.upper() if upper else spelt, NAMES) == name


@given(value=st.text(max_size=20))
def test_the_nearest_name_is_valid_and_deterministic(value: str) -> None:
    nearest = errors.nearest_name(value, NAMES)
    assert nearest in NAMES
    assert nearest == errors.nearest_name(value, NAMES)
