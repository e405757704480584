"""Layouts of the integer vectors that the convolution kernels share.

A convolution after its transforms (`transforms`) is the vector `problem`; a vertex type is
`vertex`; what follows from the two alone is `totals`; a partition over the tiles is `split`; what
one tile gets of it is `part`; what it costs is `cost`.
"""

from __future__ import annotations

import numpy as np

# --- problem --------------------------------------------------------------------------------
# Per-dimension entries take three places; dimension 0 is the outermost, dims-1 the innermost.
GROUPS, BATCH, IN_CHANS, OUT_CHANS, DIMS = 0, 1, 2, 3, 4
OUT_FIELD, KERNEL, WHOLE_IN, STRIDE = 5, 8, 11, 14
IN_DILATION, KERNEL_DILATION, TRANSFORMED, COVERED = 17, 20, 23, 26
PADDING, IN_FIELD = 29, 32
IN_BYTES, OUT_BYTES, INTER_TILE_BYTES = 35, 36, 37
FULLY_CONNECTED, COPY_INPUT, COPY_WEIGHTS, COPY_OUTPUT = 38, 39, 40, 41
ERA, TILES, EXCHANGE_BYTES, TILES_PER_BUS, MEMCPY_BYTES = 42, 43, 44, 45, 46
IN_SERIAL_ALLOWED, VIEW_OUT_CHANS, VIEW_IN_CHANS, BROADCAST_ALLOWED = 47, 48, 49, 50
SINGLE_INPUT_BYTES, WEIGHTS_PER_UNIT, UNITS_ON_CHIP = 51, 52, 53
EXECUTING, ORIGINAL_IN_CHANS, ORIGINAL_OUT_CHANS = 54, 55, 56
SLIC_ALLOWED, OUTER_ALLOWED, REGROUP_WEIGHTS, FIELD_GRAIN, JOINT = 57, 58, 59, 60, 61
PROBLEM_SIZE = 62

# --- vertex ---------------------------------------------------------------------------------
METHOD, CONV_GROUPS_PER_GROUP, IN_CHANS_PER_GROUP, OUT_CHANS_PER_GROUP = 0, 1, 2, 3
UNITS, PARTIAL_BYTES, PEAK_MACS = 4, 5, 6
VERTEX_SIZE = 7
AMP, SLIC, HMAC, VMAC, OUTER_PRODUCT = 0, 1, 2, 3, 4
METHOD_NAMES = ("AMP", "SLIC", "HMAC", "VMAC", "OUTER_PRODUCT")

# --- totals: of the whole operation, channels padded to the vertex's groups ---------------------
# Grains are groups of channels; T_LAST_GRAINS counts grains of the innermost field dimension.
T_GROUP_GRAINS, T_IN_GRAINS, T_OUT_GRAINS, T_FIELD_GRAIN, T_LAST_GRAINS = 0, 1, 2, 3, 4
# Zero-dilated inputs leave only every T_STEP-th output of a dimension to compute, of all T_STEPS.
T_STEP, T_STEPS, T_FILTER_HEIGHT, T_ONE_BY_ONE = 5, 8, 9, 10
T_POSITIONS, T_WEIGHTS, T_INPUTS, T_RESULT_BYTES, T_PLAIN_INPUTS = 11, 12, 13, 14, 15
# Elements to rearrange, bytes per cycle times granularity, and a floor of cycles times tiles.
T_COPY_IN, T_COPY_WEIGHTS, T_COPY_RATE = 16, 17, 18
T_COPY_OUT, T_MOVE_OUT, T_COPY_OUT_RATE, T_COPY_FLOOR = 19, 20, 21, 22
T_REGROUP_WEIGHTS, T_REGROUP_RATE = 23, 24
TOTALS_SIZE = 25

# --- split ----------------------------------------------------------------------------------
S_GROUP, S_BATCH, S_FIELD, S_KERNEL = 0, 1, 2, 5
S_IN, S_IN_SERIAL, S_OUT, S_OUT_SERIAL, S_BROADCAST = 8, 9, 10, 11, 12
SPLIT_SIZE = 13

# --- part: the largest share of one tile; positions are output positions times batch -------------
P_GROUP_GRAINS, P_IN_GRAINS, P_OUT_GRAINS = 0, 1, 2
P_KERNEL_OUTER, P_KERNEL_ELEMENTS, P_POSITIONS, P_IN_POSITIONS = 3, 4, 5, 6
P_WEIGHT_USERS, P_DEPTH, P_TILES_USED, P_KERNEL_ZEROS = 7, 8, 9, 10
PART_SIZE = 11

# --- cost (cycles unless the name says bytes) -----------------------------------------------
C_SLICE, C_COPY_IN, C_COPY_WEIGHTS, C_COPY_OUT = 0, 1, 2, 3
C_MOVE_IN, C_MOVE_WEIGHTS, C_MOVE_OUT = 4, 5, 6
C_INPUT, C_WEIGHTS, C_REDUCE_FIRST, C_REDUCE_REST = 7, 8, 9, 10
C_TILE_TRANSFORM, C_CALC, C_REDUCE, C_UPDATE, C_ADD = 11, 12, 13, 14, 15
C_BEFORE, C_AFTER, C_SERIAL, C_DEPTH, C_TILES_USED = 16, 17, 18, 19, 20
C_TOTAL, C_TEMP_BYTES, C_PARTIAL_BYTES, C_INPUT_BYTES, C_WEIGHT_BYTES = 21, 22, 23, 24, 25
C_STAGES, C_ONE_BY_ONE, C_OUTPUTS = 26, 27, 28
COST_SIZE = 29

UNBOUNDED = np.int64(1) << np.int64(60)
# A typed 1: from the literal, numba would compile every function that gets it a second time.
ONE = np.int64(1)
