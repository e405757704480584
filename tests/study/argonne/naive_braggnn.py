"""One training step of BraggNN in plain numpy, by matrix products, in the type of its operands.

An independent second implementation: tests compare the operators with it, and the benchmark
measures what the emulation costs against it.
"""

from collections.abc import Mapping

import numpy as np

_SLOPE = np.float32(0.01)

Cache = dict[str, np.ndarray]


def _columns(x: np.ndarray, kernel: int) -> np.ndarray:
    """Return (batch, channels * kernel^2, positions)."""
    batch, channels = x.shape[:2]
    views = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    ordered = views.transpose(0, 1, 4, 5, 2, 3)
    return ordered.reshape(batch, channels * kernel * kernel, -1)


def _conv(x: np.ndarray, name: str, weights: Mapping[str, np.ndarray], cache: Cache) -> np.ndarray:
    kernel = weights[f"{name}.weight"]
    columns = _columns(x, kernel.shape[2]) if kernel.shape[2] > 1 else x.reshape(*x.shape[:2], -1)
    cache[name] = columns
    size = x.shape[2] - kernel.shape[2] + 1
    y = kernel.reshape(kernel.shape[0], -1) @ columns + weights[f"{name}.bias"][:, None]
    return y.reshape(x.shape[0], -1, size, size)


def _conv_gradient(
    gradient: np.ndarray,
    name: str,
    weights: Mapping[str, np.ndarray],
    cache: Cache,
    gradients: Cache,
    need_input: bool = True,
) -> np.ndarray | None:
    kernel, columns = weights[f"{name}.weight"], cache[name]
    flat = gradient.reshape(*gradient.shape[:2], -1)
    gradients[f"{name}.bias"] = flat.sum(axis=(0, 2))
    dw = np.matmul(flat, columns.swapaxes(1, 2)).sum(axis=0)
    gradients[f"{name}.weight"] = dw.reshape(kernel.shape)
    if not need_input:
        return None
    spread = kernel.reshape(kernel.shape[0], -1).T @ flat
    batch, size, taps = gradient.shape[0], gradient.shape[2], kernel.shape[2]
    spread = spread.reshape(batch, kernel.shape[1], taps, taps, size, size)
    full = size + taps - 1
    out = np.zeros((batch, kernel.shape[1], full, full), gradient.dtype)
    for row in range(taps):
        for column in range(taps):
            out[:, :, row : row + size, column : column + size] += spread[:, :, row, column]
    return out


def _leaky(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, _SLOPE * x)


def _slope(y: np.ndarray) -> np.ndarray:
    return np.where(y > 0, np.float32(1), _SLOPE)


_PARTS = ("theta_layer", "phi_layer", "g_layer")
_DENSE = ("dense_layers.1", "dense_layers.2", "dense_layers.3", "dense_layers.4")


def predict(
    patches: np.ndarray, weights: Mapping[str, np.ndarray], cache: Cache | None = None
) -> np.ndarray:
    """Return the predicted centres (batch, 2) of patches (batch, 1, 11, 11)."""
    cache = {} if cache is None else cache
    field = _conv(patches, "cnn_layers_1", weights, cache)
    batch, size = field.shape[0], field.shape[2]
    theta, phi, value = (
        _conv(field, f"nlb.{part}", weights, cache).reshape(batch, -1, size * size)
        for part in _PARTS
    )
    scores = theta.swapaxes(1, 2) @ phi
    scores = np.exp(scores - scores.max(axis=2, keepdims=True))
    attention = scores / scores.sum(axis=2, keepdims=True)
    mixed = value @ attention.swapaxes(1, 2)
    cache.update(theta=theta, phi=phi, value=value, attention=attention)
    mixed = mixed.reshape(batch, -1, size, size)
    x = _leaky(_conv(mixed, "nlb.out_cnn", weights, cache) + field)
    cache["a1"] = x
    for number in (2, 3):
        x = _leaky(_conv(x, f"cnn_layers_{number}", weights, cache))
        cache[f"a{number}"] = x
    x = x.reshape(batch, -1)
    for name in (*_DENSE, "dense_layers.out"):
        cache[name] = x
        x = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        if name in _DENSE:
            x = _leaky(x)
            cache[f"{name}.y"] = x
    return x


def training_step(
    patches: np.ndarray, targets: np.ndarray, weights: Mapping[str, np.ndarray]
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the mean squared error and the gradients of all weights."""
    cache: Cache = {}
    gradients: Cache = {}
    predicted = predict(patches, weights, cache)
    difference = predicted - targets
    g = difference * np.float32(2 / difference.size)
    for name in ("dense_layers.out", *reversed(_DENSE)):
        if name in _DENSE:
            g = g * _slope(cache[f"{name}.y"])
        gradients[f"{name}.weight"] = g.T @ cache[name]
        gradients[f"{name}.bias"] = g.sum(axis=0)
        g = g @ weights[f"{name}.weight"]
    g = g.reshape(cache["a3"].shape)
    for number in (3, 2):
        g = g * _slope(cache[f"a{number}"])
        g = _conv_gradient(g, f"cnn_layers_{number}", weights, cache, gradients)
    g = g * _slope(cache["a1"])
    g = g + _non_local_gradient(g, weights, cache, gradients)
    _conv_gradient(g, "cnn_layers_1", weights, cache, gradients, need_input=False)
    return float((difference**2).mean()), gradients


def _non_local_gradient(
    gradient: np.ndarray, weights: Mapping[str, np.ndarray], cache: Cache, gradients: Cache
) -> np.ndarray:
    """Return the part of the field's gradient that comes through the attention."""
    batch, _, size, _ = gradient.shape
    mixed = _conv_gradient(gradient, "nlb.out_cnn", weights, cache, gradients)
    mixed = mixed.reshape(batch, -1, size * size)
    attention = cache["attention"]
    value = mixed @ attention
    weighted = mixed.swapaxes(1, 2) @ cache["value"]
    scores = attention * (weighted - (weighted * attention).sum(axis=2, keepdims=True))
    theta = cache["phi"] @ scores.swapaxes(1, 2)
    phi = cache["theta"] @ scores
    total = np.zeros(1, gradient.dtype)
    for part, item in zip(_PARTS, (theta, phi, value), strict=True):
        item = item.reshape(batch, -1, size, size)
        total = total + _conv_gradient(item, f"nlb.{part}", weights, cache, gradients)
    return total
