"""Operations without a product against Graphcore's IPUModel: pooling, reductions, embeddings.

The rows are those of `data/evidence/ipumodel_layers_dev.csv`. A pooling row is a maximum, forward
and gradient; a reduction has its input spread linearly; an embedding is a lookup followed by the
addition of gradients into the table. Single operations start in the layout that they want.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pandas as pd

from ipusim.compiler.operators.gather import gather_steps, update_add_steps
from ipusim.compiler.operators.gather_plan import plan_embedding
from ipusim.compiler.operators.pool import PoolParams, pool_steps, pooled_grouping
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.stacks import Stack, load_stack
from ipusim.compiler.superstep import Superstep
from ipusim.files import evidence_records
from ipusim.machine import Chip, load_chip
from ipusim.study.evidence.graphs import CHIPS, DTYPES
from ipusim.study.verdicts.errors import error_figures

GROUPS = ["operation", "snapshot", "chip"]
"""What the errors of single operations are summarised by."""
_FILE = "ipumodel_layers_dev.csv"
_STACKS = {"2021-03": "sdk-2.0", "2020-03": "sdk-1.0"}
_EARLY_ESTIMATORS = {"2020-03": "2020-01"}
"""The IPUModel of early 2020 estimates with the formulas of its day; stacks model silicon."""


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x"))


def _option(record: dict[str, str], name: str, default: int) -> int:
    for option in record["special_options"].split("; "):
        key, _, value = option.partition("=")
        if key == name:
            return int(value)
    return default


def _pool_steps(record: dict[str, str], chip: Chip, era: str) -> list[Superstep]:
    """Maximum forward, then its gradient, which reads what the forward pass wrote."""
    params = PoolParams(
        kind="max",
        batch=int(record["batch"]),
        channels=int(record["in_channels"]),
        field=_sizes(record["field"]),
        kernel=_sizes(record["kernel"]),
        stride=_sizes(record["stride"]),
        padding_lower=_sizes(record["padding_lower"]),
        padding_upper=_sizes(record["padding_upper"]),
    )
    dtype = DTYPES[record["input_dtype"]]
    grouping = _option(record, "fwd-chans-per-group", 1)
    pooled = pooled_grouping(params, dtype, chip, era=era, channel_grouping=grouping)
    forward = pool_steps(params, dtype, chip, era=era, channel_grouping=grouping)
    return forward + pool_steps(
        params, dtype, chip, era=era, backward=True, channel_grouping=pooled
    )


def _reduce_steps(record: dict[str, str], chip: Chip, era: str) -> list[Superstep]:
    return reduce_steps(
        _sizes(record["reduce_shape"]),
        _sizes(record["reduce_dims"]),
        DTYPES[record["input_dtype"]],
        chip,
        era=era,
        function=record["reduce_op"].lower(),
    )


def _embedding_steps(record: dict[str, str], chip: Chip, era: str) -> list[Superstep]:
    """Planner and vertices of embeddings are early ones up to SDK 2.0."""
    rows, width = int(record["emb_rows"]), int(record["emb_width"])
    dtype = DTYPES[record["input_dtype"]]
    plan = plan_embedding(rows, width, int(record["emb_indices"]), dtype, chip, goal="memory")
    common = {"era": "2020-01", "distribution": "worst"}
    gather = gather_steps(plan, rows, dtype, chip, **common)
    update = update_add_steps(
        plan, rows, width, dtype, chip, zero_first=False, wide_partials=True, **common
    )
    return gather + update


_SUITES: tuple[tuple[str, str, Callable[..., list[Superstep]], Iterable[str]], ...] = (
    ("pooling, forward and gradient", "pooling", _pool_steps, ("2021-03", "2020-03")),
    ("reduce", "reduce", _reduce_steps, ("2021-03", "2020-03")),
    ("embedding, lookup and update", "embedding", _embedding_steps, ("2021-03",)),
)


def pooling_rows() -> pd.DataFrame:
    """Return every pooling, reduction and embedding of the chosen snapshots with its prediction.

    Returns
    -------
    pandas.DataFrame
        Columns operation, snapshot, chip, name, published_cycles, predicted_cycles,
        error_percent.

    Raises
    ------
    DataError
        If the evidence file cannot be read.
    """
    records = evidence_records(_FILE)
    rows = []
    for title, kind, steps_of, snapshots in _SUITES:
        for snapshot in snapshots:
            stack = load_stack(_STACKS[snapshot])
            era = _EARLY_ESTIMATORS.get(snapshot, stack.codelets)
            for record in records:
                if record["snapshot"] != snapshot or record["op_kind"] != kind:
                    continue
                chip = load_chip(CHIPS[record["target"]])
                chip = replace(chip, tiles=_option(record, "tiles-per-ipu", chip.tiles))
                steps = steps_of(record, chip, era)
                rows.append(_compared(title, snapshot, chip, record, steps, stack))
    return pd.DataFrame(rows)


def _compared(
    title: str,
    snapshot: str,
    chip: Chip,
    record: dict[str, str],
    steps: list[Superstep],
    stack: Stack,
) -> dict[str, object]:
    predicted = sum(
        step.total_cycles(
            chip, stack.superstep_cycles if step.exchange_bytes else stack.compute_set_cycles
        )
        for step in steps
    )
    published = int(record["cycles"])
    return {
        "operation": title,
        "snapshot": snapshot,
        "chip": chip.name,
        "name": record["name"],
        "published_cycles": published,
        "predicted_cycles": predicted,
        "error_percent": 100.0 * (predicted / published - 1.0),
    }


def pooling_table() -> pd.DataFrame:
    """Summarise `pooling_rows` per operation, snapshot and chip, as `cycle_errors` does."""
    return cycle_errors(pooling_rows())


def cycle_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise compared operations per operation, snapshot and chip.

    Parameters
    ----------
    rows : pandas.DataFrame
        With the columns of `GROUPS` and ``error_percent``.

    Returns
    -------
    pandas.DataFrame
        Rows; median, 90th percentile and maximum of the absolute errors of cycles in percent.
    """
    lines = []
    groups = rows.groupby(GROUPS, sort=False)
    for (operation, snapshot, chip), group in groups:
        lines.append(
            {
                "operation": operation,
                "snapshot": snapshot,
                "chip": chip,
                "rows": len(group),
                **error_figures(group["error_percent"], "median", "p90", "max"),
            }
        )
    return pd.DataFrame(lines)
