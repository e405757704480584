"""The same ResNet-50 in simulators of other accelerators, each in an environment of its own.

Run with ``make bench-peers``. Every tool gets the 53 convolutions and the product of ResNet-50 for
one image and answers what it answers, for an array that it brings along or is published with; what
is compared is how long that takes in a fresh process, not what comes out.
"""

import json
import resource
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ipusim.study.table import Table
from ipusim.workload import zoo

LIMIT_S = 900
"""Seconds after which a tool is ended."""

_OWN = """
import ipusim
from ipusim.compiler.program_cache import keep_programs
with keep_programs(False):
    print(ipusim.simulate("resnet50", micro_batch=1).cycles_per_step)
"""

_ZIGZAG = """
import json, sys
from pathlib import Path
import zigzag
from zigzag.api import get_hardware_performance_zigzag
folder = Path(sys.argv[1])
workload = [
    {
        "id": number,
        "operator_type": "Conv",
        "equation": "O[b][k][oy][ox]+=W[k][c][fy][fx]*I[b][c][iy][ix]",
        "dimension_relations": [f"i{d}={one['stride']}*o{d}+1*f{d}" for d in "xy"],
        "loop_dims": ["B", "K", "C", "OY", "OX", "FY", "FX"],
        "loop_sizes": [1, one["k"], one["c"], *[one["out"]] * 2, *[one["kernel"]] * 2],
        "operand_precision": {"O": 16, "O_final": 8, "W": 8, "I": 8},
        "operand_source": {"W": number, "I": max(0, number - 1)},
    }
    for number, one in enumerate(json.loads((folder / "layers.json").read_text()))
]
given = Path(zigzag.__file__).parent / "inputs"
files = [str(given / kind / "tpu_like.yaml") for kind in ("hardware", "mapping")]
options = {"opt": "latency", "dump_folder": str(folder), "loma_show_progress_bar": False}
print(get_hardware_performance_zigzag(workload, *files, **options)[1])
"""

_SCALESIM = """
import json, sys
from pathlib import Path
from scalesim.scale_sim import scalesim
folder = Path(sys.argv[1])
rows = ["Layer, rows, columns, filter rows, filter columns, channels, filters, stride,"]
for number, one in enumerate(json.loads((folder / "layers.json").read_text())):
    size = (one["out"] - 1) * one["stride"] + one["kernel"]
    sizes = [size, size, one["kernel"], one["kernel"], one["c"], one["k"], one["stride"]]
    rows.append(", ".join(map(str, [f"layer{number}", *sizes])) + ",")
(folder / "topology.csv").write_text("\\n".join(rows) + "\\n")
(folder / "tpu.cfg").write_text('''[general]
run_name = resnet50
[architecture_presets]
ArrayHeight: 256
ArrayWidth: 256
IfmapSramSzkB: 6144
FilterSramSzkB: 6144
OfmapSramSzkB: 2048
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Dataflow: ws
Bandwidth: 10
[run_presets]
InterfaceBandwidth: CALC
''')
files = {"config": str(folder / "tpu.cfg"), "topology": str(folder / "topology.csv")}
scalesim(save_disk_space=True, verbose=False, **files).run_scale(top_path=str(folder))
"""

_GENZ = """
import json, sys
from pathlib import Path
from GenZ import System
from GenZ.analyse_model import analysis_model
from GenZ.Models import OpType, ResidencyInfo
layers = json.loads((Path(sys.argv[1]) / "layers.json").read_text())
dims = [
    [f"layer{number}", 1, one["k"], one["c"], *[one["out"]] * 2, *[one["kernel"]] * 2,
     ResidencyInfo.All_offchip, OpType.CONV2D]
    for number, one in enumerate(layers)
]
print(analysis_model(dims, system=System())["Cycles"].sum())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A tool: how pip names it, first of all that it needs, what it works out, what asks it."""

    packages: tuple[str, ...]
    answers: str
    program: str


PEERS = (
    Peer(
        packages=("zigzag-dse==3.9.1", "six"),  # which it imports and does not ask for
        answers="best mapping of each layer to a TPU-like array",
        program=_ZIGZAG,
    ),
    Peer(
        packages=("scalesim==2.0.2",),
        answers="every cycle of a systolic array of 256 x 256",
        program=_SCALESIM,
    ),
    Peer(
        packages=("genz-llm==0.0.16",),
        answers="roofline of each layer, no mapping",
        program=_GENZ,
    ),
)


def layers() -> list[dict[str, int]]:
    """Return what is computed for one image: filters k, channels c, output field, kernel, stride.

    Fields and kernels of ResNet-50 are square; the product is a convolution of one position.
    """
    ops = [op.params for op in zoo.load("resnet50").graph(1).ops if op.kind in ("conv", "matmul")]
    return [
        {"k": op.n, "c": op.k, "out": 1, "kernel": 1, "stride": 1}
        if op.KIND == "matmul"
        else {
            "k": op.out_channels,
            "c": op.in_channels,
            "out": op.out_field[0],
            "kernel": op.kernel[0],
            "stride": op.stride[0],
        }
        for op in ops
    ]


def environment(packages: Sequence[str], folder: Path) -> Path:
    """Return the Python of an environment with some packages, made where it is missing.

    Raises `subprocess.CalledProcessError` if they cannot be installed.
    """
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        quiet = ("--quiet", "--disable-pip-version-check")
        subprocess.run(
            [python, "-m", "pip", "install", *quiet, *packages],
            capture_output=True,
            text=True,
            check=True,
        )
        (folder / "installed").touch()
    return python


def cpu_seconds(python: Path | str, program: str, folder: Path, limit_s: float = LIMIT_S) -> float:
    """Return the CPU seconds of a program that is given a folder, in a new process.

    Raises `subprocess.CalledProcessError` if it fails, `subprocess.TimeoutExpired` at the limit.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [python, "-c", program, folder],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        timeout=limit_s,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measured(peer: Peer, folder: Path, limit_s: float = LIMIT_S) -> tuple[float, str]:
    """Return the CPU seconds of a tool, NaN with the reason in one sentence if it gave none."""
    name = peer.packages[0]
    place = folder / name.partition("==")[0]
    try:
        python = environment(peer.packages, place)
    except (subprocess.CalledProcessError, OSError) as error:
        return float("nan"), f"{name} cannot be installed here: {_last_line(error)}"
    (place / "layers.json").write_text(json.dumps(layers()))
    try:
        return cpu_seconds(python, peer.program, place, limit_s), ""
    except subprocess.TimeoutExpired:
        return float("nan"), f"{name} had not ended after {limit_s:g} s."
    except subprocess.CalledProcessError as error:
        return float("nan"), f"{name} failed: {_last_line(error)}"


def _last_line(error: Exception) -> str:
    lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
    return lines[-1] if lines else "no reason given."


def comparison(own_s: float, peers: Mapping[str, tuple[str, float]]) -> pd.DataFrame:
    """Return the table: tool, what it answers, CPU seconds, and how many times ours."""
    own = ("ipusim", "plan and cycles of each layer on 1,472 tiles, nothing kept", own_s)
    lines = [own, *((name, answers, seconds) for name, (answers, seconds) in peers.items())]
    frame = pd.DataFrame(lines, columns=["tool", "answers", "cpu_s"])
    return frame.assign(times_ours=frame["cpu_s"] / own_s)


def main() -> int:
    """Print the table, and a sentence for each tool that gave no time."""
    folder = Path("build/peers").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    own_s = min(cpu_seconds(sys.executable, _OWN, folder) for _ in range(3))
    found = {}
    for peer in PEERS:
        seconds, reason = measured(peer, folder)
        found[peer.packages[0]] = (peer.answers, seconds)
        if reason:
            print(reason, file=sys.stderr)
    print(Table(comparison(own_s, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
