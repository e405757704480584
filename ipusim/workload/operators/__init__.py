"""Operators: attributes, work and gradient, a file for each family."""

from ipusim.workload.operators.alignment_loss import ALIGNMENT_LOSSES, AlignmentLoss
from ipusim.workload.operators.base import (
    DTYPE_BYTES,
    PASSES,
    ROLES,
    Attributes,
    Op,
    Tensor,
    windowed_field,
)
from ipusim.workload.operators.conv import Conv, conv_data_gradient, conv_weight_gradient
from ipusim.workload.operators.distance import Distance
from ipusim.workload.operators.elementwise import Cast, Elementwise
from ipusim.workload.operators.gather import Gather
from ipusim.workload.operators.gradient import Backward, Tape, gradient
from ipusim.workload.operators.layout import Layout
from ipusim.workload.operators.loss import CLASS_LOSSES, LOSSES, Loss
from ipusim.workload.operators.matmul import MatMul, matmul_data_gradient, matmul_weight_gradient
from ipusim.workload.operators.nms import NonMaxSuppression
from ipusim.workload.operators.norm import Norm
from ipusim.workload.operators.pool import Pool
from ipusim.workload.operators.recurrent import Recurrent
from ipusim.workload.operators.reduce import Reduce
from ipusim.workload.operators.softmax import Softmax
from ipusim.workload.operators.sort import Sort

__all__ = [
    "ALIGNMENT_LOSSES",
    "CLASS_LOSSES",
    "DTYPE_BYTES",
    "LOSSES",
    "PASSES",
    "ROLES",
    "AlignmentLoss",
    "Attributes",
    "Backward",
    "Cast",
    "Conv",
    "Distance",
    "Elementwise",
    "Gather",
    "Layout",
    "Loss",
    "MatMul",
    "NonMaxSuppression",
    "Norm",
    "Op",
    "Pool",
    "Recurrent",
    "Reduce",
    "Softmax",
    "Sort",
    "Tape",
    "Tensor",
    "conv_data_gradient",
    "conv_weight_gradient",
    "gradient",
    "matmul_data_gradient",
    "matmul_weight_gradient",
    "windowed_field",
]
