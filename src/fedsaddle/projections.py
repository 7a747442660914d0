"""Projections and proximal steps on the last axis, exact, batched, on any device; named so that configs can ask for them.

Each is `f(v, lr) -> Tensor`, where lr is the gradient step that came before (a projection ignores it). The factories take
the constraint's size: `box(-1, 1)`, `ball(10)`, `l1(0.001)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError

Prox = Callable[[Tensor, "float | Tensor"], Tensor]


def simplex() -> Prox:
    """Euclidean projection on {v >= 0, sum v = 1}, by sorting."""

    def project(v: Tensor, lr: float | Tensor) -> Tensor:
        u = v.sort(dim=-1, descending=True).values
        excess = u.cumsum(-1) - 1
        k = torch.arange(1, v.shape[-1] + 1, device=v.device)
        support = (u * k > excess).sum(-1, keepdim=True)
        return (v - excess.gather(-1, support - 1) / support).clamp(min=0)

    return project


def box(low: float = -1.0, high: float = 1.0) -> Prox:
    """Projection on low <= v <= high."""
    if not low < high:
        raise FedsaddleError(f"box: low must be below high, got [{low}, {high}]")
    return lambda v, lr: v.clamp(low, high)


def nonnegative() -> Prox:
    """Projection on v >= 0."""
    return lambda v, lr: v.clamp(min=0)


def ball(radius: float = 1.0) -> Prox:
    """Projection on the Euclidean ball ||v|| <= radius."""
    if not radius > 0:
        raise FedsaddleError(f"ball: radius must be > 0, got {radius}")
    return lambda v, lr: v * (radius / v.norm(dim=-1, keepdim=True).clamp(min=radius))


def l1(weight: float = 1e-3) -> Prox:
    """Soft-threshold: proximal step of weight * ||v||_1."""
    if not weight >= 0:
        raise FedsaddleError(f"l1: weight must be >= 0, got {weight}")
    return lambda v, lr: v.sign() * (v.abs() - lr * weight).clamp(min=0)


def l2(weight: float = 1e-3) -> Prox:
    """Shrinkage: proximal step of weight/2 * ||v||^2."""
    if not weight >= 0:
        raise FedsaddleError(f"l2: weight must be >= 0, got {weight}")
    return lambda v, lr: v / (1 + lr * weight)


PROJECTIONS: dict[str, Callable[..., Prox]] = {
    "simplex": simplex,
    "box": box,
    "nonnegative": nonnegative,
    "ball": ball,
    "l1": l1,
    "l2": l2,
}


def named(spec: str | Prox) -> Prox:
    """A projection from its name, with arguments if wanted ("simplex", "ball(10)"), or the function itself."""
    if not isinstance(spec, str):
        return spec
    name, _, arguments = spec.strip().partition("(")
    if name not in PROJECTIONS:
        raise FedsaddleError(
            f"prox: unknown name {name!r}; known are {', '.join(PROJECTIONS)}, or pass a function f(v, lr)"
        )
    try:
        numbers = [float(a) for a in arguments.rstrip(")").split(",") if a.strip()]
        return PROJECTIONS[name](*numbers)
    except (TypeError, ValueError) as error:
        if isinstance(error, FedsaddleError):
            raise
        raise FedsaddleError(f"prox: {spec!r} is not a valid call; try {name}(number, ...)") from None
