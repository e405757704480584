"""The examples of CONTRIBUTING.md do what they say."""

import re
from pathlib import Path

import pytest

import ipusim
from ipusim.workload.zoo import registry

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    marked = rf"<!-- {name} -->\n```(?:python|toml)\n(.*?)```\n<!-- end {name} -->"
    return re.search(marked, TEXT, re.DOTALL)[1]


@pytest.fixture
def zoo_as_it_is():
    yield
    del registry.NETWORKS["tiny_mlp"]


@pytest.mark.usefixtures("zoo_as_it_is")
def test_a_network_is_one_place():
    space = {"__name__": "example"}
    exec(compile(example("network"), "CONTRIBUTING.md", "exec"), space)
    graph = ipusim.zoo.load("tiny_mlp").graph(micro_batch=1)
    assert (graph.macs, graph.parameters) == (2560, 2570)
    assert space["report"].throughput.value > 0


def test_a_machine_is_a_file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(example("machine"))
    report = ipusim.simulate("mcmc_bnn", system=str(path))
    assert ipusim.load_system(path) == report.config.system
    assert (report.system, report.chip, report.config.replicas) == ("Two fast cards", "Fast", 8)
    assert report.config.system.chip.clock_hz == 1_500_000_000


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
