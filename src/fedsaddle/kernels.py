"""Triton kernels for an NVIDIA GPU: convolutions of stacked clients, each with its own weights, without making patches.

A convolution is a matrix product whose left factor, the patches, is nine times the image for a 3x3 kernel. These kernels
read the pixels of a patch where they lie (implicit GEMM). All clients are one launch; images are channels last,
x [S, B, H, W, C], weights w [S, O, k_h, k_w, C], products in the dtype of x, sums in float32:

    y[s, b, h, v, o] = sum_ijc x[s, b, stride h + i - pad, stride v + j - pad, c] w[s, o, i, j, c]

The derivative by x gathers from that by y in the same way; the one by w is a sum over pixels, where the weights are few in
parts, added in a fixed order: results do not change from run to run. Tiles and parts were chosen on an H200, over the layers
of ResNet-18 with 10 clients (docs/performance.md) and of a small CNN with 45. `convolution.py` says when they are used.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 360  # of the derivative by w, at least: they keep the card busy


@triton.jit
def _gather(
    src, wt, out, B,
    HS: tl.constexpr, WS: tl.constexpr, K: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, N: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BACK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out [S, B, HO, WO, N] from src [S, B, HS, WS, K]: y from x, or (BACK) the derivative by x from that by y.

    Backwards only every STRIDE-th tap reaches a pixel; a program has pixels of one remainder (ph, pw) modulo STRIDE.
    """
    PHASES: tl.constexpr = STRIDE if BACK else 1
    HP: tl.constexpr = (HO + PHASES - 1) // PHASES
    WP: tl.constexpr = (WO + PHASES - 1) // PHASES
    TILES: tl.constexpr = (N + BN - 1) // BN
    KB: tl.constexpr = K // BK
    s, phase = (tl.program_id(1) // (PHASES * PHASES)).to(tl.int64), tl.program_id(1) % (PHASES * PHASES)
    ph, pw = phase // PHASES, phase % PHASES
    m = tl.program_id(0) // TILES * BM + tl.arange(0, BM)
    n = tl.program_id(0) % TILES * BN + tl.arange(0, BN)
    b, h, v = m // (HP * WP), m // WP % HP, m % WP
    if BACK:
        i0, j0 = (ph + PAD) % STRIDE, (pw + PAD) % STRIDE  # the first tap that reaches these pixels
        rows, cols = (KH - i0 + STRIDE - 1) // STRIDE, (KW - j0 + STRIDE - 1) // STRIDE
        r0, q0 = h + (ph + PAD - i0) // STRIDE, v + (pw + PAD - j0) // STRIDE
    else:
        i0, j0, rows, cols = 0, 0, KH, KW
        r0, q0 = h * STRIDE - PAD, v * STRIDE - PAD
    src += s * B * (HS * WS * K)
    wt += s * (N * K * KH * KW)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for t in range(rows * cols * KB):
        k = t % KB * BK + tl.arange(0, BK)
        i, j = t // KB // cols, t // KB % cols
        if BACK:
            r, q, tap = r0 - i, q0 - j, (i0 + STRIDE * i) * KW + j0 + STRIDE * j
            place = k[:, None] * (KH * KW * N) + (tap * N + n)[None, :]
        else:
            r, q, tap = r0 + i, q0 + j, i * KW + j
            place = n[None, :] * (KH * KW * K) + (tap * K + k)[:, None]
        inside = (b < B) & (r >= 0) & (r < HS) & (q >= 0) & (q < WS)
        pixels = tl.load(
            src + ((b * HS + r) * WS + q)[:, None] * K + k[None, :], mask=inside[:, None], other=0.0
        )
        weights = tl.load(wt + place, mask=n[None, :] < N, other=0.0)
        acc = tl.dot(pixels, weights, acc, input_precision="ieee")
    h, v = h * PHASES + ph, v * PHASES + pw
    inside = (b < B) & (h < HO) & (v < WO)
    out += s * B * (HO * WO * N)
    place = ((b * HO + h) * WO + v)[:, None] * N + n[None, :]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=inside[:, None] & (n[None, :] < N))


@triton.jit
def _by_weights(
    x, g, out, B, part,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, O: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BO: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """out [split, S, O, KH, KW, C], each the sum over `part` pixels, of x [S, B, H, W, C] and g [S, B, HO, WO, O]."""
    TILES: tl.constexpr = (C + BC - 1) // BC
    s, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    tap, tile = tile % (KH * KW), tile // (KH * KW)
    i, j = tap // KW, tap % KW
    c, o = tile % TILES * BC + tl.arange(0, BC), tile // TILES * BO + tl.arange(0, BO)
    x += s * B * (H * W * C)
    g += s * B * (HO * WO * O)
    start, end = tl.program_id(2) * part, tl.minimum(tl.program_id(2) * part + part, B * HO * WO)
    acc = tl.zeros((BO, BC), dtype=tl.float32)
    for t in range(start, end, BM):
        m = t + tl.arange(0, BM)
        b, r, q = m // (HO * WO), m // WO % HO * STRIDE + i - PAD, m % WO * STRIDE + j - PAD
        inside = (m < end) & (r >= 0) & (r < H) & (q >= 0) & (q < W)
        place = ((b * H + r) * W + q)[:, None] * C + c[None, :]
        pixels = tl.load(x + place, mask=inside[:, None] & (c[None, :] < C), other=0.0)
        known = (m[None, :] < end) & (o[:, None] < O)
        grads = tl.load(g + m[None, :] * O + o[:, None], mask=known, other=0.0)
        acc = tl.dot(grads, pixels, acc, input_precision="ieee")
    out += (tl.program_id(2) * tl.num_programs(1) + s) * (O * KH * KW * C)
    place = o[:, None] * (KH * KW * C) + tap * C + c[None, :]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=(o[:, None] < O) & (c[None, :] < C))


def _launch(src: Tensor, wt: Tensor, out: Tensor, stride: int, pad: int, back: bool) -> Tensor:
    S, B, HS, WS, K = src.shape
    HO, WO, N = out.shape[2:]
    phases = stride if back else 1
    rows = B * triton.cdiv(HO, phases) * triton.cdiv(WO, phases)
    BM, BN = 128, next(k for k in (32, 64, 128) if k >= N or k == 128)
    BK = next(k for k in (128 // src.element_size(), 32, 16) if K % k == 0)
    grid = (triton.cdiv(rows, BM) * triton.cdiv(N, BN), S * phases * phases)
    _gather[grid](
        src, wt, out, B, HS, WS, K, HO, WO, N, *wt.shape[2:4], stride, pad, back, BM, BN, BK,
        num_warps=max(4, BN // 16), num_stages=3,
    )  # fmt: skip
    return out


def _outputs(x: Tensor, w: Tensor, stride: int, pad: int) -> Tensor:
    (S, B, H, W, _), (_, O, k_h, k_w, _) = x.shape, w.shape
    return x.new_empty(S, B, (H + 2 * pad - k_h) // stride + 1, (W + 2 * pad - k_w) // stride + 1, O)


def forward(x: Tensor, w: Tensor, stride: int, pad: int) -> Tensor:
    return _launch(x, w, _outputs(x, w, stride, pad), stride, pad, back=False)


def _inputs(g: Tensor, w: Tensor, height: int, width: int, stride: int, pad: int) -> Tensor:
    return g.new_empty(*g.shape[:2], height, width, w.shape[-1])


def by_input(g: Tensor, w: Tensor, height: int, width: int, stride: int, pad: int) -> Tensor:
    return _launch(g, w, _inputs(g, w, height, width, stride, pad), stride, pad, back=True)


def _weights(x: Tensor, g: Tensor, k_h: int, k_w: int, stride: int, pad: int) -> Tensor:
    return x.new_empty(len(x), g.shape[-1], k_h, k_w, x.shape[-1])


def by_weights(x: Tensor, g: Tensor, k_h: int, k_w: int, stride: int, pad: int) -> Tensor:
    (S, B, H, W, C), (HO, WO, O) = x.shape, g.shape[2:]
    BO, BC = (next(k for k in (16, 32, 64, 128) if n <= k or k == 128) for n in (O, C))
    BM, rows = 128 // x.element_size(), B * HO * WO
    tiles = k_h * k_w * triton.cdiv(C, BC) * triton.cdiv(O, BO)
    programs = _PROGRAMS * (4 if BO * BC <= 1024 else 1)  # small tiles take little of a multiprocessor
    split = max(1, min(triton.cdiv(programs, tiles * S), rows // 512))
    part = triton.cdiv(triton.cdiv(rows, split), BM) * BM
    split = triton.cdiv(rows, part)
    dtype = x.dtype if split == 1 else torch.float32  # of sums of parts, the last is rounded
    out = x.new_empty(split, S, O, k_h, k_w, C, dtype=dtype)
    _by_weights[tiles, S, split](
        x, g, out, B, part, H, W, C, HO, WO, O, k_h, k_w, stride, pad, BO, BC, BM, num_warps=4, num_stages=3
    )  # fmt: skip
    return out[0] if split == 1 else out.sum(0).to(x.dtype)


_library = torch.library.Library("fedsaddle", "FRAGMENT")
for _schema, _kernel, _empty in (
    ("conv(Tensor x, Tensor w, int stride, int pad)", forward, _outputs),
    ("conv_by_input(Tensor g, Tensor w, int height, int width, int stride, int pad)", by_input, _inputs),
    ("conv_by_weights(Tensor x, Tensor g, int k_h, int k_w, int stride, int pad)", by_weights, _weights),
):
    _name = _schema.partition("(")[0]
    _library.define(f"{_schema} -> Tensor")
    _library.impl(_name, _kernel, "CUDA")
    torch.library.register_fake(f"fedsaddle::{_name}", _empty, lib=_library)


class _Convolution(torch.autograd.Function):
    """The convolution of stacked tensors, with its derivatives; vmap lengthens the stack."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: int, pad: int) -> Tensor:
        y: Tensor = torch.ops.fedsaddle.conv(x.contiguous(), w.contiguous(), stride, pad)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, ctx.stride, ctx.pad = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (x, w), at, operators = ctx.saved_tensors, (ctx.stride, ctx.pad), torch.ops.fedsaddle
        g, dx, dw = g.contiguous(), None, None
        if ctx.needs_input_grad[0]:
            dx = operators.conv_by_input(g, w.contiguous(), *x.shape[2:4], *at)
        if ctx.needs_input_grad[1]:
            dw = operators.conv_by_weights(x.contiguous(), g, *w.shape[2:4], *at)
        return dx, dw, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, stride: int, pad: int) -> tuple[Tensor, int]:
        n = info.batch_size
        x, w = (
            v.expand(n, *v.shape) if at is None else v.movedim(at, 0)
            for v, at in zip((x, w), in_dims[:2], strict=True)
        )
        y: Tensor = _Convolution.apply(x.flatten(0, 1), w.flatten(0, 1), stride, pad)
        return y.unflatten(0, (n, -1)), 0


@torch.compiler.allow_in_graph  # otherwise the compiler differentiates `forward` and never calls `backward`
def convolve(x: Tensor, w: Tensor, stride: int, pad: int) -> Tensor:
    """The convolution above, differentiable, of x [S, B, H, W, C] and w [S, O, k_h, k_w, C]; C and O multiples of 16."""
    y: Tensor = _Convolution.apply(x, w, stride, pad)
    return y


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the GPU has what the kernels need: bfloat16 tensor cores, asynchronous copies."""
    return torch.cuda.get_device_capability() >= (8, 0)
