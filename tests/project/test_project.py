"""The repository itself: dependencies in step, import contract, Makefile, no stray paths."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import LONGEST_FILES
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"matplotlib-base": "matplotlib"}
IMPORT_NAMES = {"beautifulsoup4": "bs4", "protobuf": "google", "pyyaml": "yaml"}
PREDICTING = (
    *("machine", "workload", "compiler", "numerics", "runtime", "api.py", "report"),
    *("sweeps.py", "parts.py", "workers.py"),
)


def requirements(lines: list[str]) -> dict[str, Requirement]:
    parsed = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


RUNTIME = requirements(PROJECT["dependencies"])
CLUSTER = requirements(PROJECT["optional-dependencies"]["cluster"])
EXPORTS = requirements(PROJECT["optional-dependencies"]["exports"])
TEST = requirements(PROJECT["optional-dependencies"]["test"])


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    """Name -> version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;]+", line), f"not an exact pin: {line}"
            name, version = line.split("==")
            found[canonicalize_name(name)] = version
    return found


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Text files that git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / line for line in listing.stdout.splitlines()]
    binary = {".png", ".zip", ".onnx", ".gz", ".npz"}
    return [file for file in files if file.is_file() and file.suffix not in binary]


def test_conda_environment_is_in_step() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    conda = [line for line in environment["dependencies"] if isinstance(line, str)]
    pip = [line["pip"] for line in environment["dependencies"] if isinstance(line, dict)]
    assert pip == [["-e ."]]
    listed = requirements(conda)
    assert str(listed.pop("python").specifier) == PROJECT["requires-python"]
    listed.pop("pip")
    renamed = {CONDA_NAMES.get(name, name): line.specifier for name, line in listed.items()}
    assert renamed == {name: line.specifier for name, line in RUNTIME.items()}


@pytest.mark.parametrize("name", sorted(RUNTIME | TEST))
def test_pin_satisfies_floor(name: str, pins: dict[str, str]) -> None:
    requirement = (RUNTIME | TEST)[name]
    assert requirement.specifier, f"{name} has no floor"
    assert requirement.specifier.contains(pins[name]), f"{name}=={pins[name]}"


def test_what_a_cluster_needs_is_tested() -> None:
    assert {name: TEST[name].specifier for name in CLUSTER} == {
        name: line.specifier for name, line in CLUSTER.items()
    }


def test_known_bad_versions_are_excluded() -> None:
    assert not TEST["nbval"].specifier.contains("0.10.0")
    assert not TEST["coverage"].specifier.contains("7.6.0")


def test_everything_that_gets_installed_is_pinned(pins: dict[str, str]) -> None:
    """Follow the installed metadata from our requirements to everything they pull in."""
    waiting = list((RUNTIME | TEST).values())
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        for line in importlib.metadata.requires(requirement.name) or []:
            needed = Requirement(line)
            wanted = {"", *requirement.extras}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in wanted):
                waiting.append(needed)
    missing = {name for name, _ in seen} - set(pins)
    assert not missing


def third_party_imports(folder: Path) -> set[str]:
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"ipusim"}


def import_names(*declared: dict[str, Requirement]) -> set[str]:
    names = {name for requirements_ in declared for name in requirements_}
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def test_the_package_imports_only_what_it_declares() -> None:
    # IPython comes with ipykernel.
    allowed = import_names(RUNTIME, CLUSTER) | {"IPython"}
    assert third_party_imports(ROOT / "ipusim") <= allowed


def test_the_tests_import_only_what_is_declared() -> None:
    local = {file.stem for file in (ROOT / "tests").rglob("*.py")} | {"tests"}
    assert third_party_imports(ROOT / "tests") - local <= import_names(RUNTIME, TEST, EXPORTS)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--config", folder / "pyproject.toml", "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


def test_import_contract_holds() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("stage", "line"),
    [
        ("machine", "from ipusim.compiler import planner"),
        ("compiler", "from ipusim import study"),
        ("workload", "import ipusim.study.data.published"),
    ],
)
def test_import_contract_bites(stage: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ipusim", tmp_path / "ipusim")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "ipusim" / stage / "intruder.py").write_text(f'"""Intruder."""\n{line}\n')
    result = lint_imports(tmp_path)
    assert result.returncode == 1
    assert "BROKEN" in result.stdout
    assert "intruder" in result.stdout


def data_folders_named(file: Path) -> set[str]:
    """Return which of the forbidden data folders the string literals of a module name."""
    tree = ast.parse(file.read_text())
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings
    ]
    return {part for text in texts for part in re.findall(r"(?:^|/)(published|runs)(?=/|$)", text)}


def test_what_predicts_reads_no_published_value() -> None:
    files = [
        file
        for name in PREDICTING
        for file in (
            [ROOT / "ipusim" / name]
            if name.endswith(".py")
            else (ROOT / "ipusim" / name).rglob("*.py")
        )
        if file.exists()
    ]
    assert len(files) > 10
    guilty = {str(file.relative_to(ROOT)): data_folders_named(file) for file in files}
    assert not {file: names for file, names in guilty.items() if names}


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_targets_named_by_the_readme_and_by_ci_exist() -> None:
    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs/ci").iterdir())]
    named = set(re.findall(r"`?make ([a-z][a-z-]*)`?", "\n".join(texts)))
    assert {"reproduce", "test", "nightly"} <= named
    assert named <= makefile_targets()


def test_phony_targets_exist() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert set(phony.group(1).split()) == makefile_targets()


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().rstrip().endswith("make test")
    subprocess.run(["bash", "-n", script], check=True)


def test_make_says_when_there_is_no_python(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    result = subprocess.run(
        ["make", "test", "PYTHON=no-such-python"], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "No Python >= 3.11" in result.stderr
    assert not (tmp_path / ".venv").exists()


# Built from pieces, so that this file does not contain what it looks for.
FORBIDDEN = {
    "a machine path": re.compile("/(?:" + "root|home|work" + ")/[a-z]"),
    "the folder beside the repository": re.compile(r"\.\." + "/shared|/shared/(?:facts|seeds)"),
    "an unfinished mark": re.compile(r"\b(?:" + "TO" + "DO|FIX" + "ME|X" + r"XX)\b"),
}

PICTURE_DATA = re.compile(r'\s*"image/png": ')
"""A line of a notebook that holds a picture in base 64, in which any letters may meet."""


def test_no_stray_paths_or_marks(tracked: list[Path]) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {what}: {line.strip()[:100]}"
        for file in tracked
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line) and not PICTURE_DATA.match(line)
    ]
    assert not found, "\n".join(found)


def test_ignored_things_are_not_tracked(tracked: list[Path]) -> None:
    parts = {part for file in tracked for part in file.relative_to(ROOT).parts}
    assert not parts & {".venv", "build", "__pycache__", ".ipynb_checkpoints", ".hypothesis"}


@pytest.mark.parametrize("failing", [(), ("ruff",), ("ruff", "python"), ("lint-imports",)])
def test_make_test_runs_every_part_and_names_those_that_failed(tmp_path: Path, failing) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    commands = tmp_path / "elsewhere" / "bin"
    commands.mkdir(parents=True)
    for name in ("python", "ruff", "lint-imports", "ipusim"):
        (commands / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >> log\nexit {int(name in failing)}\n'
        )
        (commands / name).chmod(0o755)
    (tmp_path / "elsewhere" / ".installed").touch()
    done = subprocess.run(
        ["make", "test", "VENV=elsewhere"], cwd=tmp_path, capture_output=True, text=True
    )
    ran = (tmp_path / "log").read_text()
    assert "ruff check" in ran and " tests\n" in ran and "--nbval" in ran
    failed = ["lint"] * bool({"ruff", "lint-imports"} & {*failing})
    failed += ["tests-and-notebooks"] * ("python" in failing)
    assert done.returncode == (2 if failed else 0)
    assert not failed or f"failed: {' '.join(failed)}\n" in done.stderr


def test_the_files_begun_first_exist():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    names += [path.name for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert [name for name in LONGEST_FILES if names.count(name) != 1] == []
