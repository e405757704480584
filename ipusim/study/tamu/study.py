"""The TAMU study (PEARC'22): training on 1 to 64 IPUs, Tables 1 to 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ipusim.errors import ConfigError
from ipusim.runtime.compile_time import first_epoch_items_per_s
from ipusim.study.book.parameters import check_count, check_counts
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.data.runs import RunConfiguration
from ipusim.study.predict import TIERS, Predictor, default_predictor
from ipusim.study.verdicts.compare import error_percent, verdict_of

STUDY = "tamu"
TENSORFLOW_SERIES = "tamu-resnet50-tensorflow"
"""Table 3: ResNet-50, micro-batch 2 to 20 on one IPU, then 20 on 1 to 64 IPUs."""
PYTORCH_SERIES = "tamu-resnet50-pytorch"
"""Table 1: ResNet-50 on 1 to 16 IPUs."""
RESULTS_SERIES = "results-resnet50-tensorflow-classic"
"""The same program as Table 3 on the results page of Graphcore, 4 to 256 IPUs."""

SIMULATED_TIERS = ("calibrated", "specification")
MOST_IPUS = 256
MOST_MICRO_BATCH = 64
IMAGENET_IMAGES = 1_281_167
"""Training images of ImageNet 2012, an epoch of Tables 1 and 3."""


def check_parameters(
    *,
    tier: object,
    ipus: object,
    breakdown_ipus: object,
    memory_micro_batches: object,
    autoencoder_micro_batches: object,
    images_per_epoch: object,
) -> None:
    """Refuse parameters of the notebook that the study cannot use, before anything is simulated.

    Parameters
    ----------
    tier : str
        ``"calibrated"`` or ``"specification"``.
    ipus, breakdown_ipus : list of int
        Numbers of IPUs: 1 or even, at most 256, none twice, 1 among them.
    memory_micro_batches, autoencoder_micro_batches : list of int
        Images per IPU: whole numbers from 1 to 64, none twice.
    images_per_epoch : int
        At least 1.

    Raises
    ------
    ConfigError
        Naming the first parameter that is wrong.
    """
    if tier not in SIMULATED_TIERS:
        raise ConfigError(f"tier is {tier!r}: use one of {', '.join(SIMULATED_TIERS)}.")
    for name, counts in (("ipus", ipus), ("breakdown_ipus", breakdown_ipus)):
        check_counts(name, counts, MOST_IPUS)
        odd = [count for count in counts if count > 1 and count % 2]
        if odd:
            raise ConfigError(
                f"{name} holds {odd[0]}, but batch norm spans pairs of IPUs: use 1 or even numbers."
            )
        if 1 not in counts:
            raise ConfigError(f"{name} is {counts!r}: add 1, the system that others scale from.")
    check_counts("memory_micro_batches", memory_micro_batches, MOST_MICRO_BATCH)
    check_counts("autoencoder_micro_batches", autoencoder_micro_batches, MOST_MICRO_BATCH)
    check_count("images_per_epoch", images_per_epoch)


def study_rows() -> tuple[PublishedRow, ...]:
    """Return every row of Tables 1 to 4, and the rows of the results page that go beside them.

    Returns
    -------
    tuple of PublishedRow
        The tables in their order, each with all its columns, then the Classic TensorFlow ResNet-50
        training rows of the results page, which carry the scaling on to 256 IPUs.
    """
    own = load_rows(study=STUDY)
    beside = load_rows(study="results", metric="throughput")
    return (*own, *(row for row in beside if row.run.series == RESULTS_SERIES))


def table_frame(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Select one of Tables 1 to 4 from the verdicts.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on `study_rows`.
    table : str
        ``"Table 1"`` to ``"Table 4"``.

    Returns
    -------
    pandas.DataFrame
        Per row: row_id, label, network, ipus (devices), instances, micro_batch, accumulation,
        span (of batch norm), published throughput (images/s), the three tiers, the 80 % interval,
        error and verdict of the calibrated tier, and the note.

    Raises
    ------
    UnknownNameError
        If there is no such table.
    """
    rows = {row.row_id: row for row in load_rows(study=STUDY, table=table, metric="throughput")}
    chosen = frame[frame["row_id"].isin(rows)]
    lines = []
    for line in chosen.to_dict("records"):
        row = rows[line["row_id"]]
        lines.append(
            {
                "row_id": row.row_id,
                "label": row.label,
                "network": row.run.model or row.family,
                "ipus": row.run.chips,
                "instances": row.run.instances,
                "micro_batch": row.run.micro_batch,
                "accumulation": row.run.gradient_accumulation,
                "span": row.run.batch_norm_span,
                "published": line["published"],
                **{tier: line[tier] for tier in TIERS},
                "low80": line["low80"],
                "high80": line["high80"],
                "error_percent": error_percent(line["calibrated"], line["published"]),
                "verdict": line["verdict"],
                "note": line["note"],
            }
        )
    whole = ("instances", "micro_batch", "accumulation", "span")
    return pd.DataFrame(lines).astype(dict.fromkeys(whole, "Int64"))


def report_for(
    run: RunConfiguration, *, tier: str = "calibrated", predictor: Predictor | None = None
) -> Any:
    """Simulate a run of the study, for looking inside.

    Parameters
    ----------
    run : RunConfiguration
        A run whose model is in the zoo.
    tier : str
        ``"calibrated"`` (with the constants in use, whatever they were fitted on) or
        ``"specification"``.
    predictor : Predictor, optional
        By default the real one.

    Returns
    -------
    ipusim.report.Report
        The full report.
    """
    return (predictor or default_predictor()).simulate(run.model, tier=tier, **run.options())


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstEpoch:
    """An epoch that begins with compilation.

    Attributes
    ----------
    images : int
        Images of the epoch.
    compile_s : float
        Seconds before the first step.
    images_per_s : float
        Rate over the whole epoch.
    """

    images: int
    compile_s: float
    images_per_s: float


def first_epoch(
    report: Any, images: int = IMAGENET_IMAGES, *, images_per_s: float | None = None
) -> FirstEpoch:
    """Predict the first epoch of a training run, in which the program is compiled.

    Parameters
    ----------
    report : ipusim.report.Report
        Of a training run.
    images : int
        Images of an epoch.
    images_per_s : float, optional
        Rate once compiled; by default that of the report.

    Returns
    -------
    FirstEpoch
        With the compilation of ``report.compile_s``.

    Raises
    ------
    ConfigError
        If the number of images is below 1.
    DataError
        If the calibration file lacks the constant.
    """
    rate = float(report.throughput) if images_per_s is None else images_per_s
    whole = first_epoch_items_per_s(images, rate, report.compile_s)
    return FirstEpoch(images=images, compile_s=report.compile_s, images_per_s=whole)


def first_epoch_frame(
    frame: pd.DataFrame,
    images: int = IMAGENET_IMAGES,
    *,
    predictor: Predictor | None = None,
) -> pd.DataFrame:
    """Predict the first-epoch column of Table 1.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on `study_rows`, for the rates of
        the second epoch.
    images : int
        Images of an epoch.
    predictor : Predictor, optional
        By default the real one.

    Returns
    -------
    pandas.DataFrame
        Per row of Table 1: row_id, ipus, instances, the seconds by which the published epochs
        differ and those predicted for compilation, published and predicted rate of the first epoch
        (images/s), error and verdict.
    """
    rows = {row.run.run_id: row for row in load_rows(study=STUDY, metric="throughput_epoch1")}
    calibrated = dict(zip(frame["row_id"], frame["calibrated"], strict=True))
    lines = []
    for second in load_rows(study=STUDY, table="Table 1", metric="throughput"):
        first = rows[second.run.run_id]
        report = report_for(second.run, tier="specification", predictor=predictor)
        epoch = first_epoch(report, images, images_per_s=calibrated[second.row_id])
        lines.append(
            {
                "row_id": first.row_id,
                "ipus": first.run.chips,
                "instances": first.run.instances,
                "published_difference_s": images / first.value - images / second.value,
                "compile_s": epoch.compile_s,
                "published": first.value,
                "predicted": epoch.images_per_s,
                "error_percent": error_percent(epoch.images_per_s, first.value),
                "verdict": verdict_of(epoch.images_per_s, first.value),
            }
        )
    return pd.DataFrame(lines)
