"""Randomness as a function: a minibatch is a hash of (seed, round, phase, step, client, slot), not a generator's state.

Every engine therefore sees the same minibatches, whatever its chunking, and a resumed run continues exactly. The hash is
splitmix64's finaliser in wrapping 64-bit integer arithmetic, as tensors on any device or as Python integers:

    absorb(h, v) = mix(h + (v + 1) * GOLDEN),   key(v_1, ..., v_n) = absorb(... absorb(0, v_1) ..., v_n)

Drawing without replacement uses the swap-or-not shuffle (Hoang, Morris, Rogaway 2012): a keyed permutation of {0..n-1} for
any n, evaluated at the wanted slots alone, with no sorting and no branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

Sampling = Literal["without_replacement", "with_replacement"]
SAMPLINGS: tuple[str, ...] = get_args(Sampling)

MINIBATCH, SERVER, POOL, TANGENT = (
    1,
    2,
    3,
    4,
)  # purposes, the first number absorbed, so that two uses never share a stream
_GOLDEN, _MUL_1, _MUL_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_NORMAL = 1 << 40  # absorbed in place of a step's number
_SHUFFLE_ROUNDS = 24  # a slot stays where it was with probability 2^-24


def _signed(v: int) -> int:
    """The int64 with the same 64 bits."""
    v &= _MASK
    return v - (1 << 64) if v >> 63 else v


def key(*values: int) -> int:
    """Hash a sequence of integers to 64 bits."""
    h = 0
    for v in values:
        h = (h + (v + 1) * _GOLDEN) & _MASK
        h = ((h ^ (h >> 30)) * _MUL_1) & _MASK
        h = ((h ^ (h >> 27)) * _MUL_2) & _MASK
        h ^= h >> 31
    return h


def integer(n: int, *values: int) -> int:
    """A uniform integer in {0..n-1}, a function of `values`."""
    return ((key(*values) >> 33) * n) >> 31


def _shift(h: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (h >> bits) & ((1 << (64 - bits)) - 1)


def _absorb(h: Tensor, v: Tensor | int) -> Tensor:
    h = h + (_signed((v + 1) * _GOLDEN) if isinstance(v, int) else (v + 1) * _signed(_GOLDEN))
    h = (h ^ _shift(h, 30)) * _signed(_MUL_1)
    h = (h ^ _shift(h, 27)) * _signed(_MUL_2)
    return h ^ _shift(h, 31)


def _below(h: Tensor, n: Tensor) -> Tensor:
    return (_shift(h, 33) * n) >> 31


def keys(values: Sequence[int], device: torch.device) -> Tensor:
    """64-bit keys as a tensor: one key alone as [], those of R replicas as [R, 1, 1]."""
    signed = torch.tensor([_signed(v) for v in values], device=device)
    return signed[0] if len(values) == 1 else signed.view(-1, 1, 1)


def subkey(key: Tensor, k: int) -> Tensor:
    """The key of the k-th of several streams."""
    return _absorb(key, k)


def normal(key: Tensor, ids: Tensor, k: int, draw: int = 0) -> Tensor:
    """Standard normal numbers [..., S, k] (float64), a function of key, draw and client (Box-Muller)."""
    h = _absorb(_absorb(key, _NORMAL + draw), ids.unsqueeze(-1))
    h = _absorb(h, torch.arange(k, device=ids.device))
    u, v = ((_shift(part, 33).double() + 0.5) * 2.0**-31 for part in (h, _absorb(h, 0)))
    return (-2 * u.log()).sqrt() * (2 * math.pi * v).cos()


def minibatches(
    key: Tensor,
    steps: Tensor,
    ids: Tensor,
    sizes: Tensor,
    batch_size: int,
    sampling: str,
    fill: bool = False,
    later: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Row numbers within each client's own data, and their weights, for a range of local steps.

    Args:
        key: key(MINIBATCH, seed, round, phase), from `keys`.
        steps: the local steps t to draw for [T].
        ids: global client numbers [S], or [R, S] with a replica axis.
        sizes: how many samples each of them has, likewise.
        batch_size: B; a client with fewer samples uses all of them when drawing without replacement.
        sampling: one of SAMPLINGS.
        later: how many steps later each client is than `steps` says, likewise.
        fill: a client with fewer than B samples, but at least one, goes over them again until all B slots are full.

    Returns:
        rows [T, ..., S, B] and weights [..., S, B] (float64) that sum to one over each client's slots; absent slots weigh 0.
    """
    device = ids.device
    t = steps.view(-1, *[1] * (ids.ndim + 1))
    slot = torch.arange(batch_size, device=device)
    n = sizes.unsqueeze(-1)  # [..., S, 1]
    if later is not None:
        t = t + later.unsqueeze(-1)
    h = _absorb(_absorb(key, t), ids.unsqueeze(-1))  # [T, ..., S, 1]
    if sampling == "with_replacement":
        present = (n > 0).expand(*ids.shape, batch_size)
        return _below(_absorb(h, slot), n), present.double() / batch_size
    taken = n.clamp(max=batch_size)
    present = slot < taken  # [..., S, B]
    if fill:
        present = (n > 0).expand_as(present)
        taken, n = present.sum(-1, keepdim=True).clamp(min=1), n.clamp(min=1)
        slot = slot % n
    h = _absorb(h, torch.arange(_SHUFFLE_ROUNDS, device=device).view(-1, *[1] * h.ndim))  # [24, T, ..., S, 1]
    pivots, multipliers, offsets = (k.int() for k in (_below(h, n), _absorb(h, 0) | 1, _absorb(h, 1)))
    rows, n_32 = (slot * present).int().repeat(len(steps), *[1] * present.ndim), n.int()
    # 32-bit words and sign masks (x >> 31 is -1 or 0): comparisons and `where` are many times slower on a CPU
    for pivot, multiplier, offset in zip(pivots, multipliers, offsets, strict=True):
        partner = pivot - rows
        partner += (partner >> 31).bitwise_and_(n_32)  # modulo n
        # the top bit of a multiply-add hash says whether to swap
        swap = torch.maximum(rows, partner).mul_(multiplier).add_(offset).bitwise_right_shift_(31)
        rows ^= partner.bitwise_xor_(rows).bitwise_and_(swap)
    return rows.long(), present / taken.double()
