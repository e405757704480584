"""Refresh what README.md and docs/ show of the simulator: pictures, tables, an example.

Run ``python docs/refresh.py`` after anything that changes a prediction; a test of tests/project
tells when that was forgotten. With ``--notebooks`` the notebooks are run again in place as well.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from ipusim import cli
from ipusim.drawing import drawn
from ipusim.files import write_bytes, write_text
from ipusim.look import figure_bytes
from ipusim.runtime.options.spec import OPTIONS
from ipusim.study.book.execute import interrupts_reach_cells, run_notebook
from ipusim.study.book.notebook import cleaned, notebook_text, read_notebook
from ipusim.study.evidence import operations as evidence
from ipusim.study.evidence.memory import network_memory_table
from ipusim.study.fidelity.ledger import families_apart
from ipusim.study.specs import load_spec
from ipusim.study.table import format_percent
from ipusim.study.tamu import scaling as tamu_scaling
from ipusim.study.verdicts.compare import verdicts
from ipusim.workload.loading import ONNX_OPTIONS

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(ROOT / name for name in ("README.md", "docs/evidence.md", "docs/using.md"))
PICTURE_DPI = 120
IPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
EXAMPLE = (
    "simulate",
    "resnext101_32x4d",
    "--system",
    "C2",
    "--micro-batch",
    "2",
    "--host-dtype",
    "float32",
)
_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(\n<!-- end \2 -->)", re.DOTALL)


def example_block() -> str:
    """Return the CLI example with its real output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        cli.main(list(EXAMPLE))
    return f"```console\n$ ipusim {' '.join(EXAMPLE)}\n{output.getvalue().rstrip()}\n```"


def _cell(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.1f}"


HEADLINE = ("what", "values", "without adopted", "specification", "calibrated", "90 % below",
            "per run", "per family", "hits", "in interval")  # fmt: skip
HEADLINE_GROUPS = 9
"""Columns and lines of the table in README.md: all values, the four classes, chips apart."""


def accuracy_block(frame: pd.DataFrame, *, headline: bool = False) -> str:
    """Return how far predictions are from published values: known families, chips and others apart.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on every row.
    headline : bool
        The lines and the columns of README.md alone.
    """
    lines = [
        {
            "what": line["group"],
            "values": str(line["rows"]),
            "runs": str(line["runs"]),
            "without adopted": _cell(line["sourced_median_percent"]),
            "specification": _cell(line["specification_median_percent"]),
            "calibrated": _cell(line["median_abs_error_percent"]),
            "90 % below": _cell(line["p90_abs_error_percent"]),
            "bias of time": format_percent(line["bias_percent"]),
            "per run": _cell(line["median_of_runs_percent"]),
            "per family": f"{_cell(line['median_of_families_percent'])} of {line['families']}",
            "hits": f"{line['hits']} ({line['timed_hits']})",
            "in interval": f"{line['inside_percent']:.0f} %",
        }
        for line in families_apart(frame).to_dict("records")
    ]
    names = HEADLINE if headline else tuple(lines[0])
    cells = [names, ("---",) * len(names)]
    lines = lines[:HEADLINE_GROUPS] if headline else lines
    cells += [[line[name] for name in names] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def evidence_block() -> str:
    """Return the table of the lower layers: vertices, operations, measured Mk1 layers."""
    lines = ["| checked against | rows | typical error | large error |", "|---|---|---|---|"]
    for row in evidence.vertices_table().to_dict("records"):
        lines.append(
            f"| silicon: {row['vertex']} | {row['rows']} "
            f"| mean {_cell(row['mean_abs_error_percent'])} "
            f"| largest {_cell(row['max_abs_error_percent'])} |"
        )
    groups = (evidence.PRODUCTS, evidence.RECURRENT)
    operations = pd.concat([evidence.operations_table(group) for group in groups])
    for row in operations.to_dict("records"):
        lines.append(
            f"| IPUModel: {row['operation']}, {row['chip']}, {row['snapshot']} | {row['rows']} "
            f"| median {_cell(row['median_abs_error_percent'])} "
            f"| 90th percentile {_cell(row['p90_abs_error_percent'])} |"
        )
    for row in network_memory_table().to_dict("records"):
        lines.append(
            f"| memory of networks: {row['category']}, {row['use']} | {row['rows']} "
            f"| median {_cell(row['median_abs_error_percent'])} "
            f"| 90th percentile {_cell(row['p90_abs_error_percent'])} |"
        )
    for row in evidence.mk1_layers_table().to_dict("records"):
        lines.append(
            f"| silicon: grouped convolutions on GC2, stage {row['stage']} | {row['rows']} "
            f"| median {_cell(row['median_abs_error_percent'])} "
            f"| largest {_cell(row['max_abs_error_percent'])} |"
        )
    return "\n".join(lines)


STUB = ROOT / "ipusim" / "runtime" / "options" / "hints.pyi"
_STUB_HEAD = """# Written by docs/refresh.py from the table of options in spec.py.
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict"""


def option_stub() -> str:
    """Return what editors know of the options of a run, and of these and `from_onnx`."""
    kinds = {
        "RunOptions(TypedDict": {name: one.kind.hint for name, one in OPTIONS.items()},
        "ModelOptions(RunOptions": ONNX_OPTIONS,
    }
    lines = [_STUB_HEAD]
    for kind, hints in kinds.items():
        lines += ["", f"class {kind}, total=False):"]
        lines += [f"    {name}: {hint}" for name, hint in hints.items()]
    return "\n".join([*lines, ""])


class Picture(NamedTuple):
    """A figure of README.md.

    Attributes
    ----------
    frames : callable
        Returns the tables behind it.
    draw : callable
        Draws it from these.
    """

    frames: Callable[[], tuple[pd.DataFrame, ...]]
    draw: Callable[..., Figure]


def _scaling() -> tuple[pd.DataFrame, ...]:
    rows = tamu_scaling.scaling_frame(verdicts(tamu_scaling.scaling_rows()))
    return tamu_scaling.scaling_line(IPUS), tamu_scaling.with_other_host(rows)


def _draw_scaling(line: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    study, tables = load_spec("tamu"), {"rows": rows, "line": line}
    return drawn(study["figures"]["tamu_scaling"], tables, study["looks"])


PICTURES = {
    "tamu_scaling": Picture(frames=_scaling, draw=_draw_scaling),
}
"""The pictures of README.md by name; they are stored as docs/<name>.png."""


def picture_path(name: str) -> Path:
    """Return the file of a picture."""
    return ROOT / "docs" / f"{name}.png"


def picture_data(frames: tuple[pd.DataFrame, ...]) -> str:
    """Return the numbers behind a picture as text."""
    texts = [
        frame.to_csv(index=False, float_format="%.4g", lineterminator="\n") for frame in frames
    ]
    return "\n".join(texts)


def picture_bytes(picture: Picture) -> bytes:
    """Draw a picture; the numbers behind it go with it, so that a test can compare them."""
    frames = picture.frames()
    told = picture_data(frames)
    return figure_bytes(picture.draw(*frames), "png", dpi=PICTURE_DPI, Description=told)


def picture_description(content: bytes) -> str:
    """Return the numbers that a picture carries.

    Parameters
    ----------
    content : bytes
        A PNG file.

    Raises
    ------
    ValueError
        If it carries none.
    """
    position = 8
    while position < len(content):
        length = int.from_bytes(content[position : position + 4])
        kind = content[position + 4 : position + 8]
        data = content[position + 8 : position + 8 + length]
        if kind == b"tEXt" and data.startswith(b"Description\0"):
            return data.partition(b"\0")[2].decode("latin-1")
        position += 12 + length
    raise ValueError("The picture carries no numbers: run docs/refresh.py.")


def shown(text: str, name: str) -> str:
    """Return what stands in one generated block of a text.

    Raises
    ------
    KeyError
        If there is no such block.
    """
    found = {match[2]: match[0][len(match[1]) : -len(match[3])] for match in _BLOCK.finditer(text)}
    return found[name]


def refreshed(text: str, blocks: dict[str, str]) -> str:
    """Return a text with its generated blocks replaced.

    Raises
    ------
    KeyError
        If the text has a block that nothing is generated for.
    """
    return _BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]}{match[3]}", text)


def run_in_place(notebook: Path) -> None:
    """Run a notebook and store it with its outputs, or stop and leave it as it was."""
    with tempfile.TemporaryDirectory() as folder, interrupts_reach_cells():
        executed = Path(folder) / notebook.name
        failure = run_notebook(notebook, executed, {}, progress=sys.stderr.isatty())
        if failure:
            sys.exit(f"{notebook.name} {failure[1]}; it was left as it was.")
        write_text(notebook, notebook_text(cleaned(read_notebook(executed))))


def main() -> None:
    """Rewrite the pages and the pictures, and with ``--notebooks`` the notebooks' outputs."""
    if "--notebooks" in sys.argv[1:]:
        for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
            run_in_place(notebook)
    frame = verdicts(sourced=True)
    blocks = {
        "example": example_block(),
        "headline": accuracy_block(frame, headline=True),
        "accuracy": accuracy_block(frame),
        "evidence": evidence_block(),
    }
    write_text(STUB, option_stub())
    for page in PAGES:
        write_text(page, refreshed(page.read_text(encoding="utf-8"), blocks))
    for name, picture in PICTURES.items():
        write_bytes(picture_path(name), picture_bytes(picture))


if __name__ == "__main__":
    main()
