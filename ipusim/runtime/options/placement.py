"""How a replica lies on its chips: where the model is cut, and which chip runs which stage when.

The same options serve both modes. In inference "sequential" is what PopTorch calls sharded
execution, one stage after another, and "grouped" is a pipeline in which all stages work at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ipusim.errors import ConfigError, resolve_name
from ipusim.runtime.replica.schedule import SCHEDULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Stages of one replica.

    Attributes
    ----------
    splits : tuple of str
        Forward operators after which the next stage begins; empty balances automatically.
    stage_ipus : tuple of int
        Chip of each stage, 0 to the chips of the replica less one.
    schedule : str
        "grouped", "sequential" or "interleaved".
    """

    splits: tuple[str, ...]
    stage_ipus: tuple[int, ...]
    schedule: str

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.stage_ipus)


def make_placement(
    ipus_per_replica: int,
    *,
    pipeline_splits: Sequence[str] | None = None,
    stage_ipus: Sequence[int] | None = None,
    schedule: str | None = None,
) -> Placement:
    """Check the options of placement and fill in the defaults: a stage per chip, grouped.

    Raises
    ------
    ConfigError
        If stages, splits and chips do not match.
    UnknownNameError
        If the schedule does not exist; the message gives the nearest one.
    """
    splits = tuple(pipeline_splits or ())
    ipus = tuple(range(ipus_per_replica)) if stage_ipus is None else tuple(stage_ipus)
    if stage_ipus is not None:
        _check_stage_ipus(ipus, ipus_per_replica)
    if splits and len(splits) != len(ipus) - 1:
        held = f"a replica has {ipus_per_replica} IPUs"
        if stage_ipus is not None:
            held = f"stage_ipus places {len(ipus)}"
        raise ConfigError(
            f"{len(splits)} pipeline splits make {len(splits) + 1} stages, but {held}: give "
            f"{len(ipus) - 1} splits."
        )
    return Placement(
        splits=splits,
        stage_ipus=ipus,
        schedule=resolve_name("schedule", schedule or "grouped", SCHEDULES),
    )


def _check_stage_ipus(ipus: tuple[int, ...], ipus_per_replica: int) -> None:
    listed = " ".join(map(str, ipus))
    if set(ipus) != set(range(ipus_per_replica)):
        raise ConfigError(
            f"The option stage_ipus is {listed!r}, but a replica has {ipus_per_replica} IPUs: name "
            f"each of 0 to {ipus_per_replica - 1} at least once."
        )
    if any(one == two for one, two in pairwise(ipus)):
        raise ConfigError(
            f"The option stage_ipus is {listed!r}, with two stages in a row on one IPU: make them "
            "one stage."
        )
