"""Training BraggNN on simulated peaks in the arithmetic of an IPU, in one or in several."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numba
import numpy as np

from ipusim.compiler.program_cache import keeps_programs
from ipusim.errors import ConfigError, resolve_name
from ipusim.files import read_tables
from ipusim.kernel_cache import kept_path, read_kept, source_digest, write_kept
from ipusim.numerics import trainer
from ipusim.numerics.arithmetic import Arithmetic, ArithmeticOptions
from ipusim.numerics.executor import forward
from ipusim.numerics.from_graph import program_of
from ipusim.numerics.program import Program
from ipusim.numerics.trainer import Trained, TrainingOptions
from ipusim.study.argonne.braggnn.patches import check_crops, prepare_patches, random_shifts
from ipusim.study.argonne.braggnn.peaks import Peaks, simulate_peaks
from ipusim.workload import zoo

SCHEDULES_FILE = "runs/bragg_training.toml"
PREDICTION_BATCH = 512
_TEST_SEED = 1_000_003  # added to the seed: held-out peaks come from a stream of their own
ARITHMETICS = (
    ArithmeticOptions(precision="32.32"),
    ArithmeticOptions(precision="16.32"),
    ArithmeticOptions(precision="16.16"),
    ArithmeticOptions(precision="16.16", stochastic_rounding=False),
)
"""The fp32 reference, fp32 masters, and all in half, with and without stochastic rounding."""
TRAINED_BY = ("numerics", "study/argonne/braggnn", "workload")
"""Sources that the weights of a finished run depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(trainer.Schedule):
    """How much data and how many steps; patches that an epoch leaves over are dropped."""

    train_peaks: int
    test_peaks: int

    def __post_init__(self) -> None:
        trainer.Schedule.__post_init__(self)
        if self.batch > self.train_peaks:
            raise ConfigError(
                f"Batch {self.batch} is larger than the data set of {self.train_peaks} peaks; "
                f"choose at most {self.train_peaks}."
            )


@cache
def schedules() -> dict[str, Schedule]:
    """Return the schedules of ``data/runs/bragg_training.toml`` by name, the shortest first."""
    return {name: Schedule(**entries) for name, entries in read_tables(SCHEDULES_FILE).items()}


def named_schedule(name: str) -> Schedule:
    """Return a schedule by name: "quick", "standard" or "full"."""
    return schedules()[resolve_name("schedule", name, schedules())]


@lru_cache(maxsize=4)
def _program(batch: int) -> Program:
    return program_of(zoo.braggnn().graph(batch, "32.32"))


def train_bragg(
    peaks: Peaks,
    options: TrainingOptions,
    *,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> Trained:
    """Train BraggNN on as many peaks as the schedule says, as `ipusim.numerics.trainer.train` does.

    Without a checkpoint the end of a run is kept beside the programs, and the same run of the same
    sources is read from there. Order and shifts are drawn from the seed; runs that share it differ
    in their arithmetic only. A ConfigError or DataError refuses a data set that is too small or
    holds NaN.
    """
    schedule = options.schedule
    check_crops(peaks.crops, peaks.centres)
    if len(peaks) < schedule.train_peaks:
        raise ConfigError(
            f"The schedule wants {schedule.train_peaks} peaks, but the data set has {len(peaks)}; "
            "simulate more or lower train_peaks."
        )
    peaks = peaks.part(0, schedule.train_peaks)
    data = hashlib.sha256(peaks.crops.tobytes() + peaks.centres.tobytes()).hexdigest()[:16]
    kept = _kept_path(options.configuration(data)) if checkpoint is None else None
    if kept and (content := read_kept(kept)):
        run = json.loads(content)
        weights = {name: np.array(values, np.float32) for name, values in run["weights"].items()}
        return Trained(options=options, weights=weights, losses=tuple(run["losses"]))

    def batches(step: int) -> tuple[np.ndarray, np.ndarray]:
        """Every epoch has its own order."""
        epoch, place = divmod(step, len(peaks) // schedule.batch)
        order, shifts = _epoch(len(peaks), epoch, options.seed)
        own = slice(place * schedule.batch, (place + 1) * schedule.batch)
        return prepare_patches(peaks.crops[order[own]], peaks.centres[order[own]], shifts[own])

    run = {"checkpoint": checkpoint, "progress": progress}
    trained = trainer.train(_program(schedule.batch), batches, options, data=data, **run)
    if kept:
        weights = {name: values.tolist() for name, values in trained.weights.items()}
        write_kept(kept, json.dumps({"weights": weights, "losses": trained.losses}).encode())
    return trained


def _kept_path(configuration: Mapping[str, object]) -> Path | None:
    """Return the file of a finished run; None where nothing is kept."""
    if not keeps_programs():
        return None
    made_by = [configuration, np.__version__, numba.__version__]
    return kept_path("trainings", source_digest(TRAINED_BY), json.dumps(made_by, sort_keys=True))


@lru_cache(maxsize=1)
def _epoch(count: int, epoch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng([seed, epoch, 0xE0])
    return generator.permutation(count), random_shifts(count, generator)


def predict_centres(
    patches: np.ndarray, weights: Mapping[str, np.ndarray], arithmetic: ArithmeticOptions
) -> np.ndarray:
    """Return predicted centres (count, 2) as fractions of the patch, column first."""
    found = []
    for start in range(0, len(patches), PREDICTION_BATCH):
        part = patches[start : start + PREDICTION_BATCH]
        program = _program(len(part))
        runner = Arithmetic(arithmetic, step=-1 - start)
        values = forward(program, {program.inputs[0]: part}, weights, runner, keep=False)
        found.append(values[program.outputs[0]])
    return np.concatenate(found)


def simulate_sets(schedule: Schedule, seed: int) -> tuple[Peaks, Peaks]:
    """Return the training and the held-out peaks of a schedule."""
    training = simulate_peaks(schedule.train_peaks, seed)
    return training, simulate_peaks(schedule.test_peaks, seed + _TEST_SEED)


def train_in_each(
    peaks: Peaks,
    schedule: Schedule,
    *,
    seed: int = 0,
    rounding_seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = False,
) -> list[Trained]:
    """Train once per arithmetic of `ARITHMETICS`, all else alike.

    A `rounding_seed` above 0 is that of the random bits: only what rounds stochastically is
    trained. A `folder` keeps checkpoints to go on from.
    """
    trained = []
    for arithmetic in ARITHMETICS:
        if rounding_seed and not (arithmetic.half and arithmetic.stochastic_rounding):
            continue
        arithmetic = replace(arithmetic, seed=rounding_seed)
        options = TrainingOptions(arithmetic=arithmetic, schedule=schedule, seed=seed)
        path = None
        if folder is not None:
            label = re.sub(r"[^a-z0-9.]+", "-", arithmetic.describe())
            path = Path(folder) / f"braggnn-{label}-{schedule.steps}-steps-seed-{seed}.npz"
        trained.append(train_bragg(peaks, options, checkpoint=path, progress=progress))
    return trained
