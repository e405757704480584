"""Adam with weights stored as half or single and moments in single precision; its checkpoints.

Kingma and Ba, arXiv 1412.6980. Moments and the arithmetic of the update are single precision, as
PopTorch's Adam keeps its state by default [recalled]; a half weight is rounded when it is written
back, on the IPU stochastically if that is on.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np

from ipusim.errors import DataError
from ipusim.files import write_bytes
from ipusim.numerics.arithmetic import Arithmetic
from ipusim.numerics.kernels.rounding import NEAREST, Rounding, round_in_place

_F = np.float32
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
_GROUPS = ("weights", "first", "second")
_DAMAGE = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile)


@dataclass(slots=True, kw_only=True)
class AdamState:
    """Weights and moments by name, and the decays to the power of the steps taken."""

    weights: dict[str, np.ndarray]
    first: dict[str, np.ndarray]
    second: dict[str, np.ndarray]
    step: int = 0
    power_1: float = 1.0
    power_2: float = 1.0
    losses: list[float] = field(default_factory=list)


def start_state(weights: Mapping[str, np.ndarray], arithmetic: Arithmetic) -> AdamState:
    """Return the state before the first step; half weights are rounded to nearest on the host."""
    copies = {name: np.array(values, np.float32, order="C") for name, values in weights.items()}
    if not arithmetic.options.master_weights:
        for values in copies.values():
            round_in_place(values, Rounding(NEAREST))
    return AdamState(
        weights=copies,
        first={name: np.zeros_like(values) for name, values in copies.items()},
        second={name: np.zeros_like(values) for name, values in copies.items()},
    )


def update(
    state: AdamState,
    gradients: Mapping[str, np.ndarray],
    learning_rate: float,
    loss_scale: float,
    arithmetic: Arithmetic,
) -> None:
    """Take one step in place, with gradients of the loss times `loss_scale`, a power of two."""
    state.step += 1
    # Running products instead of powers: every machine multiplies alike.
    state.power_1 *= BETA_1
    state.power_2 *= BETA_2
    rate = _F(learning_rate / (1 - state.power_1))
    correction = _F(1 / (1 - state.power_2))
    for name, weights in state.weights.items():
        gradient = gradients[name] / _F(loss_scale)
        first, second = state.first[name], state.second[name]
        first += _F(1 - BETA_1) * (gradient - first)
        second += _F(1 - BETA_2) * (gradient * gradient - second)
        weights -= rate * first / (np.sqrt(second * correction) + _F(EPSILON))
        if not arithmetic.options.master_weights:
            arithmetic.store(weights)


def save_checkpoint(path: Path, state: AdamState, configuration: Mapping[str, object]) -> None:
    """Write a checkpoint; an existing one is replaced only by a complete new one."""
    arrays = {
        f"{group}/{name}": values
        for group in _GROUPS
        for name, values in getattr(state, group).items()
    }
    numbers = {"step": state.step, "power_1": state.power_1, "power_2": state.power_2}
    header = json.dumps({"configuration": configuration, **numbers}, sort_keys=True)
    content = BytesIO()
    np.savez(content, header=header, losses=np.array(state.losses, float), **arrays)
    write_bytes(path, content.getvalue(), sync=True)


def load_checkpoint(path: Path, configuration: Mapping[str, object]) -> AdamState | None:
    """Read a checkpoint of the same configuration, None if there is none; any other stays."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            arrays = {name: file[name] for name in file.files if "/" in name}
            losses = file["losses"].tolist()
        found, numbers = header["configuration"], (header["power_1"], header["power_2"])
        step = int(header["step"])
    except _DAMAGE as error:
        raise DataError(
            f"The checkpoint {str(path)!r} is damaged or no checkpoint; delete it or choose "
            "another file."
        ) from error
    expected = json.loads(json.dumps(configuration))
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            raise DataError(
                f"The checkpoint {str(path)!r} belongs to another configuration ({name} is "
                f"{found.get(name)!r} there and {expected.get(name)!r} here); choose another file "
                "or the configuration that it was written with."
            )
    groups: dict[str, dict[str, np.ndarray]] = {group: {} for group in _GROUPS}
    for name, values in arrays.items():
        group, _, key = name.partition("/")
        groups[group][key] = values
    return AdamState(step=step, power_1=numbers[0], power_2=numbers[1], losses=losses, **groups)
