"""A heterogeneous quadratic saddle with a known saddle point, for tests, teaching and exact comparisons.

    f_i(x, y; sample) = x'A x / 2 + x'B y - y'C y / 2 + a'x - b'y,    A, C positive definite, B any matrix

A sample is one tuple (A, B, C, a, b); a client holds one or more. The saddle of (1/N) sum_i f_i solves a linear system.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.metrics import Evaluation, Split, objective
from fedsaddle.problem import Data, Problem


@dataclass(frozen=True, eq=False)
class QuadraticSaddle(Problem):
    """Strongly convex - strongly concave quadratic; data from `quadratic_federation`.

    Args:
        dim_x, dim_y: dimensions of x and y.

    Example:
        >>> import fedsaddle as fs
        >>> clients = fs.quadratic_federation(clients=4, dim_x=5, dim_y=3)
        >>> fs.QuadraticSaddle(5, 3).saddle(clients).shape
        torch.Size([1, 8])
    """

    fields = ("A", "B", "C", "a", "b")
    of_dual = ("distance", "field_norm")
    dim_x: int = 10
    dim_y: int = 5

    @property
    def n_x(self) -> int:
        return self.dim_x

    @property
    def n_y(self) -> int:
        return self.dim_y

    def init(self) -> Tensor:
        return torch.zeros(self.n_x + self.n_y, dtype=torch.float64)

    def losses(self, z: Tensor, data: Data) -> Tensor:
        x, y = z[..., None, : self.n_x], z[..., None, self.n_x :]  # [..., S, 1, n]

        def form(u: Tensor, M: Tensor, v: Tensor) -> Tensor:
            return torch.einsum("...i,...ij,...j->...", u, M, v)

        quadratic = form(x, data["A"], x) / 2 + form(x, data["B"], y) - form(y, data["C"], y) / 2
        return quadratic + (data["a"] * x).sum(-1) - (data["b"] * y).sum(-1)

    def saddle(self, federation: Federation) -> Tensor:
        """The saddle point of the client-equal mean objective: [1, d], float64."""
        n = federation.n_clients
        owner = torch.repeat_interleave(torch.arange(n), federation.sizes)
        weight = 1.0 / (n * federation.sizes.double()[owner])
        A, B, C, a, b = (
            torch.einsum("n,n...->...", weight, federation.data[k].double()) for k in self.fields
        )
        # grad_x = A x + B y + a = 0,  grad_y = B'x - C y - b = 0
        K = torch.cat([torch.cat([A, B], 1), torch.cat([B.T, -C], 1)])
        z: Tensor = torch.linalg.solve(K, torch.cat([-a, b]))
        return z.unsqueeze(0)

    @property
    def broadcasts(self) -> bool:
        return True

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        _, F = objective(self, z, splits["train"])
        distances = (z.double().cpu() - self.saddle(federation)).norm(dim=(-2, -1)).tolist()
        norms = F.norm(dim=(-2, -1)).tolist()
        return [Evaluation({"distance": a, "field_norm": b}) for a, b in zip(distances, norms, strict=True)]

    def check(self, federation: Federation) -> None:
        super().check(federation)
        have = (federation.data["a"].shape[-1], federation.data["b"].shape[-1])
        if have != (self.dim_x, self.dim_y):
            raise FedsaddleError(
                f"QuadraticSaddle: dimensions (dim_x, dim_y) must match the data's {have}, got {(self.dim_x, self.dim_y)}"
            )


def quadratic_federation(
    clients: int = 10,
    dim_x: int = 10,
    dim_y: int = 5,
    samples: int = 1,
    heterogeneity: float = 1.0,
    noise: float = 0.0,
    seed: int = 0,
) -> Federation:
    """Clients' data of a QuadraticSaddle.

    Args:
        clients: N.
        dim_x, dim_y: dimensions of x and y.
        samples: tuples a client.
        heterogeneity: how far the clients' objectives differ; 0 makes them equal.
        noise: spread of the linear terms between a client's own samples.
        seed: every number is a function of it.
    """
    for name, value in (("clients", clients), ("dim_x", dim_x), ("dim_y", dim_y), ("samples", samples)):
        if value < 1:
            raise FedsaddleError(f"quadratic_federation: {name} must be >= 1, got {value}")
    rng = np.random.default_rng([3, seed])

    def definite(n: int, spread: float, base: np.ndarray) -> np.ndarray:
        m = base + spread * rng.standard_normal((n, n))
        return np.asarray(m @ m.T / n + 0.5 * np.eye(n))

    base_A, base_C = rng.standard_normal((dim_x, dim_x)), rng.standard_normal((dim_y, dim_y))
    base_B = rng.standard_normal((dim_x, dim_y)) / np.sqrt(dim_x)
    a_0, b_0 = rng.standard_normal(dim_x), rng.standard_normal(dim_y)
    fields: dict[str, list[np.ndarray]] = {k: [] for k in QuadraticSaddle.fields}
    for _ in range(clients):
        A, C = definite(dim_x, 0.5 * heterogeneity, base_A), definite(dim_y, 0.5 * heterogeneity, base_C)
        B = base_B + 0.5 * heterogeneity * rng.standard_normal((dim_x, dim_y)) / np.sqrt(dim_x)
        a = a_0 + heterogeneity * rng.standard_normal(dim_x)
        b = b_0 + heterogeneity * rng.standard_normal(dim_y)
        for _ in range(samples):
            sample = (A, B, C, a + noise * rng.standard_normal(dim_x), b + noise * rng.standard_normal(dim_y))
            for name, value in zip(fields, sample, strict=True):
                fields[name].append(value)
    return Federation(
        data={k: torch.from_numpy(np.stack(v)) for k, v in fields.items()},
        offsets=torch.arange(clients + 1) * samples,
        names=tuple(f"client {i}" for i in range(clients)),
    )
