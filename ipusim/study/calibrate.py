"""The one fitted constant of each software stack: a fixed cost per step, in seconds.

The fit is closed-form. With device time s_i from the specification tier and published time t_i per
step, the cost c >= 0 minimises the mean of |(s_i + c) / t_i - 1|. That sum is piecewise linear and
convex in c, so its minimum is the weighted median of t_i - s_i with weights 1 / t_i: robust against
single rows and the same on every machine.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipusim import paths
from ipusim.errors import DataError
from ipusim.study.outputs import write_text
from ipusim.study.predictor import Predictor, predict
from ipusim.study.published import PublishedRow, load_rows

CALIBRATION_FILE = "calibration.toml"
FITTING_STUDY = "results"
"""Only the results page is fitted on: its recipes are public. Qwant, TAMU and Argonne never are."""

_HEADER = """\
# Written by `ipusim calibrate`; do not edit by hand.
# One constant per software stack: a fixed cost per step in seconds, on top of what the
# specification tier predicts. It minimises the mean absolute relative error of time per step over
# the rows it names. A stack without rows of its own takes the constant fitted on all other stacks
# (pooled = true). Comparisons never use these values: they refit without the row's own family.
schema = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One published throughput beside the device time predicted for it.

    Attributes
    ----------
    row_id, family, stack : str
        Which row.
    specification_s : float
        Predicted time per step without any fitted cost.
    published_s : float
        Time per step that the published throughput implies.
    """

    row_id: str
    family: str
    stack: str
    specification_s: float
    published_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A fitted cost per step.

    Attributes
    ----------
    stack : str
        The stack it is for.
    value_s : float
        Seconds per step; 0 when there is no row to fit on.
    rows : tuple of str
        The rows it was fitted on.
    pooled : bool
        Whether the rows are those of other stacks.
    """

    stack: str
    value_s: float
    rows: tuple[str, ...]
    pooled: bool


def fitting_rows() -> tuple[PublishedRow, ...]:
    """Return the published rows that constants may be fitted on.

    Returns
    -------
    tuple of PublishedRow
        Modelled throughput rows of the results page.

    Raises
    ------
    DataError
        If a data file is missing or damaged.
    """
    rows = load_rows(study=FITTING_STUDY, metric="throughput")
    return tuple(row for row in rows if not row.run.not_modelled)


def step_samples(rows: Iterable[PublishedRow], predictor: Predictor) -> tuple[StepSample, ...]:
    """Predict the device time of each row.

    Parameters
    ----------
    rows : iterable of PublishedRow
        Throughput rows of modelled runs.
    predictor : Predictor
        What predicts.

    Returns
    -------
    tuple of StepSample
        One per row, in the same order.
    """
    samples = []
    for row in rows:
        report = predict(row.run, "specification", predictor=predictor)
        items = row.run.items_per_step
        samples.append(
            StepSample(
                row_id=row.row_id,
                family=row.family,
                stack=row.stack,
                specification_s=items / float(report.throughput),
                published_s=items / row.value,
            )
        )
    return tuple(samples)


def fit_step_cost(samples: Sequence[StepSample]) -> float:
    """Return the cost per step that fits the samples best.

    Parameters
    ----------
    samples : sequence of StepSample
        May be empty.

    Returns
    -------
    float
        Seconds, at least 0; exactly 0 for no samples.
    """
    points = sorted((s.published_s - s.specification_s, 1.0 / s.published_s) for s in samples)
    half = sum(weight for _, weight in points) / 2
    reached = 0.0
    for gap_s, weight in points:
        reached += weight
        if reached >= half:
            return max(0.0, gap_s)
    return 0.0


def step_cost_for(
    stack: str, samples: Iterable[StepSample], *, without_family: str | None = None
) -> StepCost:
    """Return the cost per step of a stack, as fitted on the samples that may be used for it.

    Parameters
    ----------
    stack : str
        Software stack.
    samples : iterable of StepSample
        All samples there are.
    without_family : str, optional
        Model family to leave out of the fit.

    Returns
    -------
    StepCost
        Fitted on the stack's own samples, or on those of all other stacks when it has none left.
    """
    allowed = [sample for sample in samples if sample.family != without_family]
    own = [sample for sample in allowed if sample.stack == stack]
    used = own or allowed
    return StepCost(
        stack=stack,
        value_s=fit_step_cost(used),
        rows=tuple(sample.row_id for sample in used),
        pooled=not own,
    )


def calibration_text(costs: Iterable[StepCost]) -> str:
    """Write fitted costs as TOML.

    Parameters
    ----------
    costs : iterable of StepCost
        One per stack.

    Returns
    -------
    str
        The text of ``data/calibration.toml``.
    """
    blocks = [_HEADER]
    for cost in sorted(costs, key=lambda item: item.stack):
        rows = "".join(f'    "{row_id}",\n' for row_id in cost.rows)
        blocks.append(
            f"[step_cost.{json.dumps(cost.stack)}]\n"
            f"value = {cost.value_s:.6e}\n"
            'unit = "s"\n'
            'label = "fitted"\n'
            f"pooled = {str(cost.pooled).lower()}\n"
            'source = "least mean absolute relative error of time per step over rows"\n'
            f"rows = [\n{rows}]\n"
        )
    return "\n".join(blocks)


def calibrate(*, predictor: Predictor, path: Path | None = None) -> tuple[StepCost, ...]:
    """Fit the constant of every stack on all rows and write them down.

    Parameters
    ----------
    predictor : Predictor
        What predicts; only its specification tier is used, so the result does not depend on an
        earlier calibration.
    path : pathlib.Path, optional
        File to write; by default ``data/calibration.toml``.

    Returns
    -------
    tuple of StepCost
        One per stack that a modelled run names.

    Raises
    ------
    StudyError
        If the file cannot be written.
    """
    samples = step_samples(fitting_rows(), predictor)
    stacks = sorted({row.stack for row in load_rows() if not row.run.not_modelled})
    costs = tuple(step_cost_for(stack, samples) for stack in stacks)
    target = path or paths.data_dir() / CALIBRATION_FILE
    write_text(target, calibration_text(costs))
    return costs


def load_calibration(path: Path | None = None) -> dict[str, StepCost]:
    """Read fitted costs back.

    Parameters
    ----------
    path : pathlib.Path, optional
        By default ``data/calibration.toml``.

    Returns
    -------
    dict of str to StepCost
        By stack.

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """
    source = path or paths.data_dir() / CALIBRATION_FILE
    try:
        blocks = tomllib.loads(source.read_text(encoding="utf-8"))["step_cost"]
        return {
            stack: StepCost(
                stack=stack,
                value_s=float(block["value"]),
                rows=tuple(block["rows"]),
                pooled=bool(block["pooled"]),
            )
            for stack, block in blocks.items()
        }
    except OSError as error:
        raise DataError(
            f"{source.name} cannot be read ({error.strerror}): run 'ipusim calibrate'."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{source.name} is damaged ({error}): run 'ipusim calibrate'.") from error
