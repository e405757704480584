"""What to make of a report: its verdict, what fills the fullest tile, the line to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ipusim.compiler.memory import live_tensors
from ipusim.runtime.calibration import calibration
from ipusim.runtime.options.spec import OPTIONS
from ipusim.runtime.replica.partition import part_of
from ipusim.workload.model import Model

if TYPE_CHECKING:
    import pandas as pd

    from ipusim.report import Report

WORTH = 0.05
"""Least share of a step that advice is given about."""
MUCH = 0.25
"""Share of a step from which what tiles do besides computing is worth a word."""
MORE = 8
"""How many times the batch an estimate of the gain supposes."""
LARGE_RESULT = 1e5
"""Bytes per item from which what crosses the host link is worth a word."""
NAMED = 3
"""Tensors that a verdict names."""

PLANNED = (
    "micro_batch",
    "replicas",
    "ipus_per_replica",
    "gradient_accumulation",
    "recompute",
    "available_memory_proportion",
    "pipeline_splits",
    "stage_ipus",
    "phases",
)
"""Options that `ipusim.plan` chooses."""


def _told(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not what they would be without being named."""
    defaults = {"model": asked["model"]} | {name: one.default for name, one in OPTIONS.items()}
    return {name: value for name, value in asked.items() if value != defaults.get(name)}


def command(verb: str, asked: Mapping[str, Any]) -> str:
    """Return the line of a shell that asks for a model and its options."""
    words = ["ipusim", verb, str(asked["model"])]
    for name, value in _told(asked).items():
        flag = "--" + name.replace("_", "-")
        if name in ("shapes", "dims", "values"):
            for key, given in value.items():
                listed = given if isinstance(given, tuple | list) else (given,)
                words += [flag[:-1], f"{key}={','.join(map(str, listed))}"]
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag, str(getattr(value, "name", value))]
    return shlex.join(words)


def python(verb: str, asked: Mapping[str, Any]) -> str:
    """Return the same as a line of Python; a model that has no name of its own is `model`."""
    given = [f"{name}={getattr(value, 'name', value)!r}" for name, value in _told(asked).items()]
    model = "model" if isinstance(asked["model"], Model) else repr(asked["model"])
    return f"ipusim.{verb}({', '.join([model, *given])})"


def line(verb: str, asked: Mapping[str, Any]) -> str:
    """Return the line to copy: of a shell, or of Python for a model without a name of its own."""
    return (python if isinstance(asked.get("model"), Model) else command)(verb, asked)


def verdict(report: Report) -> str:
    """What the run comes to, in a sentence: what does not fit and what to do, or the rates."""
    memory, config = report.result.memory, report.config
    if not memory.fits:
        asked = {name: value for name, value in report.asked.items() if name not in PLANNED}
        todo = f": {line('plan', asked)} searches what does" if asked else ""
        errs = calibration().ran.verdict(memory.over_bytes / memory.tile_bytes)
        return f"{misfit(report)}{todo}. The model of memory errs too: {errs}."
    does, time = ("trains on", "step") if config.training else ("answers", "latency")
    return (
        f"{room(report)}, and {does} {digits(report.throughput.value)} items/s with a {time} of "
        f"{1e3 * report.latency.value:.4g} ms."
    )


def misfit(report: Report) -> str:
    """Say what does not fit, and what lies where it does not."""
    memory = report.result.memory
    most = ", ".join(f"{row.what} {row.bytes:,} B" for row in report.held()[:NAMED].itertuples())
    what = "A phase" if report.config.phased else "A stage" if report.result.stages else "It"
    return (
        f"{what} does not fit: {memory.over_bytes:,} B too many for the {memory.tile_bytes:,} B of "
        f"a tile, on {memory.peak_tiles:,} tiles of a {report.chip} at {memory.peak_op}, where "
        f"most is {most}"
    )


def room(report: Report) -> str:
    """Say which chips a run that fits is on, and how full they are."""
    used = report.used_tile_bytes / report.tile_bytes
    chips = f"{report.config.active_ipus} {report.chip}"
    return f"It fits {chips}, with {used:.0%} of the fullest tile in use"


def digits(value: float) -> str:
    """Write four significant digits, and all before the point, never as a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"


def advice(report: Report) -> tuple[str, ...]:
    """What would help, computed from the numbers: the largest part of the step first.

    What is not worth `WORTH` of a step is left out. A gain is an estimate that leaves all else as
    it is, in particular the 80 % interval of the prediction.
    """
    if not report.runs:
        return ()
    found = [item for rule in (_host, _fixed, _waits, _chip) for item in rule(report)]
    ranked = sorted(found, key=lambda item: -item[0])
    return tuple(f"{share:.0%} of the step: {text}" for share, text in ranked if share >= WORTH)


Finding = tuple[float, str]
"""Share of a step, and what to do about it."""


def _share(report: Report, *parts: str) -> float:
    """Return the share of a step that some parts take."""
    return sum(report.result.parts_s.get(name, 0.0) for name in parts) / report.result.step_s


def _host(report: Report) -> Iterator[Finding]:
    io, config = report.result.io, report.config
    items = config.items
    share = _share(report, "transfers", "host work")
    out, into = io.output_bytes / items, io.input_bytes / items
    if out > into and out > LARGE_RESULT:
        yield share, f"{out / 1e6:.3g} MB of results per item go to the host: return the argmax."
    elif config.host_dtype != "uint8" and into > LARGE_RESULT:
        what = f"{into / 1e6:.3g} MB per item come from the host"
        yield share, f"{what}: images may come as bytes (host_dtype='uint8')."
    if not config.overlap_io and not config.training:
        hidden = min(share, 1 - share)
        yield hidden, "transfers can run beside compute (overlap_io, batches_in_flight 3)."


def _fixed(report: Report) -> Iterator[Finding]:
    """What a step costs however many items it has."""
    config = report.config
    share = _share(report, "fixed", "host between runs")
    how = "gradient_accumulation" if config.training else "micro_batch"
    gain = MORE / (1 + (MORE - 1) * (1 - share))
    text = f"the call costs the same for any batch: {MORE} times the {how} gives {gain:.1f} x."
    yield share, text
    batches = config.device_iterations
    often = f"the chips run {batches} steps per call from the host: more device_iterations."
    yield report.result.costs.run_s / batches / report.result.step_s, often


def _waits(report: Report) -> Iterator[Finding]:
    replicated = "fewer, larger updates (gradient_accumulation)"
    for part, text in {
        "waiting for the host": "the host is the bound: more instances, fewer replicas each, or "
        "smaller host types.",
        "pipeline bubbles": "stages wait while the pipeline fills: raise gradient_accumulation.",
        "stage transfers": "stages hand over too much: other pipeline_splits, or fewer stages.",
        "gradient all-reduce": f"replicas reduce gradients: {replicated}, merge_gradients_bytes.",
        "optimiser state": "the state of the optimiser is off the chip: keep it on_chip, or share "
        "it (replicated_tensor_sharding).",
        "weight update": f"weights are updated too often: {replicated}.",
        "streamed weights": "weights are loaded for every phase: more micro_batches_per_phase.",
    }.items():
        yield _share(report, part), text


def _chip(report: Report) -> Iterator[Finding]:
    config, layers = report.config, report.layers
    cycles = max(1, layers["cycles"].sum())
    device = _share(report, "device")
    chip = config.system.chip
    products = layers[layers["kind"].isin(("conv", "matmul"))]
    half = chip.half_half_conv_units > chip.half_float_conv_units and config.precision != "32.32"
    if config.partials == "float" and half:
        text = "sums are 32-bit, at half the rate: partials='half' where the accuracy allows it."
        yield device * products["compute_cycles"].sum() / cycles / 2, text
    for what, text in {
        "exchange": "data moves between tiles: larger micro-batches reuse weights more.",
        "sync": "tiles meet too often for so little work: larger micro-batches.",
    }.items():
        share = device * layers[f"{what}_cycles"].sum() / cycles
        if share > MUCH:
            yield share, text
    if len(products):
        worst = products.loc[products["cycles"].idxmax()]
        used = worst["utilisation_percent"]
        spent = {name: worst[f"{name}_cycles"] for name in ("compute", "exchange", "copy", "sync")}
        most = max(spent, key=spent.__getitem__)
        why = f"{spent[most] / max(1, worst['cycles']):.0%} of it is {most}"
        plan = worst["plan"].split(";")[0] or "none"
        text = f"is the heaviest layer and uses {used:.0f} % of AMP ({why}; plan: {plan})."
        yield device * worst["cycles"] / cycles, f"{worst['op']} {text}"


def held(report: Report) -> pd.DataFrame:
    """Return what lies on the fullest tile at the fullest moment, the largest first.

    Columns are what, category ("parameters", "code", "activation", "temporary"), bytes of a tile
    and the tiles that hold it.
    """
    import pandas as pd

    result, memory = report.result, report.result.memory
    graph, program = result.graph, result.program
    if result.stages:
        # The operators of the fullest chip, or of the fullest phase.
        fullest = [stage for stage in result.stages if stage.memory is memory]
        own = {op.name for stage in fullest for op in stage.ops}
        ops = [op for op in graph.ops if op.name in own]
        graph, program = part_of(graph, {op.name: op for op in program.ops}, ops)
    waits = any(stage.in_flight > 1 for stage in result.stages)
    stays = "parameters, state and waiting micro-batches" if waits else "parameters and state"
    rows = [
        (stays, "parameters", memory.parameter_bytes, memory.tiles),
        ("code and stacks", "code", memory.code_bytes, memory.tiles),
    ]
    for point in memory.points:
        if point.op == memory.peak_op and any(op.name == point.op for op in graph.ops):
            chip = report.config.system.chip
            tiles = {op.name: op.tiles for op in program.ops}
            on = {name: tiles[op.name] for op in graph.ops for name in op.outputs}
            for name, size in live_tensors(graph, program, chip, point.op).items():
                rows.append((name, "activation", size, on.get(name, memory.tiles)))
            what = f"temporaries of {point.op}"
            rows.append((what, "temporary", point.temp_bytes, memory.peak_tiles))
            break
    frame = pd.DataFrame(rows, columns=["what", "category", "bytes", "tiles"])
    return frame.sort_values(["bytes", "what"], ascending=[False, True], ignore_index=True)
