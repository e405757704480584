"""Values between positions: Resize and Upsample in all their forms, GridSample.

onnx's reference evaluator has other positions where corners are aligned and a scale gives no whole
size, lacks a mode of TensorFlow, and takes a sample after the other. Here they are those of
onnx/docs/Operators.md (Resize), and of torch (aten/src/ATen/native/GridSamplerUtils.h).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import floor
from typing import Any

import numpy as np
import onnx
from onnx import helper

_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_OLD = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""What the forms meant that take scales alone."""

_CROP = "tf_crop_and_resize"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """An axis that changes its size; ``start`` and ``end`` are the part of it that is read."""

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def positions(self, mode: str) -> np.ndarray:
        """Return where each element of the result lies in the axis."""
        i, last = np.arange(self.out), self.size - 1
        middle = (i + 0.5) / self.scale - 0.5
        if mode == "pytorch_half_pixel" and self.out == 1:
            return np.zeros(1)
        if mode == "half_pixel_symmetric":
            return middle + self.size / 2 * (1 - self.out / (self.scale * self.size))
        if mode == "tf_half_pixel_for_nn":
            return middle + 0.5
        if mode == "asymmetric":
            return i / self.scale
        if mode == "align_corners":
            return i * last / max(1, self.out - 1)
        if mode == _CROP and self.out == 1:
            return np.array([last * (self.start + self.end) / 2])
        if mode == _CROP:
            return last * (self.start + i * (self.end - self.start) / (self.out - 1))
        return middle

    def weights(self, at: np.ndarray, given: Mapping[str, Any]) -> np.ndarray:
        """Return the share of each element of the axis in each of the result, of linear or cubic.

        Against aliasing the kernel is stretched where the axis shrinks.
        """
        cubic = given["mode"] == "cubic"
        stretch = min(self.scale, 1.0) if given.get("antialias") else 1.0
        first = floor(-(1 + cubic) / stretch) + 1
        near = np.floor(at)[:, None].astype(int) + np.arange(first, 2 - first)
        distances = np.abs((near - at[:, None]) * stretch)
        shares = np.maximum(1 - distances, 0)
        if cubic:
            shares = _cubic(distances, given.get("cubic_coeff_a", -0.75))
        if given.get("exclude_outside"):
            shares = np.where((near < 0) | (near >= self.size), 0, shares)
        shares = shares / shares.sum(axis=1, keepdims=True)
        found = np.zeros((self.out, self.size))
        np.add.at(found, (np.arange(self.out)[:, None], near.clip(0, self.size - 1)), shares)
        return found


def _given(node: onnx.NodeProto) -> dict[str, Any]:
    read = ((item.name, helper.get_attribute_value(item)) for item in node.attribute)
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in read}


def _cubic(distances: np.ndarray, a: float) -> np.ndarray:
    """Return the cubic kernel of a coefficient (Keys) at distances of at least 0."""
    inner = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    outer = a * (((distances - 5) * distances + 8) * distances - 4)
    return np.where(distances <= 1, inner, np.where(distances < 2, outer, 0))


def resized(node: onnx.NodeProto, x: np.ndarray, *others: np.ndarray | None) -> np.ndarray:
    """Return the result of a Resize or Upsample."""
    given = _given(node)
    if len(others) < 2:
        given |= _OLD
        others = (None, others[0] if others else np.array(given["scales"]))
    mode = given.get("coordinate_transformation_mode", "half_pixel")
    given.setdefault("mode", "nearest")
    places = [axis % x.ndim for axis in given.get("axes") or range(x.ndim)]
    outside = np.zeros((), bool)
    for place, axis in zip(places, _axes(x, places, given, mode, *others), strict=True):
        if axis.scale == 1 and mode != _CROP:
            continue
        at = axis.positions(mode)
        if given["mode"] == "nearest":
            nearest = _NEAREST[given.get("nearest_mode", "round_prefer_floor")](at)
            y = x.take(nearest.clip(0, axis.size - 1).astype(int), place)
        else:
            y = np.moveaxis(np.tensordot(axis.weights(at, given), x, (1, place)), 0, place)
        beyond = (mode == _CROP) & ((at < 0) | (at > axis.size - 1))
        outside = outside | np.expand_dims(beyond, [i for i in range(x.ndim) if i != place])
        x = y.astype(x.dtype)
    return np.where(outside, given.get("extrapolation_value", 0.0), x).astype(x.dtype)


def _axes(
    x: np.ndarray,
    places: list[int],
    given: Mapping[str, Any],
    mode: str,
    corners: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> list[_Axis]:
    """Return the axes of an input at these places, which have scales or else sizes."""
    before = [x.shape[place] for place in places]
    whole = np.repeat([0.0, 1.0], len(places))
    starts, ends = np.reshape(corners if mode == _CROP else whole, (2, -1)).astype(float).tolist()
    if sizes is None or not len(sizes):
        factors = np.asarray(scales, float).tolist()
        # Of a part as well: so do onnxruntime and the evaluator, other than the documentation.
        after = [floor(size * factor) for size, factor in zip(before, factors, strict=True)]
    else:
        after = [int(size) for size in sizes]
        factors = [size / own for size, own in zip(after, before, strict=True)]
        kept = {"not_larger": min, "not_smaller": max}.get(
            given.get("keep_aspect_ratio_policy", "")
        )
        if kept:
            factors = [kept(factors)] * len(factors)
            after = [floor(factors[0] * own + 0.5) for own in before]
    rows = zip(before, after, factors, starts, ends, strict=True)
    return [
        _Axis(size=size, out=out, scale=scale, start=start, end=end)
        for size, out, scale, start, end in rows
    ]


def sampled(node: onnx.NodeProto, x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the result of a GridSample: of every position the taps along all axes, weighed."""
    given = _given(node)
    mode = str(given.get("mode", "linear")).removeprefix("bi")
    padding, aligned = given.get("padding_mode", "zeros"), bool(given.get("align_corners"))
    items, channels, *field = x.shape
    # The last axis of the field comes first in a position.
    positions = grid.reshape(items, -1, len(field))[..., ::-1].astype(float)
    taps = [
        _taps(positions[..., axis], size, mode, padding, aligned=aligned)
        for axis, size in enumerate(field)
    ]
    item = np.arange(items)[:, None]
    total = np.zeros((items, positions.shape[1], channels))
    rows = np.moveaxis(x, 1, -1)
    for chosen in product(*(range(len(places)) for places, _ in taps)):
        share = np.ones(positions.shape[:2])
        at = []
        for (places, weights), tap in zip(taps, chosen, strict=True):
            share = share * weights[tap]
            at.append(places[tap])
        total += share[..., None] * rows[(item, *at)]
    return np.moveaxis(total, -1, 1).reshape(items, channels, *grid.shape[1:-1]).astype(x.dtype)


def _taps(
    at: np.ndarray, size: int, mode: str, padding: str, *, aligned: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return places along an axis that positions from -1 to 1 read, and the weight of each."""
    at = (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
    at = at if mode == "cubic" else _inside(at, size, padding, aligned=aligned)
    if mode == "nearest":
        near, weights = [np.rint(at)], [np.ones(at.shape)]
    else:
        reach = range(-1, 3) if mode == "cubic" else range(2)
        near = [np.floor(at) + step for step in reach]
        away = [np.abs(place - at) for place in near]
        weights = [_cubic(d, -0.75) if mode == "cubic" else np.maximum(1 - d, 0) for d in away]
    if padding == "zeros":
        weights = [w * ((p >= 0) & (p < size)) for p, w in zip(near, weights, strict=True)]
    near = [_inside(place, size, padding, aligned=aligned) for place in near]
    return [place.clip(0, size - 1).astype(int) for place in near], weights


def _inside(at: np.ndarray, size: int, padding: str, *, aligned: bool) -> np.ndarray:
    """Return positions brought into an axis: to its border, or reflected there."""
    if padding == "border":
        return at.clip(0, size - 1)
    if padding != "reflection":
        return at
    low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
    if not span:
        return np.zeros(at.shape)
    turned = np.abs(at - low) % (2 * span)
    return low + np.minimum(turned, 2 * span - turned)
