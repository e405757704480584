"""The wheel carries its data and notebooks, and simulates outside the tree."""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import ipusim
from ipusim.kernel_cache import cache_folder, source_digest

ROOT = Path(__file__).resolve().parents[2]

PROBE = """
import json, pathlib
import ipusim
from ipusim import files
report = ipusim.simulate("resnet18", system="C2")
print(json.dumps({
    "package": str(pathlib.Path(ipusim.__file__).resolve().parent),
    "data": str(files.data_dir()),
    "notebooks": sorted(path.name for path in files.notebooks_dir().glob("*.ipynb")),
    "latency_s": float(report.latency),
    "cycles": report.cycles_per_step,
}))
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Run a command with nothing inherited that could lead back into the tree."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(cwd), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the working tree by the build backend of this environment."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new venv that holds the wheel and borrows only the dependencies.

    A .pth file adds the site-packages of this environment; .pth files found there, such as that
    of an editable ipusim, are not followed, so ipusim can come from the wheel alone.
    """
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = Path(
        sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)})
    )
    assert site.is_dir()
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(
        sys.executable, "-m", "pip", "--python", python, "install",
        "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", wheel,
        cwd=folder.parent,
    )  # fmt: skip
    return python


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tree's kernels: of the same sources as the wheel's, which take longest to compile."""
    folder = tmp_path_factory.mktemp("kernels") / "numba"
    if (made := cache_folder("kernels") / source_digest()).exists():
        shutil.copytree(made, folder / "ipusim-kernels" / source_digest())
    return str(folder)


def test_wheel_holds_data_and_notebooks(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    expected = [
        f"ipusim/{file.relative_to(ROOT).as_posix()}"
        for folder in ("data", "notebooks")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(file.parts)
    ]
    assert "ipusim/data/hardware/chips.toml" in expected
    assert not set(expected) - set(names)
    assert not [name for name in names if name.startswith(("tests/", "build/", "data/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_simulates_outside_the_tree(clean_python: Path, kernels: str, tmp_path: Path) -> None:
    found = json.loads(run(clean_python, "-c", PROBE, cwd=tmp_path, NUMBA_CACHE_DIR=kernels))
    site = clean_python.parents[1]
    assert Path(found["package"]).is_relative_to(site)
    assert Path(found["data"]).is_relative_to(found["package"])
    assert found["notebooks"] == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert found["latency_s"] > 0
    assert found["cycles"] > 0


def test_wheel_gives_the_cycles_of_the_tree(
    clean_python: Path, kernels: str, tmp_path: Path
) -> None:
    code = 'import ipusim; print(ipusim.simulate("resnet18", system="C2").cycles_per_step)'
    found = run(clean_python, "-c", code, cwd=tmp_path, NUMBA_CACHE_DIR=kernels)
    assert int(found) == ipusim.simulate("resnet18", system="C2").cycles_per_step


def test_console_script_answers(clean_python: Path, tmp_path: Path) -> None:
    program = clean_python.with_name("ipusim")
    assert "simulate" in run(program, "--help", cwd=tmp_path)


@pytest.mark.slow
def test_pip_install_of_the_tree_into_an_empty_venv(tmp_path: Path) -> None:
    """The whole way of a user, every dependency included; needs a package index."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    # The index settings of this machine are wanted here, so the environment is inherited.
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", str(ROOT)],
        cwd=tmp_path,
        check=True,
    )
    cache = str(tmp_path / "numba")
    found = json.loads(run(python, "-c", PROBE, cwd=tmp_path, NUMBA_CACHE_DIR=cache))
    assert Path(found["data"]).is_relative_to(folder)
    assert found["latency_s"] > 0
