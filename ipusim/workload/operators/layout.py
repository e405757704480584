"""Changes of shape and order, which move data or are views."""

from __future__ import annotations

from dataclasses import dataclass

from ipusim.workload.operators.base import Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Attributes):
    """A change of shape or order: "reshape", "transpose", "concat", "split", "pad", ...

    ``moves_data`` says what a GPU does: False where the result is a mere view of the input
    (reshapes, slices, splits, broadcasts) and True where elements change their order or new memory
    is needed (transposes, concatenations, pads, repeats). "dynamic_slice" and "dynamic_update" read
    and write what the round of a loop says, "carry" hands a value on to the next round.
    """

    function: str
    moves_data: bool

    @property
    def viewed_on_ipu(self) -> bool:
        """Whether the elements stay where they are on an IPU, where what reads them rearranges.

        Transposes and concatenations do, which a GPU moves (graphcore/popart
        willow/src/popx/op/transposex.cpp, TransposeInplaceOpx, and concatx.cpp, ConcatInplaceOpx).
        """
        return not self.moves_data or self.function in ("concat", "transpose")

    @classmethod
    def view(cls, function: str) -> Layout:
        """Return a change of shape that moves nothing."""
        return cls(function=function, moves_data=False)

    @classmethod
    def move(cls, function: str) -> Layout:
        """Return a change of shape or order that moves all elements."""
        return cls(function=function, moves_data=True)
