"""Two lower layers of evidence: vertices measured on silicon, operations run by IPUModel.

Vertices: 128 sizes of the AMP 1x1 vertex timed on a Bow IPU.  Operations: Graphcore's own
IPUModel results for single matrix products and fully connected layers (`data/evidence`).  Mk1
layers: grouped convolutions of ResNeXt measured on a GC2 by Jia et al.; that paper's software is
older than the stack modelled here, and nobody has explained its second stage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from ipusim.compiler import memory
from ipusim.compiler.convolution.planner import plan
from ipusim.compiler.lower import lower
from ipusim.compiler.operators.products import conv_shape
from ipusim.compiler.stacks import Stack, load_stack
from ipusim.compiler.vertices.conv import ERA_3_3, amp_1x1_cycles
from ipusim.files import evidence_records
from ipusim.machine import Chip, load_chip
from ipusim.study.evidence.graphs import (
    CHIPS,
    DTYPES,
    FULLY_CONNECTED,
    conv_of,
    fingerprint,
    forward_graph,
    product_of,
    training_graph,
)
from ipusim.study.verdicts.errors import error_figures
from ipusim.workload.graph import Conv


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suite:
    """Rows of the IPUModel table that are compared together.

    ``counts_code`` says whether memory figures contain code and stack.  The tool for fully
    connected layers runs without compiled IPU code; its smallest layers of 2021-03 take less than
    600 bytes a tile in all, those of 2020-02 4 kB more than their data.
    """

    operation: str
    snapshot: str
    target: str
    kinds: tuple[str, ...]
    stack: str
    dtype: str = "half"
    counts_code: bool = True

    @property
    def training(self) -> bool:
        """Whether the rows sum forward, data gradient and weight gradient with update."""
        return self.operation.endswith("three passes")

    def holds(self, record: dict[str, str]) -> bool:
        """Whether a row of the table is one of these."""
        return (
            record["snapshot"] == self.snapshot
            and record["target"] == self.target
            and record["op_kind"] in self.kinds
            and record["input_dtype"] == self.dtype
        )


_SUITES = (
    *(
        _Suite(
            operation="gemm, forward",
            snapshot=snapshot,
            target=target,
            kinds=("gemm",),
            stack=stack,
        )
        for snapshot, target, stack in (
            ("2021-03", "mk2", "sdk-2.0"),
            ("2021-03", "mk1", "sdk-2.0"),
            ("sdk_1.0.136", "mk1", "sdk-1.0"),
        )
    ),
    _Suite(
        operation="fully connected, forward",
        snapshot="2020-02-03_fc_fwd",
        target="mk1",
        kinds=FULLY_CONNECTED,
        stack="sdk-1.0",
    ),
    *(
        _Suite(
            operation=f"{title}, three passes",
            snapshot="2021-03",
            target=target,
            kinds=kinds,
            stack="sdk-2.0",
            dtype=dtype,
            counts_code=kinds[0] == "conv",
        )
        for title, kinds, dtype in (
            ("convolution", ("conv", "conv_depthwise"), "half"),
            ("fully connected", ("fully_connected",), "half"),
            ("fully connected, float", ("fully_connected",), "float"),
            ("grouped fully connected", ("fully_connected_grouped",), "half"),
        )
        for target in ("mk2", "mk1")
    ),
)
_MK1_CASE = re.compile(
    r"Conv(?P<stage>\d)_\d: k=(?P<kernel>\d)x\d in=(?P<field>\d+)x\d+ Cin=(?P<cin>\d+) "
    r"Cout=(?P<cout>\d+) stride=1 groups=(?P<groups>\d+)"
)


def vertex_rows() -> pd.DataFrame:
    """Return the AMP 1x1 vertex against every measured size.

    Returns
    -------
    pandas.DataFrame
        Columns size (rows of the product), measured_cycles, predicted_cycles, error_percent.
    """
    rows = []
    for record in evidence_records("ipu_microbench.csv"):
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


def operation_rows() -> pd.DataFrame:
    """Return every compared row of the IPUModel table beside its prediction.

    Returns
    -------
    pandas.DataFrame
        Columns operation, snapshot, chip, name, published_cycles, predicted_cycles,
        error_percent, memory_error_percent, fingerprint (True where the worst tile's bytes are
        those of the predicted plans, None where the table has none), plan.
    """
    rows = []
    records = evidence_records("ipumodel_layers_dev.csv")
    for suite in _SUITES:
        chip, stack = load_chip(CHIPS[suite.target]), load_stack(suite.stack)
        rows += [
            {"operation": suite.operation, "snapshot": suite.snapshot, "chip": chip.name}
            | _compare(record, suite, chip, stack)
            for record in records
            if suite.holds(record)
        ]
    return pd.DataFrame(rows)


def _compare(record: dict[str, str], suite: _Suite, chip: Chip, stack: Stack) -> dict[str, object]:
    layer = conv_of(record) if record["op_kind"].startswith("conv") else product_of(record)
    build = training_graph if suite.training else forward_graph
    graph = build(layer, DTYPES[record["input_dtype"]])
    program = lower(graph, chip, stack, partials=record["partials_dtype"], host_dtype=None)
    measured = memory.measure(graph, program, chip)
    used = measured.total_bytes if suite.counts_code else measured.total_bytes_uncompiled
    published = int(record["cycles"])
    return {
        "name": record["name"],
        "published_cycles": published,
        "predicted_cycles": program.cycles,
        "error_percent": 100.0 * (program.cycles / published - 1.0),
        "memory_error_percent": 100.0 * (used / int(record["total_memory_bytes"]) - 1.0),
        "fingerprint": fingerprint(record, program, chip),
        "plan": "; ".join(op.plan for op in program.ops if op.plan),
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
        used = error_figures(group["memory_error_percent"], "median", "p90")
        known = group["fingerprint"].dropna()
        lines.append(
            {
                "operation": operation,
                "snapshot": snapshot,
                "chip": chip,
                "rows": len(group),
                **error_figures(group["error_percent"], "median", "p90"),
                **{f"memory_{column}": value for column, value in used.items()},
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
    for record in evidence_records("mk1_microbench.csv"):
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
        graph = forward_graph(params, "float16")
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


def mk1_layers_table() -> pd.DataFrame:
    """Summarise `mk1_layer_rows` per stage: rows, median and maximum absolute error, bias."""
    lines = []
    for stage, group in mk1_layer_rows().groupby("stage"):
        lines.append(
            {
                "stage": int(stage),
                "rows": len(group),
                **error_figures(group["error_percent"], "median", "max", "bias"),
            }
        )
    return pd.DataFrame(lines)
