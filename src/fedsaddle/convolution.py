"""Convolutions of stacked clients as matrix products, and the layers beside them; images are channels last.

Every client has its own kernels, so under vmap a convolution becomes a grouped one, for which libraries are slow. Written
as patches times kernels (im2col) it becomes one batched matrix product (`convolved`). `matrix_convolutions` replaces
`conv2d` while a module runs under vmap, so a user's nn.Conv2d gets this without being rewritten.

In bfloat16 on an NVIDIA GPU (Ampere or newer) the product reads its patches where they lie (`kernels.py`). Patches are made
where that does not apply: without Triton, in another precision, with unequal strides or paddings, when the output channels
are no multiple of 16, and from 2^31 numbers a client on; a 1x1 convolution needs neither. Before that, taps that meet no
pixel are left out (`met`), as eight of nine on images of one pixel, and where the stride is larger than one on few channels
blocks of pixels become channels (`_in_blocks`), as in the first layer of a network. Under the compiler `group_norm` in
bfloat16 is written as sums over pixels and one element-wise map, and `max_pool` as comparisons, which are fused with the
layers around them. The mean over all pixels is a plain mean: adaptive pooling of such images has no batching rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if torch.version.cuda and find_spec("triton"):
    from fedsaddle import kernels as in_place
else:
    in_place = None  # type: ignore[assignment]

Pair = tuple[int, int]


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """Convolutions of stacked clients: x [S, B, H, W, C], weight [S, O, k_h, k_w, C], bias [S, O] -> [S, B, H', W', O]."""
    if torch.is_autocast_enabled(x.device.type):  # before patches are made, which are many times larger
        low = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(low), weight.to(low)
    (rows, cols), padding = met(x.shape[2:4], weight.shape[2:4], stride, padding)
    weight = weight[:, :, rows, cols]
    if stride[0] == stride[1] > 1 and stride[0] ** 2 * x.shape[-1] <= 16 and weight.shape[2:4] != (1, 1):
        x, weight = _in_blocks(x, weight, stride[0], padding)
        stride, padding = (1, 1), (0, 0)
    plain = (*weight.shape[2:4], *stride) == (1, 1, 1, 1)  # a matrix product as it stands
    even = stride[0] == stride[1] and padding[0] == padding[1]
    if even and not plain and _readable(x, weight):
        if missing := -x.shape[-1] % 16:  # tensor cores take 16 channels at a time
            x, weight = functional.pad(x, (0, missing)), functional.pad(weight, (0, missing))
        y: Tensor = in_place.convolve(x, weight, stride[0], padding[0])
    else:
        y = _patches_times_kernels(x, weight, stride, padding)
    return y if bias is None else y + bias.to(y.dtype)[:, None, None, None]


def met(size: Sequence[int], kernel: Sequence[int], stride: Pair, padding: Pair) -> tuple[list[slice], Pair]:
    """The taps of a kernel that meet a pixel of images of this size, row and column, and the padding they need."""
    kept, needed = [slice(None), slice(None)], list(padding)
    for axis, (n, k, s, p) in enumerate(zip(size, kernel, stride, padding, strict=True)):
        places = (n + 2 * p - k) // s + 1
        taps = [i for i in range(k) if any(0 <= r * s + i - p < n for r in range(places))]
        if taps and taps[0] <= p and (n + 2 * (p - taps[0]) - len(taps)) // s + 1 == places:
            kept[axis], needed[axis] = slice(taps[0], taps[-1] + 1), p - taps[0]
    return kept, (needed[0], needed[1])


def _in_blocks(x: Tensor, weight: Tensor, s: int, padding: Pair) -> tuple[Tensor, Tensor]:
    """A convolution of stride s as one of stride 1 without padding: each s x s block of pixels is one of s^2 C channels."""
    grow: list[int] = []  # of x, from the last axis of the two on
    more: list[int] = []  # of weight: taps of 0 after its own, up to a multiple of s
    for n, k, p in zip(x.shape[3:1:-1], weight.shape[3:1:-1], padding[::-1], strict=True):
        blocks = (n + 2 * p - k) // s + -(-k // s)
        grow += [p, s * blocks - n - p]
        more += [0, -k % s]
    x, weight = functional.pad(x, [0, 0, *grow]), functional.pad(weight, [0, 0, *more])
    x, weight = (
        v.unflatten(3, (-1, s)).unflatten(2, (-1, s)).transpose(3, 4).flatten(4) for v in (x, weight)
    )
    return x, weight


def _patches_times_kernels(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    (k_h, k_w), (s_h, s_w), (p_h, p_w) = weight.shape[2:4], stride, padding
    kernels = weight.flatten(2)  # [S, O, k_h k_w C]
    if p_h or p_w:
        x = functional.pad(x, (0, 0, p_w, p_w, p_h, p_h))
    if (k_h, k_w) == (1, 1):
        patches = x[:, :, ::s_h, ::s_w]
    elif (
        torch.compiler.is_compiling()
    ):  # shifted copies: their backward is a fused sum, that of unfold a slow scatter
        h, w = (x.shape[2] - k_h) // s_h, (x.shape[3] - k_w) // s_w
        # row by row: the compiler fuses a concatenation of few pieces, and copies one of nine in nine kernels
        rows = [
            torch.cat(
                [x[:, :, i : i + h * s_h + 1 : s_h, j : j + w * s_w + 1 : s_w] for j in range(k_w)],
                -1,
            )
            for i in range(k_h)
        ]
        patches = torch.cat(rows, dim=-1)
    else:
        windows = x.unfold(2, k_h, s_h).unfold(3, k_w, s_w)  # [S, B, H', W', C, k_h, k_w], a view
        patches = windows.permute(0, 1, 2, 3, 5, 6, 4).flatten(
            4
        )  # channels innermost: copied in contiguous pieces
    y = patches.flatten(1, 3) @ kernels.mT
    return y.view(*patches.shape[:4], -1)


def _readable(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels apply to x [S, B, H, W, C] and weight [S, O, k_h, k_w, C]."""
    O, C = weight.shape[1], weight.shape[-1]
    fits = O % 16 == 0 and x[0, ..., 0].numel() * max(16, O, C) < 1 << 31
    return _low(x) and fits and in_place.available()


def _low(x: Tensor) -> bool:
    return in_place is not None and x.is_cuda and x.dtype == torch.bfloat16


def plain_convolution(
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Pair, Pair] | None:
    """Stride and padding of a convolution that `convolved` computes; None of any other."""
    padding = 0 if padding == "valid" else padding
    if groups != 1 or pair(dilation) != (1, 1) or isinstance(padding, str):
        return None
    return pair(stride), pair(padding)


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any, **named: Any) -> Tensor | None:
    """functional.conv2d by `convolved`: x [B, C, H, W] -> [B, O, H', W']; None where that does not apply."""
    plain = plain_convolution(*how, **named)
    if plain is None or x.ndim != 4:
        return None
    stacked = x.permute(0, 2, 3, 1).unsqueeze(0), weight.permute(0, 2, 3, 1).unsqueeze(0)
    y = convolved(*stacked, None if bias is None else bias.unsqueeze(0), *plain)
    return y.squeeze(0).permute(0, 3, 1, 2)


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """functional.group_norm of x [B, C, H, W], from sums over pixels; computed in float32, returned in x's dtype.

    The variance is the mean square less the squared mean: in float32 this loses less than rounding x to bfloat16 did.
    """
    B, C, H, W = x.shape
    v, n = x.float(), H * W * (C // groups)
    sums = v.sum((2, 3)), (v * v).sum((2, 3))  # [B, C]
    mean, square = (s.view(B, groups, -1).sum(-1) / n for s in sums)  # [B, groups]
    scale = torch.rsqrt((square - mean * mean).clamp(min=0.0) + eps)
    shift = -mean * scale
    scale, shift = (s.unsqueeze(-1).expand(B, groups, C // groups).reshape(B, C) for s in (scale, shift))
    if weight is not None:
        scale, shift = scale * weight, shift * weight
    if bias is not None:
        shift = shift + bias
    return (v * scale[:, :, None, None] + shift[:, :, None, None]).to(x.dtype)


class Windows(NamedTuple):
    """Where a pooling looks: rows and columns of a window, from one to the next, and of padding on each side."""

    size: Pair
    stride: Pair
    padding: Pair


def max_pool(x: Tensor, windows: Windows) -> Tensor:
    """The largest pixels of x [..., H, W, C] in windows, as functional.max_pool2d: the first of equals, NaN.

    Under the compiler the pixel of a window is found by comparisons and then picked, so that its derivative, too, is a map
    of single pixels.
    """
    if not torch.compiler.is_compiling():
        images = functional.max_pool2d(x.flatten(0, -4).permute(0, 3, 1, 2), *windows)
        pooled = images.permute(0, 2, 3, 1)
        return pooled.reshape(*x.shape[:-3], *pooled.shape[1:])
    return _picked(x, windows)


def _picked(x: Tensor, windows: Windows) -> Tensor:
    (k_h, k_w), (s_h, s_w), (p_h, p_w) = windows
    if p_h or p_w:
        x = functional.pad(x, (0, 0, p_w, p_w, p_h, p_h), value=-math.inf)
    h, w = (x.shape[-3] - k_h) // s_h + 1, (x.shape[-2] - k_w) // s_w + 1
    if (s_h, s_w) == (k_h, k_w):  # side by side: each pixel is in one window
        x = x[..., : h * k_h, : w * k_w, :].unflatten(-2, (w, k_w)).unflatten(-4, (h, k_h))
        pixels = [x[..., k // k_w, :, k % k_w, :] for k in range(k_h * k_w)]  # [..., h, k_h, w, k_w, C]
    else:
        pixels = [
            x[..., i : i + (h - 1) * s_h + 1 : s_h, j : j + (w - 1) * s_w + 1 : s_w, :]
            for i in range(k_h)
            for j in range(k_w)
        ]
    largest = pixels[0]
    place = torch.zeros_like(largest, dtype=torch.int8)
    for k, pixel in enumerate(pixels):
        larger = (pixel > largest) | pixel.isnan()
        largest, place = torch.where(larger, pixel, largest), torch.where(larger, k, place)
    if (s_h, s_w) != (k_h, k_w):
        return sum((torch.where(place == k, v, 0.0) for k, v in enumerate(pixels)), torch.zeros_like(largest))
    places = torch.arange(k_h * k_w, device=x.device, dtype=torch.int8).view(k_h, 1, k_w, 1)
    return torch.where(place.unsqueeze(-2).unsqueeze(-4) == places, x, 0.0).sum((-4, -2), dtype=x.dtype)


def small_windows(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Windows | None:
    """The windows of a pooling that `max_pool` computes: plain ones of few pixels to compare; None of any other."""
    size = pair(kernel_size)
    plain = pair(dilation) == (1, 1) and not ceil_mode and not return_indices
    return (
        Windows(size, pair(stride) if stride else size, pair(padding))
        if plain and size[0] * size[1] <= 9
        else None
    )


def pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


class matrix_convolutions(TorchFunctionMode):
    """While active, conv2d is computed by `convolved` where that applies, and the layers beside it to suit."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (functional.conv2d, torch.conv2d):
            y = conv2d(*args, **(kwargs or {}))
            if y is not None:
                return y
        if (
            func is functional.group_norm
            and torch.compiler.is_compiling()
            and _low(args[0])
            and args[0].ndim == 4
        ):
            return group_norm(*args, **(kwargs or {}))
        if func in (functional.max_pool2d, torch.max_pool2d) and torch.compiler.is_compiling():
            windows = small_windows(*args[1:], **(kwargs or {}))
            if windows is not None:
                return max_pool(args[0].movedim(-3, -1), windows).movedim(-1, -3)
        if func is functional.adaptive_avg_pool2d and args[1:] in ((1,), ((1, 1),)):
            return args[0].mean((-2, -1), keepdim=True)
        return func(*args, **(kwargs or {}))
