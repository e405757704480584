"""The command line. Every command imports what it needs itself, so that starting stays cheap."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipusim.errors import IpuSimError, check_name
from ipusim.files import write_bytes
from ipusim.runtime.options.spec import OPTIONS

if TYPE_CHECKING:
    from ipusim.study.book.index import State

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
PATH = click.Path(path_type=Path)


def _run_options(*, several: bool = False) -> Callable[[Any], Any]:
    """Add the options of a run to a command; `several` lets each have a list of values.

    A value is a text, checked as `ipusim.simulate` checks it (`_told`).
    """

    def add(command: Any) -> Any:
        for name in reversed(OPTIONS):
            option, flag = OPTIONS[name], f"--{name.replace('_', '-')}"
            only = " With --mode training." if option.mode else ""
            more = " May be repeated." if option.is_list else ""
            if option.kind.type == "bool" and not several:
                flag, how = f"{flag}/--no-{flag[2:]}", {"default": None}
            else:
                kind = option.kind.type.removeprefix("list of ").upper()
                how = {"metavar": kind, "multiple": option.is_list or several}
            text = option.summary + only + more
            command = click.option(flag, name, help=text, **how)(command)
        return command

    return add


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="ipusim", prog_name="ipusim")
def cli() -> None:
    """Simulate Graphcore IPUs, and regenerate published IPU results beside what was published."""


_EXAMPLES = {
    "shape": "x=1,3,640,640",
    "size": "sequence=128",
    "value": "sr=16000",
    "values": "tiles=736,1472",
}


def _assigned(kind: str, text: str) -> tuple[str, Any]:
    """Split NAME=VALUE, or refuse it with one sentence.

    NAME is a tensor or dimension of an ONNX file, or a number of a chip; VALUE may be several.
    """
    name, _, values = text.rpartition("=")
    parts = values.removesuffix(",").split(",") if values else []
    try:
        numbers = [one for part in parts for one in _numbers(kind, part)]
    except ValueError:
        numbers = []
    if not name or (not numbers and (values or kind != "shape")):
        raise click.UsageError(f"{text!r} must be such as {_EXAMPLES[kind]!r}.")
    return name, tuple(numbers) if kind == "shape" or len(numbers) > 1 else numbers[0]


def _numbers(kind: str, text: str) -> Sequence[Any]:
    words = {"true": True, "false": False}
    if kind == "values":
        return _span(text)
    if kind == "value" and text.lower() in words:
        return [words[text.lower()]]
    try:
        return [int(text)]
    except ValueError:
        if kind != "value":
            raise
        return [float(text)]


_ONNX_OPTIONS = {
    "shape": ("shape", "the shape of an input"),
    "dim": ("size", "the size of a free dimension"),
    "value": ("value", "the value of an input"),
}


def _told(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, repeated NAME=VALUE ones as mappings."""
    told = {
        name: OPTIONS[name].check(value) if name in OPTIONS and isinstance(value, str) else value
        for name, value in options.items()
        if value not in (None, ())
    }
    return told | {
        f"{name}s": _by_name(kind, told[f"{name}s"])
        for name, (kind, _) in _ONNX_OPTIONS.items()
        if f"{name}s" in told
    }


def _by_name(kind: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return repeated NAME=VALUE options as a mapping; none may have two values."""
    told: dict[str, Any] = {}
    for name, value in (_assigned(kind, text) for text in texts):
        if told.setdefault(name, value) != value:
            raise click.UsageError(f"{name!r} is given as {told[name]} and as {value}: give one.")
    return told


def _onnx_options(command: Any) -> Any:
    """Add what an ONNX file leaves open."""
    text = "Of an ONNX file: time operators that are not supported as memory traffic."
    command = click.option("--allow-unknown", is_flag=True, default=None, help=text)(command)
    for name, (kind, what) in reversed(_ONNX_OPTIONS.items()):
        text = f"Of an ONNX file: {what}, such as {_EXAMPLES[kind]}; may be repeated."
        more = {"metavar": f"NAME={kind.upper()}", "multiple": True, "help": text}
        command = click.option(f"--{name}", f"{name}s", **more)(command)
    return command


@cli.command()
@click.argument("model")
@_onnx_options
@_run_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--trace", type=PATH, help="Also write a trace for Perfetto to this file.")
@click.option("--report", type=PATH, help="Also write a page with figures to this file.")
@click.option("--price-per-hour", type=float, help="Of the chips in use: adds that of an item.")
def simulate(
    model: str,
    as_json: bool,
    trace: Path | None,
    report: Path | None,
    price_per_hour: float | None,
    **options: Any,
) -> None:
    """Predict latency, throughput, power and fit of MODEL, in inference or training.

    MODEL is a name that `ipusim list` shows, or a path ending in .onnx.
    """
    from ipusim import api

    done = api.simulate(model, **_told(options))
    price = None if price_per_hour is None else done.price_per_item(price_per_hour)
    for path, write in ((trace, done.to_perfetto), (report, done.to_html)):
        if path is not None:
            write(path)
    if as_json:
        facts = done.to_dict()
        if price is not None:
            facts["price_per_item"] = price if done.runs else None
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(str(done))
    if price is not None:
        click.echo(f"      price  {price:.4g} per item")


_MOST_IN_SPAN = 1_000_000


def _span(text: str) -> Sequence[Any]:
    """Return what FIRST:LAST[:STEP] stands for, both ends included; other text as it is."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.isdecimal() for part in parts):
        return [text]
    first, last, step = map(int, (*parts, "1")[:3])
    if not step or not 0 <= last - first < _MOST_IN_SPAN * step:
        raise click.UsageError(
            f"{text!r} must be FIRST:LAST[:STEP], the last not below the first, the step 1 or "
            f"more, of at most {_MOST_IN_SPAN:,} numbers."
        )
    return range(first, last + 1, step)


@cli.command()
@click.argument("model")
@_onnx_options
@_run_options(several=True)
@click.option(
    "--chip",
    metavar="NAME=VALUES",
    multiple=True,
    help="Numbers of the chip, such as tiles=736,1472 or clock_hz=1330000000.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--out",
    type=PATH,
    help="Write a .csv or .parquet file instead; a sweep that was ended goes on there.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Worker processes.  [default: one per core]"
)
@click.option("--scheduler", help="Address of a dask scheduler to run on, or 'local'.")
@click.option("--keep-going", is_flag=True, help="Rows that make no sense say why; do not stop.")
def sweep(model: str, as_csv: bool, **given: Any) -> None:
    """Predict MODEL for every combination of options.

    An option takes one value, several (1,2,4) or a range of whole numbers (1:64, 8:512:8), and may
    be repeated. Without --system and --micro-batch it is three machines and four sizes.
    """
    from ipusim import sweeps
    from ipusim.study.book.outputs import frame_csv
    from ipusim.study.table import Table
    from ipusim.workers import available_cores

    options = {name: value for name, value in _told(given).items() if value is not False}
    for name, option in OPTIONS.items():
        if name in options and not option.is_list:
            texts = [text for part in options[name] for text in part.split(",")]
            several = [option.check(one) for text in texts for one in _span(text)]
            options[name] = several if len(several) > 1 else several[0]
    options["chip"] = _by_name("values", given["chip"])
    options["client"] = options.pop("scheduler", None)
    out = options.get("out")
    usual = {"system": ["C2", "IPU-M2000", "Bow-2000"], "micro_batch": [1, 2, 4, 8]}
    usual["jobs"] = available_cores()
    frame = sweeps.sweep(model, **usual | options)
    if out is not None:
        click.echo(f"{len(frame)} rows: {_shown(out)}")
    else:
        click.echo(frame_csv(frame) if as_csv else repr(Table(frame)), nl=not as_csv)


@cli.command()
@click.argument("model")
@_onnx_options
@_run_options()
@click.option("--global-batch", type=int, help="Items per call, in training per weight update.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all that fits as CSV.")
@click.option("--plot", type=PATH, help="Also draw it to this file.")
def plan(model: str, as_csv: bool, plot: Path | None, **options: Any) -> None:
    """Search the ways to run MODEL that fit: latency, throughput, chips, and a line to copy each.

    Options that the search chooses, such as the micro-batch, are kept where they are given.
    """
    from ipusim.planning import plan as search

    if plot is not None:
        from matplotlib.backend_bases import FigureCanvasBase

        kind = plot.suffix.removeprefix(".").lower()
        check_name(f"kind of picture of {str(plot)!r}", kind, FigureCanvasBase.filetypes)
    found = search(model, **_told(options))
    if plot is not None:
        from ipusim.look import figure_bytes

        write_bytes(plot, figure_bytes(found.figure(), kind))
    click.echo(found.frame.to_csv(index=False) if as_csv else repr(found), nl=not as_csv)


_WARMING = (
    {"model": "braggnn", "mode": "training"},
    {"model": "lstm_2_layers"},
    {"model": "resnext50_32x4d", "system": "C2"},
)
"""Runs that between them call every kernel of the planner."""

_ASKED_FIRST = (
    "resnet50",
    "resnext101_32x4d",
    "efficientnet_b0",
    "efficientnet_b4",
    "vit_base_16",
    "bert_base_squad",
    "bert_large_squad",
    "gpt2_small",
    "unet_medical",
)
"""Networks whose programs are kept where nobody says which."""


@cli.command()
@click.argument("models", nargs=-1)
@click.option("--system", default="IPU-M2000", show_default=True, help="Machine to plan them for.")
def warmup(models: tuple[str, ...], system: str) -> None:
    """Compile all kernels, and plan MODELS, so that later commands answer at once.

    Without MODELS it is nine networks of the zoo, among them resnet50 and bert_large_squad.
    """
    from tqdm import tqdm

    from ipusim import api
    from ipusim.compiler.program_cache import keep_programs
    from ipusim.machine import load_system
    from ipusim.workload.loading import load_model

    load_system(system)
    for model in models:
        load_model(model)
    _warm_training()
    runs = [*_WARMING, *({"model": one, "system": system} for one in models or _ASKED_FIRST)]
    with tqdm(runs, desc="warming up", disable=None) as bar:
        for options in bar:
            bar.set_postfix_str(options["model"])
            with keep_programs(options not in _WARMING):
                api.simulate(**options)


def _warm_training() -> None:
    """Train BraggNN for a step in every arithmetic, which calls the kernels of the numerics."""
    from ipusim.compiler.program_cache import keep_programs
    from ipusim.study.argonne.braggnn import training as braggnn

    quick = braggnn.named_schedule("quick")
    plan = replace(quick, train_peaks=64, test_peaks=40, batch=16, steps=1)
    with keep_programs(False):
        braggnn.train_in_each(braggnn.simulate_sets(plan, 0)[0], plan)


@cli.command()
@click.argument("studies", nargs=-1)
@click.option("--resume", is_flag=True, help="Skip studies whose outputs are up to date.")
@click.option(
    "-p", "parameters", multiple=True, metavar="NAME=VALUE", help="Notebook parameter; repeatable."
)
@click.option("--out", type=PATH, default="build", show_default=True, help="Output folder.")
def reproduce(
    studies: tuple[str, ...], resume: bool, parameters: tuple[str, ...], out: Path
) -> int:
    """Run STUDIES (all by default) and write notebooks, tables, figures and a start page."""
    from ipusim.study.book.catalogue import split_assignments
    from ipusim.study.book.reproduce import reproduce as run

    results = run(
        studies,
        out=out,
        given=split_assignments(parameters),
        resume=resume,
        progress=sys.stderr.isatty(),
        tell=partial(_tell, out),
    )
    click.echo(f"start page: {_shown(out / 'index.html')}")
    failed = any(result.status == "failed" for result in results)
    return EXIT_FAILED if failed else EXIT_OK


def _tell(out: Path, result: State) -> None:
    """Say what became of a study as soon as it has run."""
    effort = f", {result.cells} cells in {result.seconds:.0f} s" if result.cells else ""
    click.echo(f"{result.name}: {result.status}{effort}")
    if result.status == "failed":
        click.echo(
            f"ipusim: {result.name} {result.message}; see {_shown(out / result.notebook)}", err=True
        )


@cli.command()
@click.option("--rows", is_flag=True, help="Also print every predicted row.")
@click.option("--record", is_flag=True, help="Record the counts as those that must not fall.")
def validate(rows: bool, record: bool) -> int:
    """Print the validation tables of all tiers; fail when a recorded count of hits falls."""
    from ipusim.study.cached import PooledPredictor
    from ipusim.study.evidence import operations as evidence
    from ipusim.study.evidence.memory import network_memory_table
    from ipusim.study.fit.ran import ran, ran_table
    from ipusim.study.fit.samples import samples_of
    from ipusim.study.fit.scale_out import scaling_rows, scaling_table
    from ipusim.study.table import Table
    from ipusim.study.verdicts import validate
    from ipusim.study.verdicts.compare import verdicts
    from ipusim.study.verdicts.compare_gpu import gpu_compare, gpu_summary
    from ipusim.study.verdicts.intervals import coverage_table, stale_kinds
    from ipusim.study.verdicts.summary import verdict_on
    from ipusim.workers import available_cores

    predictor = PooledPredictor(available_cores())
    frame = verdicts(predictor=predictor, sourced=True)
    tables = validate.validation_tables(frame, rows=rows)
    programs = ran(predictor)
    more = {
        "80 % intervals: published values inside, each interval from other families": (
            coverage_table(frame)
        ),
        "Vertices measured on silicon": evidence.vertices_table(),
        **{title: evidence.operations_table(group) for group, title in evidence.ALL.items()},
        "Memory of whole networks, compiled by Poplar, by category": network_memory_table(),
        f"Memory: {programs}": ran_table(programs),
        "Grouped convolutions measured on one GC2 (Jia et al. 2019), by network stage": (
            evidence.mk1_layers_table()
        ),
        "Scaling apart from level: slowdown against the smallest system of each series": (
            scaling_table(samples_of(scaling_rows(), predictor))
        ),
        "GPU model, leave one model out": gpu_summary(gpu_compare(), by=("mode",)),
    }
    tables += [Table(content, caption=title) for title, content in more.items()]
    click.echo("\n\n".join(repr(table) for table in tables))
    if stale := stale_kinds(frame):
        click.echo(
            f"\nThe intervals of {', '.join(stale)} are not those of these rows: "
            "run 'ipusim calibrate'."
        )
    if record:
        click.echo(f"\nrecorded: {_shown(validate.record_expected(frame))}")
        return EXIT_OK
    fallen = validate.declines(validate.count_verdicts(frame), validate.load_expected())
    for sentence in fallen:
        click.echo(f"ipusim: {sentence}", err=True)
    click.echo(f"\n{'FAIL' if fallen else 'PASS'}: {verdict_on([frame]).lines()[0]}")
    return EXIT_FAILED if fallen else EXIT_OK


@cli.command()
@click.option("--power", is_flag=True, help="Also fit the factors on dynamic energy.")
@click.option("--gpu", is_flag=True, help="Also fit the cost per kernel of GPU software stacks.")
def calibrate(power: bool, gpu: bool) -> None:
    """Fit the constants of stacks and scale-out, and the intervals; write data/calibration.toml."""
    from ipusim.study.cached import PooledPredictor
    from ipusim.study.fit.step_cost import calibrate as fit
    from ipusim.study.verdicts.intervals import calibrate_intervals
    from ipusim.workers import available_cores

    predictor = PooledPredictor(available_cores())
    fitted = fit(predictor, power=power, gpu=gpu)
    for name, call in fitted.steps.calls.items():
        click.echo(f"{name}: {1e6 * call.value:.1f} us per call ({len(call.rows)} rows)")
    for stack, each in fitted.steps.supersteps.items():
        click.echo(
            f"{stack}: {each.value:.0f} cycles per superstep with an exchange "
            f"({len(each.rows)} rows)"
        )
    for name in ("reduction", "collective"):
        latency = getattr(fitted.scale_out, name)
        click.echo(f"{name}: {1e6 * latency.value:.2f} us ({len(latency.rows)} rows)")
    for stack, kernel in fitted.gpu.items() if gpu else ():
        click.echo(f"{stack}: {1e6 * kernel.value:.1f} us per kernel")
    for interval in calibrate_intervals(predictor).values():
        click.echo(
            f"80 % interval of {interval.kind}: x {interval.low:.3f} to x {interval.high:.3f} "
            f"({len(interval.rows)} rows)"
        )
    click.echo(str(fitted.ran))
    scales = fitted.power
    click.echo(f"amp x {scales.amp:.4g}, sram x {scales.sram:.4g} ({len(scales.rows)} rows)")


@cli.command()
@click.argument("file")
@_onnx_options
def check(file: str, allow_unknown: bool | None, **options: Any) -> int:
    """Say what an ONNX FILE holds: inputs, free sizes, work, unsupported operators, assumptions."""
    from ipusim.workload.onnx import check_onnx

    found = check_onnx(file, allow_unknown=bool(allow_unknown), **_told(options))
    click.echo(repr(found))
    return EXIT_OK if found.usable else EXIT_FAILED


@cli.command("list")
def list_() -> None:
    """List the studies, models and systems."""
    from ipusim.machine.system import system_names
    from ipusim.study.book.catalogue import list_studies
    from ipusim.workload import zoo

    sections = {
        "studies": [f"{study.name}  {study.title}" for study in list_studies()],
        "models": zoo.names(),
        "systems": system_names(),
    }
    for title, lines in sections.items():
        click.echo("\n".join([f"{title}:", *(f"  {line}" for line in lines)]))


@cli.command()
@click.argument("study")
def params(study: str) -> None:
    """Show the parameters that STUDY takes with -p."""
    import pandas as pd

    from ipusim.study.book.catalogue import select_studies, study_parameters
    from ipusim.study.table import Table

    (chosen,) = select_studies([study])
    lines = [
        (item.name, item.type_name, item.default, item.help) for item in study_parameters(chosen)
    ]
    frame = pd.DataFrame(lines, columns=["parameter", "type", "default", "meaning"])
    click.echo(repr(Table(frame, caption=chosen.name)))


@cli.command("clean-notebooks")
@click.argument("notebooks", nargs=-1, type=PATH)
@click.option("--check", is_flag=True, help="Change nothing; fail if a notebook needs cleaning.")
def clean_notebooks(notebooks: tuple[Path, ...], check: bool) -> int:
    """Remove times and tool metadata from NOTEBOOKS (all by default); keep outputs."""
    from ipusim.files import notebooks_dir
    from ipusim.study.book.notebook import clean_file

    unclean = [
        path
        for path in notebooks or sorted(notebooks_dir().glob("*.ipynb"))
        if not clean_file(path, check=check)
    ]
    for path in unclean:
        click.echo(f"{path.name}: it needs cleaning" if check else f"cleaned {path.name}")
    return EXIT_FAILED if check and unclean else EXIT_OK


def _shown(path: Path) -> str:
    """Return a path as short as it can be written from here."""
    full, here = path.resolve(), Path.cwd()
    return str(full.relative_to(here) if full.is_relative_to(here) else full)


def _refused(message: str) -> int:
    click.echo(f"ipusim: {' '.join(message.split())}", err=True)
    return EXIT_BAD_INPUT


def _close_output() -> None:
    """Keep the interpreter from failing again at exit where stdout is full or nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the arguments of the process.

    Returns 0 for success, 1 when a study failed or validation declined, 2 for bad input (one
    sentence on stderr), 130 when interrupted.
    """
    try:
        given = None if arguments is None else list(arguments)
        code = cli.main(given, "ipusim", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_BAD_INPUT
    except click.ClickException as error:
        return _refused(error.format_message())
    except IpuSimError as error:
        return _refused(str(error))
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error.__cause__ or error.__context__, EOFError):  # click's name for it
            return _refused("A file ends too early: run again or remove what is damaged.")
        click.echo("ipusim: interrupted.", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return EXIT_FAILED
    except OSError as error:
        _close_output()
        where = f" ({error.filename})" if error.filename else ""
        return _refused(f"A file cannot be read or written{where}: {error.strerror}.")
    except RecursionError:
        return _refused("An input is nested too deeply: simplify it.")
    except MemoryError:
        return _refused("This needs more memory than there is: ask for less at once.")
    return code if isinstance(code, int) else EXIT_OK
