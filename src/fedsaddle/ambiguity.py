"""Ambiguity sets of distributionally robust learning: which weights the clients may be given.

    min_x max_{lambda in Lambda}  sum_i lambda_i f_i(x) - psi(lambda)

    name        psi(lambda)                            Lambda
    chi2(rho)   rho/(2N) sum (N lambda_i - 1)^2        simplex; modulus rho N
    afl         0                                      simplex: the worst client
    cvar(a)     0                                      simplex with lambda_i <= 1/(a N): the mean of the worst share a
    q_ffl(q)    q/(q+1) N^(1/q) sum lambda_i^(1+1/q)   lambda >= 0; its maximum is sum L_i^(q+1) / (N (q+1))
    average     0                                      {1/N}

Weights and losses are [..., N]. q_ffl's psi is the separable sum with these factors (E5.5: the printed norm is not q-FFL).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.parse import called
from fedsaddle.projections import capped_simplex, simplex


class Ambiguity(ABC):
    """A set of weights and its penalty. One's own needs psi, best and prox."""

    @abstractmethod
    def psi(self, lam: Tensor) -> Tensor:
        """The penalty [..., 1]."""

    @abstractmethod
    def best(self, losses: Tensor) -> Tensor:
        """argmax over Lambda of <lambda, losses> - psi(lambda)."""

    @abstractmethod
    def prox(self, lam: Tensor, s: Tensor, sigma: float | Tensor) -> Tensor:
        """argmin over Lambda of psi(u) - <s, u> + ||u - lam||^2 / (2 sigma)."""

    def value(self, losses: Tensor) -> Tensor:
        """max over Lambda of <lambda, losses> - psi(lambda): the robust objective [..., 1]."""
        lam = self.best(losses)
        return (lam * losses).sum(-1, keepdim=True) - self.psi(lam)

    def start(self, n: int, like: Tensor) -> Tensor:
        """Equal weights [n]."""
        return like.new_full((n,), 1.0 / n)


@dataclass(frozen=True)
class Chi2(Ambiguity):
    """A penalty on how far weights are from equal; small rho is close to the worst client, large rho to the average."""

    rho: float = 0.1

    def __post_init__(self) -> None:
        _positive("chi2", "rho", self.rho)

    def psi(self, lam: Tensor) -> Tensor:
        n = lam.shape[-1]
        return self.rho / (2 * n) * ((n * lam - 1) ** 2).sum(-1, keepdim=True)

    def best(self, losses: Tensor) -> Tensor:
        return simplex()(losses / (self.rho * losses.shape[-1]), 0.0)

    def prox(self, lam: Tensor, s: Tensor, sigma: float | Tensor) -> Tensor:
        return simplex()((s + lam / sigma) / (self.rho * lam.shape[-1] + 1 / sigma), 0.0)


@dataclass(frozen=True)
class AFL(Ambiguity):
    """Any weights: agnostic federated learning, the loss of the worst client."""

    def psi(self, lam: Tensor) -> Tensor:
        return torch.zeros_like(lam[..., :1])

    def best(self, losses: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(losses.argmax(-1), losses.shape[-1]).to(losses)

    def prox(self, lam: Tensor, s: Tensor, sigma: float | Tensor) -> Tensor:
        return simplex()(lam + sigma * s, 0.0)


@dataclass(frozen=True)
class CVaR(AFL):
    """Weights up to 1/(alpha N): the mean loss of the worst share alpha of the clients."""

    alpha: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise FedsaddleError(f"cvar: alpha must be above 0 and at most 1, got {self.alpha}")

    def _cap(self, n: int) -> float:
        return min(1.0, 1 / (self.alpha * n))

    def best(self, losses: Tensor) -> Tensor:
        n = losses.shape[-1]
        rank = losses.argsort(-1, descending=True).argsort(-1).to(losses)  # 0 for the largest
        return (1 - self._cap(n) * rank).clamp(0.0, self._cap(n))

    def prox(self, lam: Tensor, s: Tensor, sigma: float | Tensor) -> Tensor:
        return capped_simplex(self._cap(lam.shape[-1]))(lam + sigma * s, 0.0)


@dataclass(frozen=True)
class Average(AFL):
    """Equal weights."""

    def best(self, losses: Tensor) -> Tensor:
        return torch.full_like(losses, 1 / losses.shape[-1])

    def prox(self, lam: Tensor, s: Tensor, sigma: float | Tensor) -> Tensor:
        return self.best(s)


@dataclass(frozen=True)
class QFFL(Ambiguity):
    """q-fair federated learning: the mean of L^(q+1) / (q+1); its weights need not sum to one."""

    q: float = 1.0

    def __post_init__(self) -> None:
        if self.q == 0:
            raise FedsaddleError("q_ffl: q must be > 0; q = 0 is average")
        _positive("q_ffl", "q", self.q)

    def psi(self, lam: Tensor) -> Tensor:
        n, q = lam.shape[-1], self.q
        total: Tensor = (lam.clamp(min=0) ** (1 + 1 / q)).sum(-1, keepdim=True)
        penalty: Tensor = q / (q + 1) * n ** (1 / q) * total
        return penalty

    def best(self, losses: Tensor) -> Tensor:
        return losses.clamp(min=0) ** self.q / losses.shape[-1]

    def prox(self, lam: Tensor, s: Tensor, sigma: float | Tensor) -> Tensor:
        """Each entry the root of (N u)^(1/q) - s + (u - lam)/sigma = 0 on u >= 0, by bisection."""
        n = lam.shape[-1]
        target = (s + lam / sigma).clamp(min=0.0)
        low, high = torch.zeros_like(lam), torch.maximum(sigma * target, torch.zeros_like(lam))
        for _ in range(100):
            u = (low + high) / 2
            above = (n * u) ** (1 / self.q) + u / sigma > target
            low, high = torch.where(above, low, u), torch.where(above, u, high)
        return (low + high) / 2


AMBIGUITIES: dict[str, type[Ambiguity]] = {
    "chi2": Chi2,
    "afl": AFL,
    "cvar": CVaR,
    "q_ffl": QFFL,
    "average": Average,
}


def named(spec: str | Ambiguity) -> Ambiguity:
    """An ambiguity set from its name, with its number if wanted ("chi2(0.1)", "cvar(0.2)", "afl"), or the set itself."""
    if isinstance(spec, Ambiguity):
        return spec
    if not isinstance(spec, str):
        raise FedsaddleError(f"ambiguity: must be text such as chi2(0.1), or an Ambiguity, got {spec!r}")
    return called(spec, AMBIGUITIES, "such as chi2(0.1)", "ambiguity")


def _positive(who: str, name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise FedsaddleError(f"{who}: {name} must be > 0, got {value}")
