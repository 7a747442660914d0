"""Robust linear regression over heterogeneous clients, with its exact optimum (SCAFF-PD, section 6.1).

    f_i(x) = (1/m_i) sum_j (<a_ij, x> - y_ij)^2 + mu/2 ||x||^2      (no 1/2 on the squares)

A sample is (x: a_ij, y: y_ij). The robust objective is P(x) = max over lambda of sum lambda_i f_i(x) - psi(lambda), with the
chi2 penalty; its minimiser, to which `distance` is measured, is found by Newton's method on the clients with weight.
The clients' concept shifts (E5.6): y_ij = <a_ij, x_hat + delta_i>.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsaddle.ambiguity import Chi2
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.metrics import Evaluation, Split
from fedsaddle.problem import Data, Problem


@dataclass(frozen=True, eq=False)
class RobustRegression(Problem):
    """Least squares with a ridge; data from `robust_regression_federation`.

    Args:
        dim: dimension of x.
        mu: ridge, the strong convexity that every client has at least.
        rho: of the chi2 penalty whose optimum `distance` is measured to.

    Example:
        >>> import fedsaddle as fs
        >>> clients = fs.robust_regression_federation(clients=5, dim=10)
        >>> fs.RobustRegression(10, rho=0.1).optimum(clients)[0].shape
        torch.Size([10])
    """

    dim: int = 10
    mu: float = 0.1
    rho: float = 0.1

    def __post_init__(self) -> None:
        if self.dim < 1 or not self.mu > 0 or not self.rho > 0:
            raise FedsaddleError(
                f"RobustRegression: dim must be >= 1, mu and rho > 0, got {self.dim}, {self.mu} and {self.rho}"
            )

    @property
    def n_x(self) -> int:
        return self.dim

    @property
    def n_y(self) -> int:
        return 0

    def init(self) -> Tensor:
        return torch.zeros(self.dim, dtype=torch.float64)

    def losses(self, z: Tensor, data: Data) -> Tensor:
        residual = (data["x"] * z.unsqueeze(-2)).sum(-1) - data["y"]
        return residual**2 + self.mu / 2 * (z**2).sum(-1, keepdim=True)

    @property
    def broadcasts(self) -> bool:
        return True

    def optimum(self, federation: Federation) -> tuple[Tensor, Tensor]:
        """(x*, lambda*) of the robust objective, [d] and [N], float64."""
        H, b, c = self._moments(federation)
        N, x, psi = len(H), torch.zeros(self.dim, dtype=torch.float64), Chi2(self.rho)

        def at(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            losses = (H @ x / 2 - b) @ x + c
            return losses, psi.best(losses), H @ x - b  # f_i, lambda, gradients [N, d]

        for _ in range(200):
            losses, lam, G = at(x)
            gradient, on = lam @ G, lam > 0
            if gradient.norm() < 1e-14 * (1 + b.norm()):
                break
            # on the clients with weight, lambda_i = (f_i - their mean) / (rho N) + 1/their number
            centred = (G[on] - G[on].mean(0)) / (self.rho * N)
            step = torch.linalg.solve(torch.einsum("n,nij->ij", lam, H) + G[on].T @ centred, gradient)
            value, size = psi.value(losses), 1.0
            while size > 1e-10 and psi.value(at(x - size * step)[0]) > value + 1e-15:
                size /= 2
            x = x - size * step
        return x, at(x)[1]

    def _moments(self, federation: Federation) -> tuple[Tensor, Tensor, Tensor]:
        """f_i(x) = x'H_i x / 2 - b_i'x + c_i."""
        H, b, c = [], [], []
        for i in range(federation.n_clients):
            client = federation.client(i)
            A, y = client["x"].double(), client["y"].double()
            H.append(2 / len(y) * A.T @ A + self.mu * torch.eye(self.dim, dtype=torch.float64))
            b.append(2 / len(y) * A.T @ y)
            c.append((y**2).mean())
        return torch.stack(H), torch.stack(b), torch.stack(c)

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        best, _ = self.optimum(federation)
        H, b, c = self._moments(federation)
        out = []
        for one in z.double().cpu().flatten(1):
            losses = (H @ one / 2 - b) @ one + c
            values = {
                "distance": (one - best).norm().item(),
                "robust_loss": Chi2(self.rho).value(losses).item(),
                "largest_loss": losses.max().item(),
                "mean_loss": losses.mean().item(),
            }
            out.append(Evaluation(values, {"loss": losses.tolist()}))
        return out

    def check(self, federation: Federation) -> None:
        super().check(federation)
        have = federation.data["x"].shape[-1]
        if have != self.dim:
            raise FedsaddleError(
                f"RobustRegression: dim must match the data's {have} features, got {self.dim}"
            )


def robust_regression_federation(
    clients: int = 5,
    dim: int = 10,
    samples: int = 100,
    heterogeneity: float = 0.1,
    scale: float = 1.0,
    seed: int = 0,
) -> Federation:
    """Clients' data of a RobustRegression: a ~ N(0, I), y = <a, x_hat + delta_i>, without noise.

    Args:
        clients: N.
        dim: dimension of x.
        samples: of each client.
        heterogeneity: standard deviation of the clients' shifts delta_i.
        scale: standard deviation of the common x_hat.
        seed: every number is a function of it.
    """
    for name, value in (("clients", clients), ("dim", dim), ("samples", samples)):
        if value < 1:
            raise FedsaddleError(f"robust_regression_federation: {name} must be >= 1, got {value}")
    rng = np.random.default_rng([5, seed])
    x_hat = scale * rng.standard_normal(dim)
    a = rng.standard_normal((clients, samples, dim))
    shift = heterogeneity * rng.standard_normal((clients, dim))
    y = np.einsum("nsd,nd->ns", a, x_hat + shift)
    return Federation(
        data={"x": torch.from_numpy(a.reshape(-1, dim)), "y": torch.from_numpy(y.reshape(-1))},
        offsets=torch.arange(clients + 1) * samples,
        names=tuple(f"client {i}" for i in range(clients)),
    )
