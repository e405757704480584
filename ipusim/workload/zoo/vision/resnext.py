"""ResNeXt: residual networks whose 3x3 convolutions work in 32 groups.

Topology of Xie et al., "Aggregated Residual Transformations for Deep Neural Networks" (arXiv
1611.05431), as in timm and torchvision. Cadene's pretrainedmodels port of ResNeXt-101 32x4d,
which Qwant measured, has the same topology.
"""

from __future__ import annotations

from ipusim.workload.model import Model
from ipusim.workload.zoo.vision.resnet import NORM_GROUPS, Topology, residual_model

GROUPS = 32
SOURCE = "arXiv 1611.05431, as in timm and torchvision"


def _resnext(
    name: str, blocks: tuple[int, int, int, int], base_width: int, norm_groups: int = 0
) -> Model:
    topology = Topology(
        name=name,
        blocks=blocks,
        bottleneck=True,
        groups=GROUPS,
        base_width=base_width,
        norm_groups=norm_groups,
    )
    return residual_model(topology, "resnext", SOURCE)


def resnext50_32x4d() -> Model:
    """ResNeXt-50 32x4d: 25,028,904 parameters, 4.23 GMAC per image."""
    return _resnext("resnext50_32x4d", (3, 4, 6, 3), base_width=4)


def resnext101_32x4d() -> Model:
    """ResNeXt-101 32x4d: 44,177,704 parameters, 7.97 GMAC per image."""
    return _resnext("resnext101_32x4d", (3, 4, 23, 3), base_width=4)


def resnext101_32x4d_gn() -> Model:
    """ResNeXt-101 32x4d with a group norm of 32 groups: same parameters and MACs.

    Graphcore's training recipe (graphcore/examples, resnext101_16ipus) normalises by groups.
    """
    return _resnext("resnext101_32x4d_gn", (3, 4, 23, 3), base_width=4, norm_groups=NORM_GROUPS)


def resnext101_32x8d() -> Model:
    """ResNeXt-101 32x8d: 88,791,336 parameters, 16.4 GMAC per image."""
    return _resnext("resnext101_32x8d", (3, 4, 23, 3), base_width=8)
