"""Training a network in the arithmetic of an IPU: Adam, mean squared error, checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ipusim.errors import ConfigError
from ipusim.numerics import adam
from ipusim.numerics.arithmetic import Arithmetic, ArithmeticOptions
from ipusim.numerics.executor import backward, forward
from ipusim.numerics.program import Program, initial_weights

CHECKPOINT_STEPS = 100
_F = np.float32
Batches = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Return inputs and targets of step 0, 1, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How many steps; the learning rate falls linearly from first to final."""

    batch: int  # samples per step
    steps: int
    learning_rate: float
    final_learning_rate: float

    def __post_init__(self) -> None:
        for name in ("batch", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, which must be at least 1.")
        for name in ("learning_rate", "final_learning_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, which must be at least 0 and below 1."
                )

    def rate(self, step: int) -> float:
        """Return the learning rate of step 0, 1, ..."""
        done = step / max(1, self.steps - 1)
        return self.learning_rate + done * (self.final_learning_rate - self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """One run: arithmetic, schedule, seed.

    ``loss_scale`` multiplies the loss so that small gradients stay above the smallest half; it
    should be a power of two. The seed draws the initial weights, and what `Batches` draw from it.
    """

    schedule: Schedule
    arithmetic: ArithmeticOptions = field(default_factory=ArithmeticOptions)
    loss_scale: float = 1024.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.loss_scale <= 2.0**24:
            raise ConfigError(
                f"Loss scale {self.loss_scale} must be above 0 and at most 2^24; 1024 will do."
            )

    def configuration(self, data: str) -> dict[str, object]:
        """Return what a checkpoint must agree in; `data` is a digest of what is trained on."""
        arithmetic = self.arithmetic
        return {
            **asdict(self.schedule),
            "precision": arithmetic.precision,
            "partials": "half" if arithmetic.half_partials else "float",
            "stochastic_rounding": arithmetic.half and arithmetic.stochastic_rounding,
            "rounding_seed": arithmetic.seed,
            "loss_scale": self.loss_scale,
            "seed": self.seed,
            "data": data,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Weights and losses of a finished run."""

    options: TrainingOptions
    weights: Mapping[str, np.ndarray]
    losses: tuple[float, ...]


def training_step(
    program: Program,
    state: adam.AdamState,
    inputs: np.ndarray,
    targets: np.ndarray,
    options: TrainingOptions,
) -> float:
    """Take one step on a batch; return its mean squared error, as computed in single precision."""
    rate = options.schedule.rate(state.step)
    arithmetic = Arithmetic(options.arithmetic, step=state.step + 1)
    output = program.outputs[0]
    values = forward(program, {program.inputs[0]: inputs}, state.weights, arithmetic)
    difference = values[output] - targets
    loss = float(np.mean(np.square(difference, dtype=np.float64)))
    scale = options.loss_scale if options.arithmetic.half else 1.0
    gradient = arithmetic.store(difference * _F(2 * scale / difference.size))
    wanted = frozenset(state.weights)
    gradients = backward(program, values, {output: gradient}, wanted, arithmetic)
    adam.update(state, gradients, rate, scale, arithmetic)
    return loss


def train(
    program: Program,
    batches: Batches,
    options: TrainingOptions,
    *,
    data: str = "",
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> Trained:
    """Train a network with one input and one output on the mean squared error.

    The `program` is that for one batch; of a run that goes on `batches` are asked for the steps
    that are left. A `checkpoint`, which must agree in `data`, a digest of what is trained on, is
    written every `CHECKPOINT_STEPS`, at the end, and when interrupted; a run that finds its own
    goes on from it and ends in the same bits as one without a break. `ConfigError` if a loss is not
    finite, `DataError` for a checkpoint that is damaged or of another configuration, `StudyError`
    for one that cannot be written.
    """
    schedule, configuration = options.schedule, options.configuration(data)
    path = None if checkpoint is None else Path(checkpoint)
    state = None if path is None else adam.load_checkpoint(path, configuration)
    if state is None:
        weights = initial_weights(program, options.seed)
        state = adam.start_state(weights, Arithmetic(options.arithmetic))
    label = options.arithmetic.describe()
    bar = tqdm(
        total=schedule.steps, initial=state.step, desc=label, unit="step", disable=not progress
    )

    def save() -> None:
        if path is not None:
            adam.save_checkpoint(path, state, configuration)

    try:
        with bar:
            while state.step < schedule.steps:
                loss = training_step(program, state, *batches(state.step), options)
                if not np.isfinite(loss):
                    raise ConfigError(
                        f"The loss is {loss} after {state.step} steps; lower the learning rate "
                        f"{schedule.learning_rate} or the loss scale {options.loss_scale}."
                    )
                state.losses.append(loss)
                bar.update()
                bar.set_postfix(mse=f"{loss:.2e}", refresh=False)
                if state.step % CHECKPOINT_STEPS == 0:
                    save()
    except KeyboardInterrupt:
        # A step that was cut short must not be saved half done.
        if state.step == len(state.losses):
            save()
        raise
    save()
    return Trained(options=options, weights=state.weights, losses=tuple(state.losses))
