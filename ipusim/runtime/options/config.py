"""What a run was asked to be: every option checked, every default taken, once."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack

from ipusim.compiler.stacks import Stack, load_stack
from ipusim.errors import ConfigError, check_name
from ipusim.machine import System, load, load_system
from ipusim.runtime.options.frameworks import Framework
from ipusim.runtime.options.spec import LIVENESS, OF_STACK, OPTIONS, PHASES, STAGES, RunConfig
from ipusim.workload.optimizers import OPTIMIZERS
from ipusim.workload.serialization import parse_serial_products

if TYPE_CHECKING:
    from ipusim.runtime.options.hints import RunOptions

TIERS = ("calibrated", "specification")
MIN_IO_TILES = 32
MAX_PHASED_IPUS = 2


def make_config(**given: Unpack[RunOptions]) -> RunConfig:
    """Check the options of a run and fill in the defaults; a System may stand for its name.

    Of phases everything lies off the chip unless told otherwise, as PopTorch sets it for phased
    execution (graphcore/poptorch@sdk/poptorch/3.3.0:popart_compiler/source/Compiler.cpp). PopART
    turns phased execution off where there is one phase (willow/src/ir.cpp,
    verifyExecutionPhaseSettings).
    """
    for name in given:
        check_name("option", name, OPTIONS)
    asked = {
        name: OPTIONS[name].check(value)
        for name, value in given.items()
        if value is not None and name != "system"
    }
    adopted = asked.get("adopted", True)
    machine = machine_of(given.get("system"), adopted=adopted)
    asked["phases"] = phases = _phases(asked)
    mode = asked.get("mode", OPTIONS["mode"].default)
    _refuse_what_has_no_meaning(asked, mode, phases)
    values: dict[str, Any] = {
        name: option.default
        for name, option in OPTIONS.items()
        if option.mode in ("", mode) and (option.group != PHASES or phases > 1)
    }
    values |= asked
    values |= {
        "system": machine,
        "stack": load_stack(asked.get("stack", machine.default_stack), adopted=adopted),
        "framework": load(Framework, values["framework"], adopted=adopted),
    }
    values["replicas"] = _replicas(machine, values["ipus_per_replica"], values["replicas"])
    _fill_in(values)
    config = RunConfig(
        **values | {"serial_products": parse_serial_products(values["serial_products"] or ())}
    )
    _check_float8(config)
    _check_host(config)
    _check_stages(config)
    if config.phased:
        _check_phases(config)
    return config


def machine_of(system: str | System | None, *, adopted: bool = True) -> System:
    """Return a system, which may stand for itself, or by default that of the option."""
    name = OPTIONS["system"].default if system is None else system
    return name if isinstance(name, System) else load_system(name, adopted=adopted)


def _phases(asked: dict[str, Any]) -> int:
    splits = asked.get("phase_splits", ())
    number = asked.get("phases", len(splits) + 1)
    if splits and number != len(splits) + 1:
        raise ConfigError(
            f"{len(splits)} phase splits make {len(splits) + 1} phases, but phases is {number}: "
            f"give {number - 1} splits, or leave one of the options out."
        )
    return number


def _refusal(name: str, value: Any, why: str) -> ConfigError:
    return ConfigError(f"The option {name} = {value!r} {why}.")


def _refuse_what_has_no_meaning(asked: dict[str, Any], mode: str, phases: int) -> None:
    for name, value in asked.items():
        option = OPTIONS[name]
        if option.mode not in ("", mode):
            why = f"in the mode {mode!r}: leave it out, or use the mode {option.mode!r}"
        elif option.needs and not asked.get(option.needs):
            why = f"without {option.needs}: leave it out, or turn {option.needs} on"
        elif option.group == PHASES and phases == 1:
            why = "without phases: give phases, 2 or more, or leave it out"
        elif option.group == STAGES and phases > 1 and value:
            why = "in phases, which run in turn: leave it out, or leave phases out"
        else:
            continue
        raise _refusal(name, value, f"has no meaning {why}")


def _replicas(machine: System, ipus_per_replica: int, replicas: int | None) -> int:
    """Return the number of replicas; by default as many as the machine holds."""
    most = machine.ipus // ipus_per_replica
    if not most:
        raise ConfigError(
            f"A replica over {ipus_per_replica} IPUs does not fit {machine.name}, which has "
            f"{machine.ipus}: use ipus_per_replica = 1 to {machine.ipus}."
        )
    copies = most if replicas is None else replicas
    if copies > most:
        raise ConfigError(
            f"{copies} replicas need {copies * ipus_per_replica} IPUs, but {machine.name} has "
            f"{machine.ipus}: use {'1' if most == 1 else f'1 to {most}'}."
        )
    return copies


def _fill_in(values: dict[str, Any]) -> None:
    """Take the defaults that other options, the system or the stack decide."""
    machine, stack, framework = values["system"], values["stack"], values["framework"]
    training, replicas = values["mode"] == "training", values["replicas"]
    decided: dict[str, Any] = {
        **{name: getattr(stack, name) for name in OF_STACK},
        # In training and where transfers overlap, the input pipeline runs ahead of the chips.
        "batches_in_flight": 2 if training or values["overlap_io"] else 1,
        "device_iterations": 1 if training else framework.device_iterations,
        "stage_ipus": tuple(range(values["ipus_per_replica"])),
        "pipeline_splits": (),
        "phase_splits": (),
    }
    if training:
        processes = range(1, min(replicas, machine.host.numa_nodes * machine.host_servers) + 1)
        rule = OPTIMIZERS[values["optimizer"]]
        decided |= {
            "instances": max(n for n in processes if replicas % n == 0),
            "running_mean": framework.running_mean and not rule.sums_in_momentum,
            "optimizer_state": "off_chip" if values["phases"] > 1 else "on_chip",
            "least_sharded_elements": framework.least_sharded_elements,
            "sharding_domain": replicas,
        }
        values["replicated_tensor_sharding"] &= replicas > 1
    values |= {name: value for name, value in decided.items() if values[name] is None}
    values["io_tiles"] = _io_tiles(stack, values)


def _io_tiles(stack: Stack, values: dict[str, Any]) -> int:
    """Return the tiles that only transfer: 0 without overlap."""
    in_flight = values["batches_in_flight"]
    if not values["overlap_io"]:
        return 0
    if in_flight < 2:
        raise ConfigError(
            f"The options overlap_io and batches_in_flight = {in_flight} contradict each other, "
            "because overlapped transfers keep at least 2 batches in flight: give 2 or more, or "
            "turn the overlap off."
        )
    return values["io_tiles"] or stack.io_tiles or MIN_IO_TILES


def _check_float8(config: RunConfig) -> None:
    if config.precision != "float8":
        return
    lacks = f"the {config.system.chip.name} has none: use the system 'C600', or precision '16.16'"
    reasons = {
        lacks: not config.system.chip.float8_conv_units,
        # getGradOps of popart's op/matmul.cpp and op/conv.cpp.
        "PopART has no backward pass through it: use the mode 'inference'": config.training,
        "its partial sums are half: leave partials out": config.partials != "half",
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(f"The option precision is 'float8', but {reason}.")


def _check_host(config: RunConfig) -> None:
    for name in ("batch_norm_span", "instances", "sharding_domain"):
        value = getattr(config, name)
        if value is not None and config.replicas % value:
            why = f"does not divide {config.replicas} replicas: use a divisor of the replicas"
            raise _refusal(name, value, why)
    for name in ("loader_item_s", "serial_item_s"):
        value = getattr(config, name)
        if value and config.instances is None:
            why = "is time of a host process, but their number is not known: give instances too"
            raise _refusal(name, value, why)


def _check_stages(config: RunConfig) -> None:
    chips, splits, size = config.stage_ipus, config.pipeline_splits, config.ipus_per_replica
    listed = " ".join(map(str, chips))
    if set(chips) != set(range(size)):
        raise ConfigError(
            f"The option stage_ipus is {listed!r}, but a replica has {size} IPUs: name each of 0 "
            f"to {size - 1} at least once."
        )
    if any(one == two for one, two in pairwise(chips)):
        raise ConfigError(
            f"The option stage_ipus is {listed!r}, with two stages in a row on one IPU: make them "
            "one stage."
        )
    if splits and len(splits) != len(chips) - 1:
        placed = chips != tuple(range(size))
        held = f"stage_ipus places {len(chips)}" if placed else f"a replica has {size} IPUs"
        more = "" if placed else f", or ipus_per_replica = {len(splits) + 1}"
        raise ConfigError(
            f"{len(splits)} pipeline splits make {len(splits) + 1} stages, but {held}: give "
            f"{len(chips) - 1} splits{more}."
        )


def _check_phases(config: RunConfig) -> None:
    machine, size = config.system, config.ipus_per_replica
    if size > MAX_PHASED_IPUS:
        why = f"does not go with ipus_per_replica = {size}: phases run on 1, or take turns on 2"
        raise _refusal("phases", config.phases, why)
    close = [name for name, distance in LIVENESS.items() if distance == 1]
    if size > 1 and config.phase_liveness not in close:
        other = " or ".join(close)
        why = f"spaces phases out, which needs ipus_per_replica = 1: use that, or {other}"
        raise _refusal("phase_liveness", config.phase_liveness, why)
    off_chip = sorted(config.off_chip)
    off_chip += ["optimizer_state"] if config.optimizer_state == "off_chip" else []
    if off_chip and not machine.streaming_memory_bytes_per_machine:
        raise ConfigError(
            f"{machine.name} has no Streaming Memory for the {' and '.join(off_chip)} of phases: "
            "keep them on_chip, or use another system, such as IPU-M2000."
        )
    if not config.training:
        return
    if not config.framework.phases:
        raise ConfigError(
            f"The framework {config.framework.name!r} has no phased execution: use 'popart' or "
            "'pytorch', or leave phases out."
        )
    accumulation, at_once = config.gradient_accumulation, config.micro_batches_per_phase
    if accumulation % at_once:
        why = f"does not divide a gradient accumulation of {accumulation}: use a divisor of it"
        raise _refusal("micro_batches_per_phase", at_once, why)
