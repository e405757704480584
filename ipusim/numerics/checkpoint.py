"""Checkpoints of a training run: one file, written whole or not at all."""

import json
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from ipusim.errors import DataError
from ipusim.files import replace_file
from ipusim.numerics.adam import AdamState

_GROUPS = ("weights", "first", "second")
_DAMAGE = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile)


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.getvalue(), sync=True)
    except OSError as error:
        raise DataError(
            f"The checkpoint {str(path)!r} cannot be written ({error.strerror}); choose another "
            "folder."
        ) from error


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
