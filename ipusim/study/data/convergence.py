"""Time to an accuracy: published samples and evaluations, simulated throughput.

How many samples a network needs at a batch size is a matter of its training, not of the machine: it
is read from the public logs of the submissions (samples and counts of evaluations, no times), and
stands in ``data/runs/time_to_train.csv``. Simulated is the rate at which they are worked through.
Where the training program evaluates too, an evaluation takes whole steps of it, and a pack that
training fills with several sequences holds one (BERT: bert_model.py and bert.py of the submission,
get_online_evaluation_dataset and bert_train_loop).
Start-up counts for nothing: the clock of MLPerf starts after initialisation and compilation
(mlcommons/training_policies, "model compilation and initialization").
"""

import math
from dataclasses import dataclass

import pandas as pd

from ipusim.files import read
from ipusim.study.data.runs import RunConfiguration, load_run

FILE = "runs/time_to_train.csv"
FORWARD_SHARE = 1.0 / 3.0
"""An evaluated item against a trained one [A]: the forward pass is one of the three passes of equal
multiply-accumulates, and nothing else of the step is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """What a run worked through until its target was reached, as published."""

    run_id: str
    samples: int  # trained, evaluations left out
    evaluations: float  # on average over the submitted runs
    evaluation_items: int  # of each evaluation
    in_training_steps: bool  # whether the training program evaluates, in steps of its own size
    source: str

    def evaluation_work(self, run: RunConfiguration) -> float:
        """Return the evaluations of a run, as so many trained samples."""
        items = self.evaluation_items
        if self.in_training_steps:
            steps = math.ceil(items / run.items_per_step)
            items = steps * run.items_per_step * run.reported_per_item
        return FORWARD_SHARE * self.evaluations * items

    def seconds_at(self, items_per_s: float, run: RunConfiguration) -> float:
        """Return the time to the target of a run at the rate of its items (packs, images)."""
        work = self.samples + self.evaluation_work(run)
        return work / (items_per_s * run.reported_per_item)


def load_convergence() -> dict[str, Convergence]:
    """Return what is published about convergence, by run."""
    return {run.run_id: run for run in read(Convergence, FILE)}


def time_to_train_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Take times to train of `verdicts` apart; implied is the rate that the print would need."""
    known = load_convergence()
    rows = frame[frame["row_id"].isin(known) & (frame["metric"] == "time_to_train")]
    rows = rows[rows["calibrated"] > 0].reset_index(drop=True)
    runs = [known[name] for name in rows["row_id"]]
    samples = pd.Series([run.samples for run in runs], dtype=int)
    evaluated = pd.Series([run.evaluation_work(load_run(run.run_id)) for run in runs], dtype=float)
    work = samples + evaluated
    rate = work / (60.0 * rows["calibrated"])
    return rows[["row_id", "label", "system"]].assign(
        samples=samples,
        evaluations=[run.evaluations for run in runs],
        simulated_samples_per_s=rate,
        published_min=rows["published"],
        predicted_min=rows["calibrated"],
        evaluation_min=evaluated / rate / 60.0,
        implied_samples_per_s=work / (60.0 * rows["published"]),
    )
