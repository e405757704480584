"""The versions of poplibs that were read, each with what follows from it: an *era*.

====  =====================  ========================================
era   poplibs tag            used for
====  =====================  ========================================
0     1.0.136 (2020-01)      SDK 1.0, on the C2 card
1     sdk/poplar/2.0.0       SDK 2.0, the IPUModel snapshot of 2021-03
2     sdk/poplar/2.4.0       SDK 2.4, on IPU-M2000
3     sdk/poplar/3.3.0       SDK 3.0 to 3.3, on Bow-2000
====  =====================  ========================================

The era of a stack decides how work is planned and which vertices run. Their cycles follow the
estimators of an era, which need not be the same: early ones charge coarse constants (200 supervisor
cycles per vertex in era 0) which later ones corrected to the assembly. One era for both reproduces
the IPUModel of that day; for silicon the latest estimators are better.
"""

from functools import cache

from ipusim.errors import check_name

ERAS = range(4)
ERA_1_0, ERA_2_0, ERA_2_4, ERA_3_3 = ERAS

ESTIMATORS = {"2020-01": ERA_1_0, "2021-03": ERA_2_0, "2021-11": ERA_2_4}
"""Eras whose estimators were read besides those of convolutions, by the month of the tag; of era 1
only what differs from the next stands apart."""


@cache
def estimator_era(codelets: str) -> int:
    """Return the era whose estimators time the vertices of a stack, from its `codelets`.

    Of ``"2020-01+2021-11"`` that is the second, while the first repeats which vertices run.
    """
    versions = codelets.split("+")
    for version in versions:
        check_name("codelet version", version, ESTIMATORS)
    return ESTIMATORS[versions[-1]]
