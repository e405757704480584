"""Mutated inputs of four kinds, each answered by a result or by one sentence, soon and in bounds.

``python tests/hostile.py KIND COUNT SEED`` is the child process of test_hostile.py: it may use 2 GB
more than it starts with and 10 seconds for an input, and prints what went otherwise.
"""

import os
import random
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

ROOM_BYTES = 2 << 30
SECONDS = 10


PYTHON = re.compile("object has no |not supported between|unsupported operand|object is not")
"""What Python says of a mistake in a program, which is no answer to who wrote none."""


class TooSlow(BaseException):
    """An input took longer than `SECONDS`."""


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return some bytes with a few of them changed, taken out or repeated."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 2, 4, 16))):
        place, kind = rng.randrange(len(changed)), rng.random()
        if kind < 0.5:
            changed[place] = rng.randrange(256)
        elif kind < 0.7:
            del changed[place : place + rng.randrange(1, 40)]
        elif kind < 0.85:
            source = rng.randrange(len(changed))
            changed[place:place] = changed[source : source + rng.randrange(1, 60)]
        else:
            changed[place : place + 1] = rng.choice((b"0", b"-1", b"nan", b"1e308", b"9" * 30, b""))
        if not changed:
            return b""
    return bytes(changed)


NUMBERS = (0, 1, 2, -1, 3, 7, 255, 1 << 20, 1 << 31, 1 << 40, -(1 << 62))
TEXTS = ("", "x", "w", "y", "Conv", "Split", "Loop", "Scan", "<b>&", "a\nb", "../x", "k" * 5000)


def restructured(content: bytes, rng: random.Random) -> bytes:
    """Return a model with a few of its fields changed: mutated bytes mostly are no model at all."""
    from onnx import ModelProto

    model = ModelProto.FromString(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        message, field, value = rng.choice([*_fields_of(model)])
        if field.is_repeated:
            entries, kind = list(value), rng.random()
            place = rng.randrange(len(entries))
            if kind < 0.3:
                del entries[place]
            elif kind < 0.6 or field.message_type:
                entries.insert(rng.randrange(len(entries) + 1), entries[place])
            else:
                entries[place] = _other(field, entries[place], rng)
            message.ClearField(field.name)
            getattr(message, field.name).extend(entries)
        elif field.message_type or rng.random() < 0.1:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _other(field, value, rng))
    return model.SerializeToString()


def _fields_of(message):
    """Every set field of a message and of those in it."""
    for field, value in message.ListFields():
        yield message, field, value
        if field.message_type:
            for inner in value if field.is_repeated else [value]:
                yield from _fields_of(inner)


def _other(field, value, rng: random.Random):
    """Return another value of a field."""
    if isinstance(value, bytes):
        return mutated(value or b"0", rng)
    if isinstance(value, str):
        return rng.choice((*TEXTS, value[1:], value + "0"))
    if field.enum_type:
        return rng.choice(field.enum_type.values).number
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
    number = rng.choice((*NUMBERS, value + 1, value - 1))
    wide = field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64)
    return number if wide else number % 100


def onnx_files(folder: Path) -> Callable[[random.Random], None]:
    """Mutate small networks."""
    from onnx import helper
    from onnx_single_op import make_model, single

    from ipusim.workload.onnx import from_onnx

    conv = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])
    relu = helper.make_node("Relu", ["c"], ["r"])
    pool = helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    seeds = [
        make_model([conv, relu, pool], {"x": [1, 3, 8, 8]}, ["y"], {"w": [4, 3, 3, 3]}),
        single("Gemm", {"x": ["rows", 16]}, {"w": [16, 8]}),
        single("MatMul", {"x": ["batch", "sequence", 16]}, {"w": [16, 8]}),
        single("Softmax", {"x": [2, 8]}, {}),
    ]
    contents = [model.SerializeToString() for model in seeds]
    path = folder / "model.onnx"
    path.write_bytes(contents[0])
    from_onnx(path)  # imports take their time once

    def one(rng: random.Random) -> None:
        change = rng.choice((mutated, restructured, restructured))
        path.write_bytes(change(rng.choice(contents), rng))
        model = from_onnx(path, dims=rng.choice(({}, {"sequence": 8})))
        model.graph(model.batch)

    return one


def _data_files(folder: Path, files: dict[str, Callable[[], object]]):
    """Mutate one data file at a time, in a data folder of links to all the others."""
    from ipusim.files import data_dir

    real, number = data_dir(), iter(range(1 << 40))

    def one(rng: random.Random) -> None:
        name = rng.choice(sorted(files))
        data = folder / str(next(number))
        target = data / name
        target.parent.mkdir(parents=True)
        for kept, above in ((real, data), ((real / name).parent, target.parent)):
            for path in kept.iterdir():
                if not (above / path.name).exists() and path != real / name:
                    (above / path.name).symlink_to(path)
        target.write_bytes(mutated((real / name).read_bytes(), rng))
        os.environ["IPUSIM_DATA_DIR"] = str(data)
        files[name]()

    return one


def toml_files(folder: Path) -> Callable[[random.Random], None]:
    """Mutate the tables of the hardware and of the software stacks."""
    from ipusim.compiler.stacks import load_stack
    from ipusim.machine import load_system
    from ipusim.runtime.calibration import fitted_costs

    reads = {
        f"hardware/{name}.toml": lambda: load_system("IPU-M2000")
        for name in ("chips", "systems", "links", "hosts", "power")
    }
    reads |= {
        "stacks.toml": lambda: load_stack("sdk-2.4"),
        "calibration.toml": lambda: fitted_costs("sdk-2.4", "popart"),
    }
    return _data_files(folder, reads)


def csv_files(folder: Path) -> Callable[[random.Random], None]:
    """Mutate the published tables and how their rows were run."""
    from ipusim.study.data.published import load_rows
    from ipusim.study.data.runs import load_runs

    return _data_files(
        folder,
        {
            "runs/configurations.csv": load_runs,
            "runs/host_times.csv": load_runs,
            "published/tamu_table3.csv": load_rows,
            "published/qwant_c2_resnext101.csv": load_rows,
            "published/graphcore_results_inference.csv": load_rows,
        },
    )


def parameters(folder: Path) -> Callable[[random.Random], None]:
    """Mutate parameters of the notebooks."""
    from ipusim.study.book.catalogue import (
        list_studies,
        parameter_values,
        split_assignments,
        study_parameters,
    )

    choices = [(study, one) for study in list_studies() for one in study_parameters(study)]
    texts = (b"[1, 2, 4]", b"'IPU-M2000'", b"{'a': [(1,)]}", b"True", b"1e9", b"None", b"[[[[]]]]")

    def one(rng: random.Random) -> None:
        study, parameter = rng.choice(choices)
        text = mutated(rng.choice(texts), rng).decode(errors="replace")
        parameter_values(study, split_assignments([f"{parameter.name}={text}"]))

    return one


KINDS = {"onnx": onnx_files, "toml": toml_files, "csv": csv_files, "parameters": parameters}


def main(kind: str, count: int, seed: int) -> int:
    """Try so many inputs; print and count those that end neither well nor in one sentence."""
    from ipusim.errors import IpuSimError

    def too_slow(number, frame):
        raise TooSlow

    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        one = KINDS[kind](Path(folder))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, resource.RLIM_INFINITY))
        signal.signal(signal.SIGALRM, too_slow)
        for number in range(count):
            signal.alarm(SECONDS)
            try:
                one(random.Random(f"{kind} {seed} {number}"))
            except IpuSimError as error:
                if "\n" in str(error).strip() or PYTHON.search(str(error)):
                    wrong += 1
                    print(f"{kind} {seed} {number}: no sentence of ours: {error}")
            except (Exception, TooSlow) as error:  # noqa: BLE001  whatever it is, it is told
                wrong += 1
                where = [
                    at for at in traceback.extract_tb(error.__traceback__) if "/ipusim/" in at[0]
                ]
                place = f"{Path(where[-1][0]).name}:{where[-1][1]}" if where else "?"
                print(f"{kind} {seed} {number}: {type(error).__name__} {error!s:.90} at {place}")
            finally:
                signal.alarm(0)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
