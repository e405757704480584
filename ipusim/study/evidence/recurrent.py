"""Recurrent layers against Graphcore's IPUModel: LSTM and GRU, forward and in training.

The rows are those of `data/evidence/ipumodel_layers_dev.csv`. A training row is forward, backward
and weight gradients, without an update; sequences start in the layout in which they are sliced.
"""

from __future__ import annotations

import pandas as pd

from ipusim.compiler.lower import lower
from ipusim.compiler.stacks import Stack, load_stack
from ipusim.files import evidence_records
from ipusim.machine import Chip, load_chip
from ipusim.study.evidence.graphs import CHIPS, DTYPES, fingerprint, recurrent_graph, recurrent_of
from ipusim.study.evidence.pooling import GROUPS, cycle_errors

_SNAPSHOT = "2021-03"
_PASSES = {"fwd": "forward", "fwd+bwd+wu": "three passes"}


def recurrent_rows() -> pd.DataFrame:
    """Return every recurrent layer of the snapshot with its prediction.

    Returns
    -------
    pandas.DataFrame
        Columns operation, snapshot, chip, name, published_cycles, predicted_cycles, error_percent,
        fingerprint (whether the worst tile's bytes are those of the predicted plans).

    Raises
    ------
    DataError
        If the evidence file cannot be read.
    """
    records = evidence_records("ipumodel_layers_dev.csv")
    stack = load_stack("sdk-2.0")
    return pd.DataFrame(
        [
            _compared(record, load_chip(CHIPS[record["target"]]), stack)
            for record in records
            if record["snapshot"] == _SNAPSHOT and record["op_kind"] in ("lstm", "gru")
        ]
    )


def _compared(record: dict[str, str], chip: Chip, stack: Stack) -> dict[str, object]:
    graph = recurrent_graph(recurrent_of(record), DTYPES[record["input_dtype"]])
    program = lower(graph, chip, stack, partials=record["partials_dtype"], host_dtype=None)
    published = int(record["cycles"])
    return {
        "operation": f"{record['op_kind']}, {_PASSES[record['passes']]}",
        "snapshot": record["snapshot"],
        "chip": chip.name,
        "name": record["name"],
        "published_cycles": published,
        "predicted_cycles": program.cycles,
        "error_percent": 100.0 * (program.cycles / published - 1.0),
        "fingerprint": fingerprint(record, program, chip),
    }


def recurrent_table() -> pd.DataFrame:
    """Summarise `recurrent_rows` per operation, snapshot and chip.

    Returns
    -------
    pandas.DataFrame
        Rows; median, 90th percentile and maximum of the absolute errors of cycles in percent; how
        many worst-tile fingerprints are exact, of how many.
    """
    rows = recurrent_rows()
    exact = rows.groupby(GROUPS, sort=False)["fingerprint"]
    marks = [f"{int(group.sum())}/{len(group)}" for _, group in exact]
    return cycle_errors(rows).assign(fingerprints=marks)
