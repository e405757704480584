"""Two lower layers of evidence: vertices measured on silicon, operations run by IPUModel.

Vertices: 128 sizes of the AMP 1x1 vertex timed on a Bow IPU.  Operations: Graphcore's own IPUModel
results for single operations (`data/evidence`), each a small graph that takes the way of every
other graph, through `lower`.  Mk1 layers: grouped convolutions of ResNeXt measured on a GC2 by Jia
et al.; that paper's software is older than the stack modelled here, and nobody has explained its
second stage.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ipusim.compiler import memory
from ipusim.compiler.eras import ERA_3_3
from ipusim.compiler.lower import lower
from ipusim.compiler.stacks import PARTIALS_BYTES, load_stack
from ipusim.compiler.vertices.amp import amp_1x1_cycles, amp_vertex
from ipusim.compiler.vertices.conv import PART
from ipusim.files import evidence_records, read
from ipusim.machine import load_chip
from ipusim.study.evidence.graphs import CHIPS, fingerprint, graph_of, option
from ipusim.study.verdicts.errors import error_percent, errors_by_group, errors_of
from ipusim.workload.layers import GraphBuilder

SUITES_FILE = "evidence/ipumodel_suites.csv"
PRODUCTS, OTHERS, RECURRENT = "products", "others", "recurrent"
"""Products and convolutions; pooling, reductions and embeddings; LSTM and GRU."""
ALL = {
    PRODUCTS: "Operations against Graphcore's IPUModel",
    OTHERS: "Pooling, reductions and embeddings against Graphcore's IPUModel",
    RECURRENT: "Recurrent layers against Graphcore's IPUModel",
}
"""All groups of operations, and what their tables are called."""
GROUPS = ["operation", "snapshot", "chip"]
"""What the errors of single operations are summarised by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Rows of the IPUModel table that are compared together."""

    operation: str
    kinds: tuple[str, ...]
    group: str = PRODUCTS  # or OTHERS, RECURRENT
    snapshot: str = "2021-03"
    targets: tuple[str, ...] = ("mk2", "mk1")
    stack: str = "sdk-2.0"
    # The IPUModel of early 2020 estimates with the formulas of its day; stacks model silicon.
    codelets: str = ""
    dtype: str = ""
    passes: str = ""
    # Whether memory figures contain code and stack, as not every tool runs with compiled IPU code.
    # Without it the smallest layers of 2021-03 take less than 600 bytes a tile in all, but those of
    # 2020 take 4 kB more than their data.
    counts_code: bool = True
    file: str = "ipumodel_layers_dev.csv"  # those of the other were kept back from the model

    def holds(self, record: dict[str, str], target: str) -> bool:
        """Whether a row of the table is one of these, on a chip."""
        return (
            record["snapshot"] == self.snapshot
            and record["target"] == target
            and record["op_kind"] in self.kinds
            and self.dtype in ("", record["input_dtype"])
            and self.passes in ("", record["passes"])
        )


_MK1_CASE = re.compile(
    r"Conv(?P<stage>\d)_\d: k=(?P<kernel>\d)x\d in=(?P<field>\d+)x\d+ Cin=(?P<cin>\d+) "
    r"Cout=(?P<cout>\d+) stride=1 groups=(?P<groups>\d+)"
)


def vertex_rows() -> pd.DataFrame:
    """Return the AMP 1x1 vertex against every measured size: cycles and error in percent."""
    rows = []
    amp = amp_vertex((16, 16), 16, (2, 2), ERA_3_3, 16)
    amp["weight_load"] = 64
    part = np.zeros(1, PART)
    for name in ("rows", "group_grains", "in_grains", "out_grains"):
        part[name] = 1
    for record in evidence_records("ipu_microbench.csv"):
        if "ConvPartial1x1 AMP" not in record["operation"] or record["metric"] != "cycles":
            continue
        size = int(record["size"].removeprefix("N="))
        part["row_length"] = size
        vertex, share = (one.view(np.recarray)[0] for one in (amp, part))
        rows.append((size, float(record["value"]), int(amp_1x1_cycles(vertex, share))))
    frame = pd.DataFrame(rows, columns=["size", "measured_cycles", "predicted_cycles"])
    return frame.assign(error_percent=errors_of(frame, "predicted_cycles", "measured_cycles"))


def vertices_table() -> pd.DataFrame:
    """Summarise `vertex_rows`: rows, mean and maximum absolute error in percent."""
    frame = vertex_rows().assign(vertex="AMP 1x1, half partials, one tile of a Bow IPU")
    return errors_by_group(frame, ["vertex"], "mean", "max")


def suite_rows(group: str) -> pd.DataFrame:
    """Return every compared row of a group of suites beside its prediction and `fingerprint`."""
    suites = [suite for suite in read(Suite, SUITES_FILE) if suite.group == group]
    return pd.DataFrame([line for suite in suites for line in _compared(suite)])


def _compared(suite: Suite) -> Iterator[dict[str, object]]:
    records = evidence_records(suite.file)
    stack = load_stack(suite.stack)
    stack = replace(stack, codelets=suite.codelets or stack.codelets)
    for target in suite.targets:
        whole = load_chip(CHIPS[target])
        for record in (line for line in records if suite.holds(line, target)):
            chip = replace(whole, tiles=option(record, "tiles-per-ipu", whole.tiles))
            graph, layouts = graph_of(record)
            if (partials := record["partials_dtype"]) not in PARTIALS_BYTES:
                partials = stack.partials
            with_partials = replace(stack, partials=partials)
            program = lower(graph, chip, with_partials, host_dtype=None, layouts=layouts)
            measured = memory.measure(graph, program, chip)
            used = measured.total_bytes if suite.counts_code else measured.total_bytes_uncompiled
            published = int(record["cycles"])
            yield {
                "operation": suite.operation,
                "snapshot": suite.snapshot,
                "chip": chip.name,
                "name": record["name"],
                "published_cycles": published,
                "predicted_cycles": program.cycles,
                "error_percent": 100.0 * (program.cycles / published - 1.0),
                "memory_error_percent": 100.0 * (used / int(record["total_memory_bytes"]) - 1.0),
                "fingerprint": fingerprint(record, program, chip),
                "plan": "; ".join(op.plan for op in program.ops if op.plan),
            }


def operations_table(group: str = PRODUCTS) -> pd.DataFrame:
    """Summarise `suite_rows` per operation, snapshot and chip.

    Errors of cycles and of memory, but for products the largest too; how many fingerprints are
    exact, but for those of `OTHERS`.
    """
    rows = suite_rows(group)
    figures = ["median", "p90", *([] if group == PRODUCTS else ["max"])]
    table = errors_by_group(rows, GROUPS, *figures)
    of_bytes = rows.assign(error_percent=rows["memory_error_percent"])
    of_bytes = errors_by_group(of_bytes, GROUPS, *figures).drop(columns=[*GROUPS, "rows"])
    table = table.join(of_bytes.add_prefix("memory_"))
    if group != OTHERS:
        exact = rows.groupby(GROUPS, sort=False)["fingerprint"].agg(["sum", "count"])
        shown = [f"{int(held)}/{of}" if of else "" for held, of in exact.itertuples(index=False)]
        table["fingerprints"] = shown
    return table


def mk1_layer_rows() -> pd.DataFrame:
    """Return the grouped convolutions that Jia et al. measured on one GC2, with predictions.

    Jia et al. 2019, arXiv:1912.03413, tables 5.3 and 5.5; padding is taken to keep the field.
    """
    chip, stack = load_chip("GC2"), load_stack("sdk-1.0")
    rows = []
    for record in evidence_records("mk1_microbench.csv"):
        case = _MK1_CASE.search(record["case"])
        if record["operation"] != "conv fwd" or case is None:
            continue
        batch, kernel, field = int(record["batch"]), int(case["kernel"]), int(case["field"])
        g = GraphBuilder("layer")
        x = g.input("x", (batch, int(case["cin"]), field, field))
        settings = {"padding": kernel // 2, "groups": int(case["groups"])}
        y = g.conv("forward", x, int(case["cout"]), kernel, **settings)
        graph = g.finish(y).with_precision("16.16")
        program = lower(graph, chip, stack, host_dtype=None)
        measured = 2 * graph.macs / (float(record["value"]) * 1e12)
        predicted = program.cycles / chip.clock_hz
        layer = record["case"].removeprefix("ResNeXt ").split(":")[0]
        head = (record["id"], int(case["stage"]), layer, batch)
        error = error_percent(predicted, measured)
        rows.append((*head, 1e6 * measured, 1e6 * predicted, error, program.ops[0].plan))
    names = ["row_id", "stage", "layer", "batch", "measured_us", "predicted_us", "error_percent",
             "plan"]  # fmt: skip
    return pd.DataFrame(rows, columns=names)


def mk1_layers_table() -> pd.DataFrame:
    """Summarise `mk1_layer_rows` per stage: rows, median and maximum absolute error, bias."""
    return errors_by_group(mk1_layer_rows(), ["stage"], "median", "max", "bias", sort=True)
