"""Which operators go to which chip of a pipeline, and what they hand over to the next."""

from bisect import bisect_left
from collections.abc import Sequence

from ipusim.errors import ConfigError, check_name
from ipusim.machine.interconnect import copy_s, sync_s
from ipusim.machine.system import System

Starts = tuple[int, ...]
"""Contiguous stages: the number of the first operator of each."""


def split_after(operators: Sequence[str], splits: Sequence[str]) -> Starts:
    """Cut a list of operators, in execution order, after those that end a stage but the last."""
    position = {name: index for index, name in enumerate(operators)}
    starts = [0]
    for name in splits:
        check_name("operator", name, position)
        start = position[name] + 1
        if start <= starts[-1]:
            raise ConfigError(
                f"The pipeline split {name!r} does not come after the split before it: name each "
                "operator once, in execution order."
            )
        if start == len(operators):
            raise ConfigError(
                f"The pipeline split {name!r} is the last operator, which leaves the last stage "
                "empty: leave it out."
            )
        starts.append(start)
    return tuple(starts)


def balance(costs: Sequence[int], stages: int) -> Starts:
    """Cut a list of operators by their cycles so that the largest stage is as small as possible."""
    if stages > len(costs):
        raise ConfigError(
            f"A pipeline of {stages} stages needs {stages} operators, but the model has "
            f"{len(costs)}: use 1 to {len(costs)}."
        )
    limits = range(max(costs), sum(costs))
    least = bisect_left(limits, True, key=lambda limit: len(_fill(costs, stages, limit)) <= stages)
    # Of the cuts that reach the least maximum: each stage as long as possible from the front.
    return _fill(costs, stages, max(costs) + least)


def _fill(costs: Sequence[int], stages: int, limit: int) -> Starts:
    """Return the starts of stages of up to `limit` cycles, with an operator left for each stage."""
    starts, total = [0], 0
    for index, cost in enumerate(costs):
        left = len(costs) - index
        if index and (total + cost > limit or left <= stages - len(starts)):
            starts.append(index)
            total = 0
        total += cost
    return tuple(starts)


def stage_transfer_s(
    system: System,
    stage_ipus: Sequence[int],
    forward_bytes: Sequence[int],
    backward_bytes: Sequence[int] | None = None,
    *,
    in_turn: bool = False,
    pairs_overlap: bool = True,
) -> float:
    """Return the seconds of handing one micro-batch from each stage on, and gradients back.

    There is one size fewer than stages. Copies that run together take a sync and the slowest of
    them: they use both directions of a link at once, and neighbouring stages links of their own.
    `in_turn` a chip makes its copies one after the other (`options.frameworks`), while with
    `pairs_overlap` copies between different pairs of chips still overlap: of the readings of an
    order that is settled, taken after seeing that with none overlapping UNet and BERT-Base come out
    29 and 8 % slow, with all 31 and 1 % fast.
    """
    back = [0] * len(forward_bytes) if backward_bytes is None else backward_bytes
    copies = []
    own: dict[int, float] = {}
    sync = sync_s(system, len(set(stage_ipus)))
    for source, target, *both in zip(
        stage_ipus[:-1], stage_ipus[1:], forward_bytes, back, strict=True
    ):
        for size in both:
            if size and source != target:
                copies.append(copy_s(system, source, target, size))
                for chip in (source, target):
                    own[chip] = own.get(chip, 0.0) + copies[-1] + sync
    if not copies:
        return 0.0
    if not in_turn:
        return max(copies) + sync
    return max(own.values()) if pairs_overlap else sum(copies) + sync * len(copies)
