"""Training BraggNN in the arithmetic of an IPU, in one or in several, with checkpoints."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path

import numba
import numpy as np
from tqdm import tqdm

from ipusim.compiler.program_cache import keeps_programs
from ipusim.errors import ConfigError, resolve_name
from ipusim.files import read_tables
from ipusim.kernel_cache import cache_folder, read_kept, source_digest, write_kept
from ipusim.numerics.adam import AdamState, start_state, update
from ipusim.numerics.arithmetic import Arithmetic, ArithmeticOptions
from ipusim.numerics.checkpoint import load_checkpoint, save_checkpoint
from ipusim.numerics.executor import backward, forward
from ipusim.numerics.from_graph import program_of
from ipusim.numerics.program import Program, initial_weights
from ipusim.study.argonne.braggnn.patches import check_crops, prepare_patches, random_shifts
from ipusim.study.argonne.braggnn.peaks import Peaks, simulate_peaks
from ipusim.workload.zoo.science.braggnn import braggnn

_F = np.float32
SCHEDULES_FILE = "runs/bragg_training.toml"
CHECKPOINT_STEPS = 100
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
class Schedule:
    """How much data and how many steps; the learning rate falls linearly from first to final."""

    train_peaks: int
    test_peaks: int
    batch: int  # patches per step; what an epoch leaves over is dropped
    steps: int
    learning_rate: float
    final_learning_rate: float

    def __post_init__(self) -> None:
        for name in ("train_peaks", "test_peaks", "batch", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, which must be at least 1.")
        if self.batch > self.train_peaks:
            raise ConfigError(
                f"Batch {self.batch} is larger than the data set of {self.train_peaks} peaks; "
                f"choose at most {self.train_peaks}."
            )
        for name in ("learning_rate", "final_learning_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, which must be at least 0 and below 1."
                )

    def rate(self, step: int) -> float:
        """Return the learning rate of step 0, 1, ..."""
        done = step / max(1, self.steps - 1)
        return self.learning_rate + done * (self.final_learning_rate - self.learning_rate)


@cache
def schedules() -> dict[str, Schedule]:
    """Return the schedules of ``data/runs/bragg_training.toml`` by name, the shortest first."""
    return {name: Schedule(**entries) for name, entries in read_tables(SCHEDULES_FILE).items()}


def named_schedule(name: str) -> Schedule:
    """Return a schedule by name: "quick", "standard" or "full"."""
    return schedules()[resolve_name("schedule", name, schedules())]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """One run: arithmetic, schedule, seed.

    ``loss_scale`` multiplies the loss so that small gradients stay above the smallest half; it
    should be a power of two. The seed draws initial weights, order and shifts; runs that share it
    differ in their arithmetic only.
    """

    arithmetic: ArithmeticOptions = field(default_factory=ArithmeticOptions)
    schedule: Schedule = field(default_factory=lambda: named_schedule("quick"))
    loss_scale: float = 1024.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.loss_scale <= 2.0**24:
            raise ConfigError(
                f"Loss scale {self.loss_scale} must be above 0 and at most 2^24; 1024 will do."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBragg:
    """Weights and losses of a finished run."""

    options: TrainingOptions
    weights: Mapping[str, np.ndarray]
    losses: tuple[float, ...]


@lru_cache(maxsize=4)
def _program(batch: int) -> Program:
    return program_of(braggnn().graph(batch, "32.32"))


def _configuration(options: TrainingOptions, peaks: Peaks) -> dict[str, object]:
    """Return what a checkpoint must agree in."""
    digest = hashlib.sha256(np.ascontiguousarray(peaks.crops).tobytes())
    digest.update(np.ascontiguousarray(peaks.centres).tobytes())
    arithmetic = options.arithmetic
    return {
        **asdict(options.schedule),
        "precision": arithmetic.precision,
        "partials": "half" if arithmetic.half_partials else "float",
        "stochastic_rounding": arithmetic.half and arithmetic.stochastic_rounding,
        "rounding_seed": arithmetic.seed,
        "loss_scale": options.loss_scale,
        "seed": options.seed,
        "data": digest.hexdigest()[:16],
    }


def training_step(
    state: AdamState,
    patches: np.ndarray,
    targets: np.ndarray,
    options: TrainingOptions,
    learning_rate: float,
) -> float:
    """Take one step on a batch; return its mean squared error, as computed in single precision."""
    arithmetic = Arithmetic(options.arithmetic, step=state.step + 1)
    program = _program(len(patches))
    output = program.outputs[0]
    values = forward(program, {program.inputs[0]: patches}, state.weights, arithmetic)
    difference = values[output] - targets
    loss = float(np.mean(np.square(difference, dtype=np.float64)))
    scale = options.loss_scale if options.arithmetic.half else 1.0
    gradient = arithmetic.store(difference * _F(2 * scale / difference.size))
    wanted = frozenset(state.weights)
    gradients = backward(program, values, {output: gradient}, wanted, arithmetic)
    update(state, gradients, learning_rate, scale, arithmetic)
    return loss


def train_bragg(
    peaks: Peaks,
    options: TrainingOptions,
    *,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    stop_after: int | None = None,
) -> TrainedBragg:
    """Train BraggNN on as many peaks as the schedule says.

    A `checkpoint` is written every 100 steps, at the end, and when interrupted; a run that finds
    its own goes on from it and ends in the same bits as one without a break. Without one, the end
    of a run is kept beside the programs, and the same run of the same sources is read from there.
    `stop_after` stops early after so many steps of this call. A ConfigError or DataError refuses a
    data set that is too small or holds NaN, a loss that is not finite, a checkpoint of another
    configuration.
    """
    schedule = options.schedule
    check_crops(peaks.crops, peaks.centres)
    if len(peaks) < schedule.train_peaks:
        raise ConfigError(
            f"The schedule wants {schedule.train_peaks} peaks, but the data set has {len(peaks)}; "
            "simulate more or lower train_peaks."
        )
    peaks = peaks.part(0, schedule.train_peaks)
    configuration = _configuration(options, peaks)
    path = None if checkpoint is None else Path(checkpoint)
    kept = _kept_path(configuration) if path is None and stop_after is None else None
    content = kept and read_kept(kept)
    if content:
        return _kept_run(content, options)
    state = None if path is None else load_checkpoint(path, configuration)
    if state is None:
        weights = initial_weights(_program(schedule.batch), options.seed)
        state = start_state(weights, Arithmetic(options.arithmetic))
    last = schedule.steps if stop_after is None else min(schedule.steps, state.step + stop_after)
    label = options.arithmetic.describe()
    bar = tqdm(
        total=schedule.steps, initial=state.step, desc=label, unit="step", disable=not progress
    )
    try:
        with bar:
            while state.step < last:
                _one_step(state, peaks, options)
                bar.update()
                bar.set_postfix(mse=f"{state.losses[-1]:.2e}", refresh=False)
                if path is not None and state.step % CHECKPOINT_STEPS == 0:
                    save_checkpoint(path, state, configuration)
    except KeyboardInterrupt:
        # A step that was cut short must not be saved half done.
        if path is not None and state.step == len(state.losses):
            save_checkpoint(path, state, configuration)
        raise
    if path is not None:
        save_checkpoint(path, state, configuration)
    if kept:
        arrays = BytesIO()
        np.savez(arrays, **{_LOSSES: np.array(state.losses, float)}, **state.weights)
        write_kept(kept, arrays.getvalue())
    return TrainedBragg(options=options, weights=state.weights, losses=tuple(state.losses))


_LOSSES = "the losses"


def _kept_path(configuration: Mapping[str, object]) -> Path | None:
    """Return the file of a finished run; None where nothing is kept."""
    if not keeps_programs():
        return None
    made_by = [configuration, np.__version__, numba.__version__]
    name = hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()
    return cache_folder("trainings") / source_digest(TRAINED_BY) / name


def _kept_run(content: bytes, options: TrainingOptions) -> TrainedBragg:
    """Return a finished run from what `train_bragg` kept of it."""
    with np.load(BytesIO(content), allow_pickle=False) as file:
        weights = {name: file[name] for name in file.files}
    losses = weights.pop(_LOSSES).tolist()
    return TrainedBragg(options=options, weights=weights, losses=tuple(losses))


def _one_step(state: AdamState, peaks: Peaks, options: TrainingOptions) -> None:
    schedule = options.schedule
    chosen, shifts = _batch(len(peaks), schedule.batch, state.step, options.seed)
    patches, targets = prepare_patches(peaks.crops[chosen], peaks.centres[chosen], shifts)
    rate = schedule.rate(state.step)
    loss = training_step(state, patches, targets, options, rate)
    if not np.isfinite(loss):
        raise ConfigError(
            f"The loss is {loss} after {state.step} steps; lower the learning rate "
            f"{schedule.learning_rate} or the loss scale {options.loss_scale}."
        )
    state.losses.append(loss)


def _batch(count: int, batch: int, step: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the peaks and shifts of one step; every epoch has its own order."""
    per_epoch = count // batch
    epoch, place = divmod(step, per_epoch)
    order, shifts = _epoch(count, epoch, seed)
    chosen = slice(place * batch, (place + 1) * batch)
    return order[chosen], shifts[chosen]


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
    arithmetics: Sequence[ArithmeticOptions] = ARITHMETICS,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = False,
) -> list[TrainedBragg]:
    """Train once per arithmetic, in their order, everything else alike.

    With a `folder` each run keeps its checkpoint there, and a second call goes on where the first
    stopped. The seed is that of initial weights, order and shifts, the same for every run.
    """
    trained = []
    for arithmetic in arithmetics:
        options = TrainingOptions(arithmetic=arithmetic, schedule=schedule, seed=seed)
        path = None
        if folder is not None:
            label = re.sub(r"[^a-z0-9.]+", "-", arithmetic.describe())
            path = Path(folder) / f"braggnn-{label}-{schedule.steps}-steps-seed-{seed}.npz"
        trained.append(train_bragg(peaks, options, checkpoint=path, progress=progress))
    return trained
