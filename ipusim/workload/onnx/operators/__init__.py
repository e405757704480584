"""What runs of an ONNX file, node by node, as operators of the graph."""

from ipusim.workload.onnx.operators.elementwise import LAYOUT_HANDLERS
from ipusim.workload.onnx.operators.indexed import INDEXED_HANDLERS
from ipusim.workload.onnx.operators.products import COMPUTE_HANDLERS
from ipusim.workload.onnx.operators.recurrent import RECURRENT_HANDLERS

HANDLERS = COMPUTE_HANDLERS | LAYOUT_HANDLERS | RECURRENT_HANDLERS | INDEXED_HANDLERS
"""Operators that run; recipes stand for several of them."""
