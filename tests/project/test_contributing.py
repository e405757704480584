"""The examples of CONTRIBUTING.md do what they say, and nothing else is to be touched."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_study import write_study

import ipusim
from ipusim.workload.zoo import registry

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(heading: str, kind: str) -> str:
    """The first example of a kind below a heading that begins so."""
    return re.search(rf"^## {heading}.*?^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def zoo_as_it_is():
    yield
    del registry.NETWORKS["tiny_mlp"]


@pytest.mark.usefixtures("zoo_as_it_is")
def test_a_network_is_one_place():
    space = {"__name__": "example"}
    exec(compile(example("A network", "python"), "CONTRIBUTING.md", "exec"), space)
    graph = ipusim.zoo.load("tiny_mlp").graph(micro_batch=1)
    assert (graph.macs, graph.parameters) == (2560, 2570)
    assert space["report"].throughput.value > 0


def test_a_machine_is_a_file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(example("A chip or a system", "toml"))
    report = ipusim.simulate("mcmc_bnn", system=str(path))
    assert ipusim.load_system(path) == report.config.system
    assert (report.system, report.chip, report.config.replicas) == ("Two fast cards", "Fast", 8)
    assert report.config.system.chip.clock_hz == 1_500_000_000


def change(root: Path, diff: str) -> None:
    """Put added lines after the lines above them, which stand once, or at the end of a file."""
    for part in diff.split("--- ")[1:]:
        name, *lines = part.splitlines()
        before, added = (
            "".join(f"{line[1:]}\n" for line in lines if line[0] == mark) for mark in " +"
        )
        text = (root / name).read_text(encoding="utf-8")
        assert not before or text.count(before) == 1
        changed = text.replace(before, before + added) if before else text + added
        (root / name).write_text(changed, encoding="utf-8")


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """What runs Python in a copy in which everything was done that CONTRIBUTING.md shows."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("ipusim", "data", "notebooks"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for diff in re.findall(r"^```diff\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE):
        change(root, diff)
    named = r"^<!-- (file|cell) (.*?) -->\n```\w+\n(.*?)^```"
    for kind, name, content in re.findall(named, TEXT, re.DOTALL | re.MULTILINE):
        if kind == "cell":
            write_study(root / "notebooks", Path(name).stem, content)
        else:
            (root / name).write_text(content, encoding="utf-8")
    paths = os.pathsep.join(map(str, (root, ROOT / "tests", ROOT / "tests" / "study")))

    def run(script: str) -> dict:
        command = [sys.executable, "-c", f"import json\nimport ipusim\n{script}"]
        environment = {**os.environ, "PYTHONPATH": paths}
        ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])

    return run


OPTION = """
from ipusim import cli
from ipusim.errors import ConfigError
from ipusim.study.data.runs import RunConfiguration
power = ipusim.sweep("mcmc_bnn", host_w=[0, 700], progress=False)["power_w"].tolist()
try:
    ipusim.simulate("mcmc_bnn", host_w=-1)
except ConfigError as error:
    refusal = str(error)
told = "host_w : int [W]" in ipusim.simulate.__doc__
column = "host_w" in RunConfiguration.__dataclass_fields__
cli.main(["simulate", "mcmc_bnn", "--host-w", "700", "--json"])
print()
print(json.dumps([power, refusal, told, column]))
"""


def test_an_option_is_one_line_and_its_consumer(changed):
    (without, with_it), refusal, told, column = changed(OPTION)
    assert with_it == pytest.approx(without + 700)
    assert refusal == "The option host_w is -1: give a whole number, 0 or more."
    assert told
    assert column


OPERATORS = """
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.operators.cumsum import Cumsum

def build(batch):
    g = GraphBuilder("own")
    x = g.linear("first", g.input("x", (batch or 1, 64)), 100)
    x = g.elementwise("activation", "log_sigmoid", x)
    shape = g.shape(x)
    x = g.apply("sums", Cumsum(outer=shape[0], length=shape[1]), (x,), shape)
    return g.finish(g.linear("last", x, 10))

own = Model(name="own", family="own", build=build, loss="cross_entropy")
layers = ipusim.simulate(own, mode="training", micro_batch=4).layers.set_index("op")
print(json.dumps(layers["supersteps"].to_dict()))
"""


def test_operators_are_two_lines_or_two_files(changed):
    supersteps = changed(OPERATORS)
    assert supersteps["activation"] == 2
    assert supersteps["sums"] == supersteps["sums.gradient"] == 7  # 2^7 is the first above 100
    assert {"activation.share", "activation.part", "activation.gradient"} <= supersteps.keys()


STUDY = """
from study_small import small_verdicts
from test_coverage import lines_of
from ipusim.study import coverage
from ipusim.study.book import catalogue
from ipusim.study.book.notebook import read_notebook

(study,) = catalogue.select_studies(["again"])
coverage._compared = lines_of
known = coverage.coverage(small_verdicts()).set_index("row_id")
output_dir = ""
exec("".join(read_notebook(study.path)["cells"][-1]["source"]))
answers = known.loc[["again.1", "again.claims.AG1"], ["where", "answer", "verdict"]]
print(json.dumps([answers.values.tolist(), frame["calibrated"].tolist()]))
"""


def test_a_study_is_three_places(changed):
    (row, claim), (latency,) = changed(STUDY)
    assert row[:2] == ["07_again", "predicted"]
    assert claim == ["07_again", "derived", "hit"]
    assert 1 < latency < 3


def test_files_and_folders_that_it_names_exist():
    named = re.findall(r"`((?:data|workload|compiler|runtime|numerics|tests|docs)/[\w./]*)`", TEXT)
    missing = [
        name
        for name in set(named)
        if not name.endswith("/x.py")
        and not name.endswith("x.toml")
        and not ((ROOT / name).exists() or (ROOT / "ipusim" / name).exists())
    ]
    assert len(named) > 8
    assert not missing
