"""Two lower layers of evidence: vertices measured on silicon, operations run by IPUModel.

Vertices: 128 sizes of the AMP 1x1 vertex timed on a Bow IPU.  Operations: Graphcore's own
IPUModel results for single matrix products and fully connected layers (`data/evidence`).  Mk1
layers: grouped convolutions of ResNeXt measured on a GC2 by Jia et al.; that paper's software is
older than the stack modelled here, and nobody has explained its second stage.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ipusim import paths
from ipusim.compiler import memory
from ipusim.compiler.conv_vertices import ERA_3_3, amp_1x1_cycles
from ipusim.compiler.lowering import lower
from ipusim.compiler.lowering_planned import conv_shape
from ipusim.compiler.planner import ConvShape, plan
from ipusim.compiler.stacks import Stack, load_stack
from ipusim.errors import DataError
from ipusim.machine import Chip, load_chip
from ipusim.workload.graph import Conv, Elementwise, Graph, MatMul, Op, Tensor

FINGERPRINT_SLACK_BYTES = 64
"""Worst-tile bytes agree with a plan when they exceed region start and partials by no more."""

_CHIPS = {"mk1": "GC2", "mk2": "GC200"}
_SUITES = (
    ("gemm, forward", "2021-03", "mk2", ("gemm",), "sdk-2.0"),
    ("gemm, forward", "2021-03", "mk1", ("gemm",), "sdk-2.0"),
    ("gemm, forward", "sdk_1.0.136", "mk1", ("gemm",), "sdk-1.0"),
    (
        "fully connected, forward",
        "2020-02-03_fc_fwd",
        "mk1",
        ("fully_connected", "fully_connected_grouped"),
        "sdk-1.0",
    ),
)
_FC_OPS = ("fully_connected", "fully_connected_grouped")
_MK1_CASE = re.compile(
    r"Conv(?P<stage>\d)_\d: k=(?P<kernel>\d)x\d in=(?P<field>\d+)x\d+ Cin=(?P<cin>\d+) "
    r"Cout=(?P<cout>\d+) stride=1 groups=(?P<groups>\d+)"
)


def _records(name: str) -> list[dict[str, str]]:
    path: Path = paths.data_dir() / "evidence" / name
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except OSError as error:
        raise DataError(
            f"The data file evidence/{name} cannot be read ({error.strerror}): restore it."
        ) from error


def vertex_rows() -> pd.DataFrame:
    """Return the AMP 1x1 vertex against every measured size.

    Returns
    -------
    pandas.DataFrame
        Columns size (rows of the product), measured_cycles, predicted_cycles, error_percent.
    """
    rows = []
    for record in _records("ipu_microbench.csv"):
        if "ConvPartial1x1 AMP" not in record["operation"] or record["metric"] != "cycles":
            continue
        size = int(record["size"].removeprefix("N="))
        predicted = int(amp_1x1_cycles(1, size, 1, 1, 1, 16, 64, False, False, 16, ERA_3_3))
        measured = float(record["value"])
        rows.append(
            {
                "size": size,
                "measured_cycles": measured,
                "predicted_cycles": predicted,
                "error_percent": 100.0 * (predicted / measured - 1.0),
            }
        )
    return pd.DataFrame(rows)


def vertices_table() -> pd.DataFrame:
    """Summarise `vertex_rows`: rows, mean and maximum absolute error in percent."""
    errors = vertex_rows()["error_percent"].abs()
    return pd.DataFrame(
        [
            {
                "vertex": "AMP 1x1, half partials, one tile of a Bow IPU",
                "rows": len(errors),
                "mean_abs_error_percent": float(errors.mean()),
                "max_abs_error_percent": float(errors.max()),
            }
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """One matrix product of the IPUModel table."""

    groups: int
    m: int
    k: int
    n: int
    dtype: str
    fully_connected: bool

    def graph(self) -> Graph:
        """Build D = A B + C for a gemm, D = A B with stored B for a fully connected layer."""
        shapes = {
            "a": (self.groups, self.m, self.k),
            "b": (self.groups, self.k, self.n),
            "d": (self.groups, self.m, self.n),
        }
        roles = {"a": "input", "b": "parameter" if self.fully_connected else "input"}
        tensors = {
            name: Tensor(
                name=name, shape=shape, dtype=self.dtype, role=roles.get(name, "activation")
            )
            for name, shape in shapes.items()
        }
        product = MatMul(
            groups=self.groups,
            m=self.m,
            k=self.k,
            n=self.n,
            weights_operand=self.fully_connected,
        )
        ops = [Op(name="product", params=product, inputs=("a", "b"), outputs=("d",))]
        inputs = ["a"] if self.fully_connected else ["a", "b"]
        output = "d"
        if not self.fully_connected:
            for name, role in (("c", "input"), ("e", "activation")):
                tensors[name] = Tensor(name=name, shape=shapes["d"], dtype=self.dtype, role=role)
            addition = Elementwise(
                function="scaled_add",
                n_inputs=2,
                elements=self.groups * self.m * self.n,
                in_place_ok=True,
            )
            ops.append(Op(name="add", params=addition, inputs=("d", "c"), outputs=("e",)))
            inputs.append("c")
            output = "e"
        return Graph(
            name="product",
            tensors=tensors,
            ops=tuple(ops),
            inputs=tuple(inputs),
            outputs=(output,),
        )


def operation_rows() -> pd.DataFrame:
    """Return every matrix product of the IPUModel table beside its prediction.

    Returns
    -------
    pandas.DataFrame
        Columns operation, snapshot, chip, name, published_cycles, predicted_cycles,
        error_percent, memory_error_percent, fingerprint (True where the worst tile's bytes are
        those of the predicted plan, None where the table has none), plan.
    """
    rows = []
    records = _records("ipumodel_layers_dev.csv")
    for title, snapshot, target, kinds, stack_name in _SUITES:
        chip, stack = load_chip(_CHIPS[target]), load_stack(stack_name)
        for record in records:
            wanted = record["snapshot"] == snapshot and record["target"] == target
            if not wanted or record["op_kind"] not in kinds:
                continue
            rows.append(
                {"operation": title, "snapshot": snapshot, "chip": chip.name}
                | _compare(record, chip, stack)
            )
    return pd.DataFrame(rows)


def _compare(record: dict[str, str], chip: Chip, stack: Stack) -> dict[str, object]:
    product = _Product(
        groups=int(record["matmul_groups"]),
        m=int(record["m"]),
        k=int(record["k"]),
        n=int(record["n"]),
        dtype="float16" if record["input_dtype"] == "half" else "float32",
        fully_connected=record["op_kind"] in _FC_OPS,
    )
    graph = product.graph()
    program = lower(graph, chip, stack, partials=record["partials_dtype"], host_dtype=None)
    used = memory.measure(graph, program, chip)
    shape = ConvShape.matmul(
        product.groups,
        product.m,
        product.k,
        product.n,
        dtype_bytes=2 if product.dtype == "float16" else 4,
        kind="fc_inference" if product.fully_connected else "matmul",
    )
    chosen = plan(shape, chip, stack.planner_rules(record["partials_dtype"]))
    fingerprint = None
    if record["max_tile_memory_bytes"]:
        partials = int(record["max_tile_memory_bytes"]) - chip.interleaved_offset_bytes
        slack = partials - chosen.partial_bytes_per_tile
        fingerprint = 0 <= slack <= FINGERPRINT_SLACK_BYTES
    published = int(record["cycles"])
    return {
        "name": record["name"],
        "published_cycles": published,
        "predicted_cycles": program.cycles,
        "error_percent": 100.0 * (program.cycles / published - 1.0),
        "memory_error_percent": 100.0
        * (used.total_bytes / int(record["total_memory_bytes"]) - 1.0),
        "fingerprint": fingerprint,
        "plan": chosen.describe(),
    }


def operations_table() -> pd.DataFrame:
    """Summarise `operation_rows` per operation, snapshot and chip.

    Returns
    -------
    pandas.DataFrame
        Rows; median and 90th percentile of the absolute errors of cycles and of total memory in
        percent; how many worst-tile fingerprints are exact, of how many.
    """
    lines = []
    groups = operation_rows().groupby(["operation", "snapshot", "chip"], sort=False)
    for (operation, snapshot, chip), group in groups:
        cycles = group["error_percent"].abs()
        used = group["memory_error_percent"].abs()
        known = group["fingerprint"].dropna()
        lines.append(
            {
                "operation": operation,
                "snapshot": snapshot,
                "chip": chip,
                "rows": len(group),
                "median_abs_error_percent": float(np.median(cycles)),
                "p90_abs_error_percent": float(np.percentile(cycles, 90)),
                "memory_median_abs_error_percent": float(np.median(used)),
                "memory_p90_abs_error_percent": float(np.percentile(used, 90)),
                "fingerprints": f"{int(known.sum())}/{len(known)}" if len(known) else "",
            }
        )
    return pd.DataFrame(lines)


def mk1_layer_rows() -> pd.DataFrame:
    """Return the grouped convolutions that Jia et al. measured on one GC2, with predictions.

    Returns
    -------
    pandas.DataFrame
        Columns row_id, stage, layer, batch, measured_us, predicted_us, error_percent, plan.

    Notes
    -----
    Jia et al. 2019, arXiv:1912.03413, tables 5.3 and 5.5; padding is taken to keep the field.
    """
    chip, stack = load_chip("GC2"), load_stack("sdk-1.0")
    rows = []
    for record in _records("mk1_microbench.csv"):
        case = _MK1_CASE.search(record["case"])
        if record["operation"] != "conv fwd" or case is None:
            continue
        kernel, field = int(case["kernel"]), int(case["field"])
        pad = (kernel // 2,) * 2
        params = Conv(
            batch=int(record["batch"]),
            in_channels=int(case["cin"]),
            out_channels=int(case["cout"]),
            groups=int(case["groups"]),
            field=(field, field),
            kernel=(kernel, kernel),
            stride=(1, 1),
            padding_lower=pad,
            padding_upper=pad,
            dilation=(1, 1),
        )
        graph = _conv_graph(params)
        program = lower(graph, chip, stack, host_dtype=None)
        measured = 2 * params.macs / (float(record["value"]) * 1e12)
        predicted = program.cycles / chip.clock_hz
        chosen = plan(conv_shape(params, 2), chip, stack.planner_rules())
        rows.append(
            {
                "row_id": record["id"],
                "stage": int(case["stage"]),
                "layer": record["case"].removeprefix("ResNeXt ").split(":")[0],
                "batch": params.batch,
                "measured_us": 1e6 * measured,
                "predicted_us": 1e6 * predicted,
                "error_percent": 100.0 * (predicted / measured - 1.0),
                "plan": chosen.describe(),
            }
        )
    return pd.DataFrame(rows)


def _conv_graph(params: Conv) -> Graph:
    """Build a graph of one convolution whose input comes from the host."""
    channels = params.in_channels // params.groups
    tensors = {
        "x": Tensor(
            name="x",
            shape=(params.batch, params.in_channels, *params.field),
            dtype="float16",
            role="input",
        ),
        "w": Tensor(
            name="w",
            shape=(params.out_channels, channels, *params.kernel),
            dtype="float16",
            role="parameter",
        ),
        "y": Tensor(
            name="y",
            shape=(params.batch, params.out_channels, *params.out_field),
            dtype="float16",
        ),
    }
    conv = Op(name="conv", params=params, inputs=("x", "w"), outputs=("y",))
    return Graph(name="conv", tensors=tensors, ops=(conv,), inputs=("x",), outputs=("y",))


def mk1_layers_table() -> pd.DataFrame:
    """Summarise `mk1_layer_rows` per stage: rows, median and maximum absolute error, bias."""
    lines = []
    for stage, group in mk1_layer_rows().groupby("stage"):
        errors = group["error_percent"]
        lines.append(
            {
                "stage": int(stage),
                "rows": len(group),
                "median_abs_error_percent": float(errors.abs().median()),
                "max_abs_error_percent": float(errors.abs().max()),
                "bias_percent": float(errors.mean()),
            }
        )
    return pd.DataFrame(lines)
