"""Plans of a fully connected layer in training: one for all three passes, or one for each.

A joint plan keeps every weight on the tile that uses it in all passes, so that nothing but their
channels is transposed between them; it is taken where it costs less than three plans do.

Sources: poplibs tag sdk/poplar/2.0.0, ``lib/poplin/ConvPlan.cpp`` (createPlan,
getFullyConnectedBwdPlan, getFullyConnectedWUPlan) and ``ConvModel.cpp`` (addBwdEstimates,
addWuEstimates).
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ipusim.compiler.convolution import planner
from ipusim.compiler.convolution.params import ConvPass
from ipusim.compiler.convolution.record import empty_works
from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.compiler.convolution.transforms import problems_of, transforms_of
from ipusim.compiler.convolution.vertex_types import candidates_of, joint_types
from ipusim.compiler.vertices.conv import ERA_1_0
from ipusim.machine import Chip


class LayerPlans(NamedTuple):
    """Plans of the three passes of one fully connected layer, all of them joint or none."""

    forward: planner.Plan
    data_gradient: planner.Plan
    weight_gradient: planner.Plan


@lru_cache(maxsize=4096)
def plan_layer(asked: ConvPass, chip: Chip, rules: PlannerRules) -> LayerPlans:
    """Return the plans of a layer, whose forward product, of kind "fc_training", is `asked` for.

    The joint plans of tag 1.0.136, which did not exchange operands, are not modelled: that era gets
    three plans.
    """
    separate = [planner.plan(one, chip, rules) for one in layer_passes(asked)]
    if rules.era != ERA_1_0 and asked.in_bytes == asked.out_bytes:
        bound = sum(plan.planned_cycles for plan in separate)
        return _joint(asked, chip, rules, bound) or LayerPlans(*separate)
    return LayerPlans(*separate)


def layer_passes(asked: ConvPass) -> tuple[ConvPass, ConvPass, ConvPass]:
    """Return the three passes of a layer, operands exchanged as in the forward one, `asked`.

    Forward multiplies m x k by k x n; `asked` has batch n, input channels k, output channels m.
    """
    forward = asked.params
    n, k, m = forward.batch, forward.in_channels, forward.out_channels
    data = forward._replace(batch=k, in_channels=n)
    weights = forward._replace(in_channels=m, out_channels=k)
    return (
        asked,
        replace(asked, kind="fc_data_gradient", params=data),
        replace(asked, kind="fc_weight_gradient", params=weights),
    )


def _joint(asked: ConvPass, chip: Chip, rules: PlannerRules, bound: int) -> LayerPlans | None:
    """Return the joint plans if one partition costs no more than `bound` cycles."""
    passes = layer_passes(asked)
    plain = [transforms_of(one, chip, rules)[0] for one in passes]
    problems = problems_of(plain)
    problems["joint"] = 1
    problems["copy_input"] = (0, 0, 1)
    problems["copy_output"] = 0
    # Neighbours receive the same inputs in the standard order of tiles only.
    problems["tiles_per_bus"][1:] = 1
    works = empty_works(3, rules.temporary_bytes(chip.bytes_per_tile))
    works["best_cycles"] = bound + 1
    forward, update = joint_types(plain, passes, chip, rules)
    candidates = candidates_of(problems, [forward, (), update])
    search = planner.searched(planner.Search(plain, problems, *candidates, works), joint=True)
    if works["best_cycles"][0] > bound:
        return None
    works["best_cycles"] = works["best_cycles"][0] // 3
    works["evaluations"] = works["evaluations"][0]
    of = chip, rules
    return LayerPlans(
        *(planner.found_plan(search, at, one, *of, joint=True) for at, one in enumerate(passes))
    )
