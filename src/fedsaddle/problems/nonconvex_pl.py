"""A synthetic nonconvex - strongly concave problem whose primal function is known (FedSGDA, section 6.1).

    F_i(x, y; (a, b, c)) = sum_l (1 - exp(-(x_l - a_l)^2 / (2 nu))) + (x - a)'b b'(y - c) - (mu/2) ||y - c||^2

With <.> the mean over clients and their samples, B = <b b'>, r = <b b'a>, s = <b b'c>, c_bar = <c>:

    y*(x)       = c_bar + (B x - r) / mu
    Phi(x)      = <sum_l (1 - exp(...))> + (mu/2) ||y*||^2 - s'x + <a'b b'c> - (mu/2) <||c||^2>
    grad Phi(x) = <(x - a)/nu exp(-(x - a)^2 / (2 nu))> + B y*(x) - s
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.metrics import Evaluation, Split
from fedsaddle.problem import Batch, Data, Problem


class Moments(NamedTuple):
    """Means over all clients and samples, float64."""

    B: Tensor  # <b b'> [p, p]
    r: Tensor  # <b b'a> [p]
    s: Tensor  # <b b'c> [p]
    c: Tensor  # <c> [p]
    t: Tensor  # <a'b b'c>
    q: Tensor  # <||c||^2>


_MOMENTS: WeakKeyDictionary[Split, Moments] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class NonconvexPL(Problem):
    """The synthetic problem; a sample is a triple (a, b, c), each [dim].

    Args:
        dim: p, the dimension of x and of y.
        nu: width of the nonconvex wells, > 0.
        mu: strong concavity in y, > 0.

    Example:
        >>> import fedsaddle as fs
        >>> clients = fs.nonconvex_pl_federation(clients=20, samples=10, dim=4)
        >>> algorithm = fs.FedSGDA(lr=0.02, lr_dual=0.05, local_steps=5, estimator="mb")
        >>> run = fs.train(fs.NonconvexPL(4), algorithm, clients, rounds=200, batch_size=5, dtype="float64")
        >>> run.metrics["grad_phi"] < 0.01
        True
    """

    fields = ("a", "b", "c")
    dim: int = 100
    nu: float = 1.0
    mu: float = 1.0

    def __post_init__(self) -> None:
        for name in ("dim", "nu", "mu"):
            if not getattr(self, name) > 0:
                raise FedsaddleError(f"NonconvexPL: {name} must be > 0, got {getattr(self, name)}")

    @property
    def n_x(self) -> int:
        return self.dim

    @property
    def n_y(self) -> int:
        return self.dim

    def init(self) -> Tensor:
        return torch.zeros(2 * self.dim)

    def losses(self, z: Tensor, data: Data) -> Tensor:
        a, b, c = (data[k] for k in self.fields)
        to_a = z[..., None, : self.dim] - a  # [..., S, B, p]
        to_c = z[..., None, self.dim :] - c
        wells = (1 - torch.exp(-(to_a**2) / (2 * self.nu))).sum(-1)
        coupling = (to_a * b).sum(-1) * (to_c * b).sum(-1)
        return wells + coupling - self.mu / 2 * (to_c**2).sum(-1)

    def field(self, z: Tensor, batch: Batch) -> Tensor:
        """As `Problem.field`, with the derivatives written out."""
        a, b, c = (batch.data[k] for k in self.fields)
        to_a = z[..., None, : self.dim] - a
        to_c = z[..., None, self.dim :] - c
        w = batch.w.unsqueeze(-1)
        slope = to_a / self.nu * torch.exp(-(to_a**2) / (2 * self.nu))
        d_x = slope + (to_c * b).sum(-1, keepdim=True) * b
        d_y = (to_a * b).sum(-1, keepdim=True) * b - self.mu * to_c
        return torch.cat([(w * d_x).sum(-2), -(w * d_y).sum(-2)], dim=-1)

    # ---- closed forms ------------------------------------------------------------------------------------

    def moments(self, split: Split) -> Moments:
        """What y* and Phi depend on beside the wells; computed once a split."""
        if split in _MOMENTS:
            return _MOMENTS[split]
        parts = []
        for batch in split.pieces():
            a, b, c = (batch.data[k][0].double() for k in self.fields)
            w = batch.w[0].double().unsqueeze(-1)  # [n, 1]
            ab, bc = ((v * b).sum(-1, keepdim=True) for v in (a, c))
            sums = ((w * b * ab), (w * b * bc), (w * c))
            r, s, c_bar = (v.sum(0) for v in sums)
            parts.append(Moments((w * b).mT @ b, r, s, c_bar, (w * ab * bc).sum(), (w * c**2).sum()))
        _MOMENTS[split] = Moments(*(torch.stack(v).sum(0) for v in zip(*parts, strict=True)))
        return _MOMENTS[split]

    def best_dual(self, x: Tensor, m: Moments) -> Tensor:
        """y*(x) for x [..., p]."""
        return m.c + (x @ m.B - m.r) / self.mu

    def primal(self, x: Tensor, split: Split, m: Moments) -> tuple[Tensor, Tensor]:
        """Phi(x) and grad Phi(x) for x [p], float64."""
        wells, slope = x.new_zeros(()), torch.zeros_like(x)
        for batch in split.pieces():
            to_a, w = x - batch.data["a"][0].double(), batch.w[0].double().unsqueeze(-1)
            bell = torch.exp(-(to_a**2) / (2 * self.nu))
            wells = wells + (w * (1 - bell)).sum()
            slope = slope + (w * to_a / self.nu * bell).sum(0)
        y = self.best_dual(x, m)
        phi = wells + self.mu / 2 * (y @ y) - m.s @ x + m.t - self.mu / 2 * m.q
        return phi, slope + m.B @ y - m.s

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        train = splits["train"]
        m, out = self.moments(train), []
        for x, y in (one.double().split(self.dim) for one in z[:, 0]):
            phi, gradient = self.primal(x, train, m)
            norm, gap = gradient.norm().item(), (y - self.best_dual(x, m)).norm().item()
            out.append(Evaluation({"phi": phi.item(), "grad_phi": norm, "dual_distance": gap}))
        return out

    def check(self, federation: Federation) -> None:
        super().check(federation)
        have = federation.data["a"].shape[-1]
        if have != self.dim:
            raise FedsaddleError(f"NonconvexPL: dim must match the data's {have}, got {self.dim}")


def nonconvex_pl_federation(
    clients: int = 500,
    samples: int = 100,
    dim: int = 100,
    client_variance: float = 0.5,
    sample_variance: float = 0.1,
    seed: int = 0,
) -> Federation:
    """Clients' data of a NonconvexPL: w_i ~ N(0, client_variance), triples (a, b, c) ~ N(w_i, sample_variance) (E1.7).

    Args:
        clients: N.
        samples: triples a client.
        dim: p.
        client_variance, sample_variance: of every coordinate, between clients and within one.
        seed: every number is a function of it.
    """
    for name, value in (("clients", clients), ("samples", samples), ("dim", dim)):
        if value < 1:
            raise FedsaddleError(f"nonconvex_pl_federation: {name} must be >= 1, got {value}")
    rng = np.random.default_rng([5, seed])
    means = np.sqrt(client_variance) * rng.standard_normal((clients, 1, 3 * dim), dtype=np.float32)
    triples = means + np.sqrt(sample_variance) * rng.standard_normal(
        (clients, samples, 3 * dim), dtype=np.float32
    )
    parts = torch.from_numpy(triples.astype(np.float32)).flatten(0, 1).split(dim, dim=-1)
    return Federation(
        data={k: v.contiguous() for k, v in zip(NonconvexPL.fields, parts, strict=True)},
        offsets=torch.arange(clients + 1) * samples,
        names=tuple(f"client {i}" for i in range(clients)),
    )
