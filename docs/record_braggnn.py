"""Record longer trainings of BraggNN in data/evidence than a notebook may take.

    python docs/record_braggnn.py --schedule standard --seeds 0 1 2
    python docs/record_braggnn.py --schedule standard --seeds 0 --rounding-seed 1

It keeps a checkpoint per run, so that it can be stopped and called again.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ipusim import files
from ipusim.errors import IpuSimError
from ipusim.files import write_text
from ipusim.study.argonne.braggnn import training as bragg
from ipusim.study.argonne.braggnn.peaks import Peaks
from ipusim.study.argonne.training import (
    COLUMNS,
    PLANNED,
    RECORD,
    error_table,
    train,
    training_errors,
)


def record_rows(
    schedule: str, seed: int, runs: Sequence[bragg.Trained], held_out: Peaks
) -> pd.DataFrame:
    """Return the lines that the record holds of one seed."""
    plan = bragg.named_schedule(schedule)
    table = error_table(training_errors(runs, held_out))
    same = {name: getattr(plan, name) for name in PLANNED}
    same |= {"schedule": schedule, "seed": seed}
    same["rounding_seed"] = runs[0].options.arithmetic.seed
    return table.assign(**same)[list(COLUMNS)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and put the results into the record in place of older ones of the same seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=list(bragg.schedules()), default="standard")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounding-seed", type=int, default=0)
    parser.add_argument("--folder", default="build/braggnn", help="where checkpoints are kept")
    parser.add_argument("--record", type=Path, default=files.data_dir() / "evidence" / RECORD)
    options = parser.parse_args(arguments)
    try:
        for seed in options.seeds:
            how = {"checkpoint_dir": options.folder, "rounding_seed": options.rounding_seed}
            runs, held_out = train(options.schedule, seed, **how)
            _replace_record(options.record, record_rows(options.schedule, seed, runs, held_out))
    except IpuSimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _replace_record(path: Path, rows: pd.DataFrame) -> None:
    keys = ["schedule", "seed", "rounding_seed"]
    if path.exists():
        known = pd.read_csv(path)
        same = (known[keys] == rows[keys].iloc[0]).all(axis=1)
        rows = pd.concat([known[~same], rows], ignore_index=True)
    rows["schedule"] = pd.Categorical(rows["schedule"], list(bragg.schedules()))
    rows = rows.sort_values(keys, kind="stable")
    write_text(path, rows.to_csv(index=False, float_format="%.5f", lineterminator="\n"))


if __name__ == "__main__":
    sys.exit(main())
