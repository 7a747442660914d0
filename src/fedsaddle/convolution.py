"""Convolutions of stacked clients as matrix products.

Under vmap every client has its own kernels, and a convolution becomes a grouped one, for which libraries are slow. Written
as patches times kernels (im2col) it becomes one batched matrix product. `matrix_convolutions` replaces `conv2d` while a
module runs, so a user's nn.Conv2d gets this without being rewritten.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def patches_times_kernels(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """conv2d as a matrix product, channels last: x [B, C, H, W] -> [B, O, H', W']; None where this form does not apply."""
    if groups != 1 or _pair(dilation) != (1, 1) or isinstance(padding, str) or x.ndim != 4:
        return None
    if torch.is_autocast_enabled(x.device.type):  # before patches are made, which are many times larger
        low = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(low), weight.to(low)
    (s_h, s_w), (p_h, p_w) = _pair(stride), _pair(padding)
    k_h, k_w = weight.shape[2:]
    x = x.permute(0, 2, 3, 1)  # [B, H, W, C]
    if p_h or p_w:
        x = functional.pad(x, (0, 0, p_w, p_w, p_h, p_h))
    kernels = weight.permute(0, 2, 3, 1).flatten(1)  # [O, k_h k_w C]
    if (k_h, k_w) == (1, 1):
        patches = x[:, ::s_h, ::s_w]
    elif (
        torch.compiler.is_compiling()
    ):  # shifted copies: their backward is a fused sum, that of unfold a slow scatter
        h, w = (x.shape[1] - k_h) // s_h, (x.shape[2] - k_w) // s_w
        # row by row: the compiler fuses a concatenation of few pieces, and copies one of nine in nine kernels
        rows = [
            torch.cat([x[:, i : i + h * s_h + 1 : s_h, j : j + w * s_w + 1 : s_w] for j in range(k_w)], -1)
            for i in range(k_h)
        ]
        patches = torch.cat(rows, dim=-1)
    else:
        windows = x.unfold(1, k_h, s_h).unfold(2, k_w, s_w)  # [B, H', W', C, k_h, k_w], a view
        patches = windows.permute(0, 1, 2, 4, 5, 3).flatten(
            3
        )  # channels innermost: copied in contiguous pieces
    y = patches @ kernels.mT
    return (y if bias is None else y + bias).permute(0, 3, 1, 2)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


class matrix_convolutions(TorchFunctionMode):
    """While active, conv2d is computed by `patches_times_kernels` where that applies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (functional.conv2d, torch.conv2d):
            y = patches_times_kernels(*args, **(kwargs or {}))
            if y is not None:
                return y
        return func(*args, **(kwargs or {}))
