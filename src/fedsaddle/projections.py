"""Projections and proximal steps on the last axis, exact, batched, on any device; named so that configs can ask for them.

Each is `f(v, lr) -> Tensor`, where lr is the gradient step that came before, a number or [..., 1] (a projection ignores it).
The factories take the constraint's size: `box(-1, 1)`, `ball(10)`, `l1(0.001)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.parse import called

Prox = Callable[[Tensor, "float | Tensor"], Tensor]


@dataclass(frozen=True)
class Regulariser:
    """g: its proximal step, which it is called as, and its value."""

    prox: Prox
    value: Callable[[Tensor], Tensor]  # [..., k] -> [..., 1]

    def __call__(self, v: Tensor, lr: float | Tensor) -> Tensor:
        return self.prox(v, lr)


def simplex() -> Prox:
    """Euclidean projection on {v >= 0, sum v = 1}, by sorting."""

    def project(v: Tensor, lr: float | Tensor) -> Tensor:
        v = v - v.amax(-1, keepdim=True)  # the same projection, and large numbers lose nothing
        u = v.sort(dim=-1, descending=True).values
        excess = u.cumsum(-1) - 1
        k = torch.arange(1, v.shape[-1] + 1, device=v.device)
        support = (u * k > excess).sum(-1, keepdim=True).clamp(min=1)  # what is not finite stays so
        return (v - excess.gather(-1, support - 1) / support).clamp(min=0)

    return project


def capped_simplex(cap: float = 1.0) -> Prox:
    """Euclidean projection on {0 <= v <= cap, sum v = 1}: clip(v - t, 0, cap), with t from the sorted break points."""

    def project(v: Tensor, lr: float | Tensor) -> Tensor:
        n = v.shape[-1]
        if cap * n < 1 - 1e-12:
            raise FedsaddleError(f"capped_simplex: cap must be at least 1/{n} for {n} entries, got {cap}")
        breaks = (
            torch.cat([v, v - cap], dim=-1).sort(dim=-1).values
        )  # the sum falls from cap n to 0 along these
        total = (v.unsqueeze(-2) - breaks.unsqueeze(-1)).clamp(0.0, cap).sum(-1)  # [..., 2n]
        at = (total >= 1 - 1e-12).sum(-1, keepdim=True).clamp(1, 2 * n - 1) - 1
        left, right = breaks.gather(-1, at), breaks.gather(-1, at + 1)
        high, low = total.gather(-1, at), total.gather(-1, at + 1)
        share = torch.where(high > low, (high - 1) / (high - low), 0.0).clamp(0.0, 1.0)
        return (v - (left + share * (right - left))).clamp(0.0, cap)

    return project


def box(low: float = -1.0, high: float = 1.0) -> Regulariser:
    """Projection on low <= v <= high."""
    if not low < high:
        raise FedsaddleError(f"box: low must be below high, got [{low}, {high}]")
    return Regulariser(lambda v, lr: v.clamp(low, high), lambda v: 0.0 * v[..., :1])


def nonnegative() -> Prox:
    """Projection on v >= 0."""
    return lambda v, lr: v.clamp(min=0)


def ball(radius: float = 1.0) -> Prox:
    """Projection on the Euclidean ball ||v|| <= radius."""
    if not radius > 0:
        raise FedsaddleError(f"ball: radius must be > 0, got {radius}")
    return lambda v, lr: v * (radius / v.norm(dim=-1, keepdim=True).clamp(min=radius))


def l1(weight: float = 1e-3) -> Regulariser:
    """Soft-threshold: proximal step of weight * ||v||_1."""
    if not weight >= 0:
        raise FedsaddleError(f"l1: weight must be >= 0, got {weight}")
    return Regulariser(
        lambda v, lr: v.sign() * (v.abs() - lr * weight).clamp(min=0),
        lambda v: weight * v.abs().sum(-1, keepdim=True),
    )


def l2(weight: float = 1e-3) -> Regulariser:
    """Shrinkage: proximal step of weight/2 * ||v||^2."""
    if not weight >= 0:
        raise FedsaddleError(f"l2: weight must be >= 0, got {weight}")
    return Regulariser(
        lambda v, lr: v / (1 + lr * weight), lambda v: weight / 2 * (v**2).sum(-1, keepdim=True)
    )


def elastic_net(weight: float = 1e-3, ridge: float = 1e-3) -> Regulariser:
    """Proximal step of weight * ||v||_1 + ridge/2 * ||v||^2."""
    sparse, small = l1(weight), l2(ridge)
    return Regulariser(lambda v, lr: small(sparse(v, lr), lr), lambda v: sparse.value(v) + small.value(v))


def group_lasso(weight: float = 1e-3, size: float = 1) -> Regulariser:
    """Proximal step of weight * the sum of ||v_g|| over consecutive groups of `size` entries; the last may be smaller."""
    if not weight >= 0 or size < 1 or size != int(size):
        raise FedsaddleError(
            f"group_lasso: weight must be >= 0 and size a whole number >= 1, got {weight} and {size}"
        )

    def shrink(v: Tensor, lr: float | Tensor) -> Tensor:
        groups = _grouped(v, int(size))
        norm = groups.norm(dim=-1, keepdim=True)
        threshold = weight * (lr.unsqueeze(-1) if isinstance(lr, Tensor) else lr)
        kept: Tensor = torch.where(norm > 0, groups * (1 - threshold / norm).clamp(min=0), 0.0)
        return kept.flatten(-2)[..., : v.shape[-1]]

    return Regulariser(shrink, lambda v: weight * _grouped(v, int(size)).norm(dim=-1).sum(-1, keepdim=True))


def _grouped(v: Tensor, size: int) -> Tensor:
    padded: Tensor = torch.nn.functional.pad(v, (0, -v.shape[-1] % size))
    groups: Tensor = padded.unflatten(-1, (-1, size))
    return groups


PROJECTIONS: dict[str, Callable[..., Prox]] = {
    "simplex": simplex,
    "capped_simplex": capped_simplex,
    "box": box,
    "nonnegative": nonnegative,
    "ball": ball,
    "l1": l1,
    "l2": l2,
    "elastic_net": elastic_net,
    "group_lasso": group_lasso,
}
_made: dict[str, Prox] = {}  # asked for at every local step; functools.cache makes the compiler warn


def named(spec: str | Prox) -> Prox:
    """A projection or regulariser from its name, with arguments if wanted ("simplex", "l1(0.1)"), or the function itself."""
    if not isinstance(spec, str):
        return spec
    if spec not in _made:
        _made[spec] = called(spec, PROJECTIONS, "or pass a function f(v, lr)")
    return _made[spec]


def regulariser(spec: str) -> Regulariser:
    """A regulariser from its name, such as "l1(0.001)", "elastic_net(0.001, 0.1)" or "group_lasso(0.01, 4)"."""
    found = named(spec)
    if not isinstance(found, Regulariser):
        known = ", ".join(name for name, make in PROJECTIONS.items() if isinstance(make(), Regulariser))
        raise FedsaddleError(f"regulariser: {spec!r} is a projection; known are {known}, such as l1(0.001)")
    return found
