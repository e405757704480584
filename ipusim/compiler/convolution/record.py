"""Records that the convolution kernels share, all of integers.

A convolution after its transforms (`transforms`) is a `PROBLEM`; a vertex type is a `VERTEX`; the
search for its partition over the tiles works on a `WORK`, which holds what follows from the two
alone (`TOTALS`), the partition (`SPLIT`), what one tile gets of it (`PART`) and what it costs
(`COST`).
"""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple, Self

import numpy as np

from ipusim.compiler.vertices.conv import PART, integers

DIM = integers(
    "out kernel whole_in stride in_dilation kernel_dilation",
    "transformed covered padding in_field step",
)
# Of one transform: channels are per group, "view" channels those after a swap but before all else;
# the dimensions are the outermost, a middle one (of size 1 where there are but two), the innermost.
_TRANSFORMED = integers(
    "groups batch in_chans out_chans view_in_chans view_out_chans",
    "copy_input copy_weights copy_output slic_allowed outer_allowed one_by_one",
    ("dims", DIM, 3),
)
# Of the operation, the chip and the rules, whatever the transform.
_GIVEN = integers(
    "original_in_chans original_out_chans in_bytes out_bytes inter_tile_bytes weights_per_unit",
    "fully_connected regroup_weights",
    "era tiles exchange_bytes tiles_per_bus memcpy_bytes single_input_bytes",
    "in_serial_allowed broadcast_allowed executing field_grain joint",
    # Where its candidates are.
    "begin end",
)
PROBLEM = np.dtype([*_TRANSFORMED.descr, *_GIVEN.descr])

# A vertex type of a problem, and what sorts the candidates: minus the padded peak rate, padding.
_PLACE = [("slowness", float), ("padding", float)]
CANDIDATE = np.dtype([*integers("vertex partial_bytes").descr, *_PLACE])

TOTALS = integers(
    # Groups of channels, padded to the vertex's, and grains of the innermost dimension.
    "group_grains in_grains out_grains field_grain last_grains",
    # Zero-dilated inputs leave one of `steps` outputs to compute.
    "steps positions weights inputs result_bytes plain_inputs one_by_one",
    # Elements to rearrange, rates in bytes for 5 cycles, and a floor of cycles times tiles.
    "copy_in copy_weights copy_rate copy_out move_out copy_out_rate copy_floor",
    # Elements copied at once: those of the input, and the most of any.
    "in_copied most_copied",
    "regroup_weights regroup_rate arithmetic",
    ("step", np.int64, 3),
)
DIM_SPLIT = integers("field kernel")
SPLIT = integers(
    "group batch in_chans in_serial out_chans out_serial broadcast", ("dims", DIM_SPLIT, 3)
)
COST = integers(
    # Cycles of every serial part; before and after all of them; altogether.
    "slice copy_in copy_weights copy_out move_in move_weights move_out",
    "input weights reduce_first reduce_rest tile_transform calc reduce update add",
    # Of those before: to arrange what is sliced, and to fetch an input that all parts use.
    "before after arrange fetch serial depth tiles_used total",
    "temp_bytes partial_bytes input_bytes weight_bytes stages one_by_one outputs",
)
WORK = integers(
    # Its problems, one per transform; how it is searched; problem and vertex at hand; best found.
    "first_problem last_problem temp_limit tile_bytes minimise_memory pruned coarse problem vertex",
    "best_cycles best_bytes best_problem best_vertex evaluations partials run",
    ("best", SPLIT),
    ("split", SPLIT),
    ("part", PART),
    ("cost", COST),
    ("totals", TOTALS),
)

UNBOUNDED = 1 << 60
# Typed: for a literal, numba would compile every function that gets it a second time.
NOTHING = np.int64(0)
ONE = np.int64(1)
EVERY = np.int64(0)

_EMPTY = np.zeros(1, WORK)
_EMPTY["best_cycles"] = _EMPTY["best_bytes"] = UNBOUNDED
_EMPTY["split"] = _EMPTY["best"] = np.array([(1, 1, 1, 1, 1, 1, 0, [(1, 1)] * 3)], SPLIT)


def empty_works(count: int, limit: int) -> np.ndarray:
    """Return works whose partition is one tile and that have found nothing within `limit` bytes."""
    works = np.frombuffer(bytearray(_EMPTY.tobytes() * count), WORK)
    works["temp_limit"] = limit
    return works


def joined(arrays: Iterable[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Join arrays of nested records by their memory, a hundred times faster than as arrays."""
    return np.frombuffer(bytearray().join(arrays), dtype)


class Split(NamedTuple):
    """A partition over the tiles: how many parts there are of each dimension."""

    group: int
    batch: int
    in_chans: int
    in_serial: int
    out_chans: int
    out_serial: int
    broadcast: int
    field: tuple[int, ...]
    kernel: tuple[int, ...]

    @property
    def input_users(self) -> int:
        """Tiles that want the same part of the input."""
        return self.out_chans * prod(self.kernel)

    @property
    def weight_users(self) -> int:
        """Tiles that want the same part of the weights."""
        return self.batch * prod(self.field)

    @classmethod
    def of(cls, split: np.void, rank: int) -> Self:
        """Return a `SPLIT` of an operation with `rank` spatial dimensions."""
        *channels, dims = split.item()
        # Where there are two dimensions, the middle one is of size 1.
        own = dims if rank == 3 else dims[[0, 2]]
        return cls(*channels, *zip(*own.tolist(), strict=True))


Cost = NamedTuple("Cost", [(name, int) for name in COST.names or ()])
Cost.__doc__ = "What a partition costs: cycles of each part, and bytes where the name says so."
