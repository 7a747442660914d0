"""Losses psi(a, b) of a pair of samples, by what the model says of each: two scores, or two embeddings.

`a` belongs to a sample of the first side (a positive), `b` to one of the second (a negative); both are [..., k] and
broadcast against each other. A loss gives its value [...] and both partial derivatives [..., k], written out: the active and
the passive half of a gradient need d psi / da and d psi / db apart (CyCp eq. (11), (12); erratum E2.1).

    square         (m - t)^2                    t = a - b, the margin by which the positive is ahead
    squared_hinge  max(m - t, 0)^2
    logistic       log(1 + exp(-t / scale))
    sigmoid        1 / (1 + exp(t / scale))     symmetric: robust to flipped labels; scale -> 0 is 1 - AUC
    barrier_hinge  max(m - tau (m + t), max(tau (t - m), m - t))
    q_norm_hinge   max(m - t, 0)^q              (printed without the max, which only an even q can do without)
    contrastive    d^2 / 2 for two samples of one class, max(m - d, 0)^2 / 2 for others, d = ||a - b||
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from fedsaddle.errors import FedsaddleError


@dataclass(frozen=True)
class PairLoss(ABC):
    """A loss of two samples."""

    @abstractmethod
    def value(self, a: Tensor, b: Tensor) -> Tensor:
        """psi(a, b) [...]."""

    @abstractmethod
    def d1(self, a: Tensor, b: Tensor) -> Tensor:
        """d psi / da [..., k]."""

    @abstractmethod
    def d2(self, a: Tensor, b: Tensor) -> Tensor:
        """d psi / db [..., k]."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, Tensor) and not 0 < value < float("inf"):
                raise FedsaddleError(f"{type(self).__name__}: {f.name} must be > 0, got {value}")


@dataclass(frozen=True)
class ScoreLoss(PairLoss):
    """A loss of t = a - b, the difference of two scores."""

    @abstractmethod
    def of(self, t: Tensor) -> Tensor:
        """psi as a function of t."""

    @abstractmethod
    def slope(self, t: Tensor) -> Tensor:
        """d psi / dt."""

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        return self.of(a - b).squeeze(-1)

    def d1(self, a: Tensor, b: Tensor) -> Tensor:
        return self.slope(a - b)

    def d2(self, a: Tensor, b: Tensor) -> Tensor:
        return -self.slope(a - b)


@dataclass(frozen=True)
class Square(ScoreLoss):
    """(m - t)^2."""

    margin: float = 1.0

    def of(self, t: Tensor) -> Tensor:
        return (self.margin - t) ** 2

    def slope(self, t: Tensor) -> Tensor:
        return -2 * (self.margin - t)


@dataclass(frozen=True)
class SquaredHinge(ScoreLoss):
    """max(m - t, 0)^2."""

    margin: float = 1.0

    def of(self, t: Tensor) -> Tensor:
        return (self.margin - t).clamp(min=0) ** 2

    def slope(self, t: Tensor) -> Tensor:
        return -2 * (self.margin - t).clamp(min=0)


@dataclass(frozen=True)
class Logistic(ScoreLoss):
    """log(1 + exp(-t / scale))."""

    scale: float = 1.0

    def of(self, t: Tensor) -> Tensor:
        return functional.softplus(-t / self.scale)

    def slope(self, t: Tensor) -> Tensor:
        return -torch.sigmoid(-t / self.scale) / self.scale


@dataclass(frozen=True)
class Sigmoid(ScoreLoss):
    """1 / (1 + exp(t / scale)), the "PSM" of the CyCp paper; its lambda is the scale."""

    scale: float = 1.0

    def of(self, t: Tensor) -> Tensor:
        return torch.sigmoid(-t / self.scale)

    def slope(self, t: Tensor) -> Tensor:
        psi = self.of(t)
        return -psi * (1 - psi) / self.scale


@dataclass(frozen=True)
class BarrierHinge(ScoreLoss):
    """max(m - tau (m + t), max(tau (t - m), m - t)); tau > 1 makes it steep outside of [-m, m]."""

    margin: float = 1.0
    tau: float = 2.0

    def of(self, t: Tensor) -> Tensor:
        m, tau = self.margin, self.tau
        return torch.maximum(m - tau * (m + t), torch.maximum(tau * (t - m), m - t))

    def slope(self, t: Tensor) -> Tensor:
        m, tau = self.margin, self.tau
        left, right, middle = m - tau * (m + t), tau * (t - m), m - t
        steep = tau * torch.where(left >= right, -1.0, 1.0).to(t)
        return torch.where(torch.maximum(left, right) > middle, steep, -1.0)


@dataclass(frozen=True)
class QNormHinge(ScoreLoss):
    """max(m - t, 0)^q, q > 1."""

    margin: float = 1.0
    q: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.q, float | int) and self.q <= 1:
            raise FedsaddleError(f"QNormHinge: q must be > 1, got {self.q}")

    def of(self, t: Tensor) -> Tensor:
        return (self.margin - t).clamp(min=0) ** self.q

    def slope(self, t: Tensor) -> Tensor:
        return -self.q * (self.margin - t).clamp(min=0) ** (self.q - 1)


@dataclass(frozen=True)
class ContrastiveLoss(PairLoss):
    """Hadsell et al. 2006, CyCp eq. (14): samples of one class are drawn together, others kept a margin apart.

    The last of the k numbers of a and b is the class; the others are the embedding.
    """

    margin: float = 1.0

    def _apart(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        difference, alike = (a - b)[..., :-1], (a[..., -1:] == b[..., -1:])
        return difference, difference.norm(dim=-1, keepdim=True), alike

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        _, d, alike = self._apart(a, b)
        return torch.where(alike, d, (self.margin - d).clamp(min=0)).squeeze(-1) ** 2 / 2

    def d1(self, a: Tensor, b: Tensor) -> Tensor:
        difference, d, alike = self._apart(a, b)
        outwards = difference / torch.where(d > 0, d, 1.0)
        slope = torch.where(alike, difference, -(self.margin - d).clamp(min=0) * outwards)
        return functional.pad(slope, (0, 1))  # a class has no derivative

    def d2(self, a: Tensor, b: Tensor) -> Tensor:
        return -self.d1(a, b)


SCORE_LOSSES: dict[str, type[ScoreLoss]] = {
    "square": Square,
    "squared_hinge": SquaredHinge,
    "logistic": Logistic,
    "sigmoid": Sigmoid,
    "barrier_hinge": BarrierHinge,
    "q_norm_hinge": QNormHinge,
}
