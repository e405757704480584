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

from __future__ import annotations

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
    """What a run worked through until its target was reached.

    Attributes
    ----------
    run_id : str
    samples : int
        Trained, evaluations left out; published.
    evaluations : float
        How many there were, on average over the submitted runs; published.
    evaluation_items : int
        Of each evaluation.
    in_training_steps : bool
        Whether the training program evaluates, in steps of its own size.
    source : str
        Where the counts come from.
    """

    run_id: str
    samples: int
    evaluations: float
    evaluation_items: int
    in_training_steps: bool
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
    """Take predicted times to train apart: what is published and what is simulated.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    pandas.DataFrame
        Per row with a prediction: row_id, label, system, published samples and evaluations, the
        simulated training throughput (samples/s), published and predicted minutes, those of them
        that evaluation takes, and the throughput that the published time would need.
    """
    known = load_convergence()
    lines = []
    for line in frame[frame["metric"] == "time_to_train"].to_dict("records"):
        run = known.get(line["row_id"])
        if run is None or not line["calibrated"] > 0:
            continue
        evaluated = run.evaluation_work(load_run(line["row_id"]))
        work = run.samples + evaluated
        rate = work / (60.0 * line["calibrated"])
        lines.append(
            {
                "row_id": line["row_id"],
                "label": line["label"],
                "system": line["system"],
                "samples": run.samples,
                "evaluations": run.evaluations,
                "simulated_samples_per_s": rate,
                "published_min": line["published"],
                "predicted_min": line["calibrated"],
                "evaluation_min": evaluated / rate / 60.0,
                "implied_samples_per_s": work / (60.0 * line["published"]),
            }
        )
    return pd.DataFrame(lines, columns=list(_COLUMNS))


_COLUMNS = (
    "row_id",
    "label",
    "system",
    "samples",
    "evaluations",
    "simulated_samples_per_s",
    "published_min",
    "predicted_min",
    "evaluation_min",
    "implied_samples_per_s",
)
