"""FedSGDA: cross-device min-max learning with a shared gradient estimate (Xie et al. 2021): MB, STORM and SPIDER.

    paper                      | here
    ---------------------------+-----------------------------------------------------------
    (x, y), (xbar_r, ybar_r)   | z, with the field F = (grad_x f, -grad_y f)
    (u_r, v_r)                 | e = (u, -v): the server's estimate of the mean field
    S'_r, S_r                  | two draws of the run's scheme, one a phase
    eta_r, gamma_r             | lr / (r+1)^decay, lr_dual / (r+1)^decay
    alpha_r = beta_r           | min(1, momentum / (r+1)^(2 decay))
    I                          | local_steps
    m, |S| of a large round    | period, large_cohort

A round has two phases (Frameworks 1-3). In the first some clients send their full-batch fields, from which the server
updates its estimate e of the mean field. In the second other clients take local steps that start along e and are corrected
by what their own field has changed since. Clients remember nothing.

Deviations: u and v are both averaged over S' (E1.1); rounds count from 0 (E1.2), those in which nobody answers not at all;
SPIDER asks a large cohort in the first phase alone, of all N clients, also of those that the scheme (groups, a trace) would
not ask then. SVRG and the averaged gradient are only named in the paper's Remark 1;
their forms here are the usual ones, of clients in place of samples. The point that an estimator does not need in a round
(the first one, a fresh start) is not sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Citation
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Control
from fedsaddle.problem import Batch, Problem

# ---- estimators of the mean field --------------------------------------------------------------------------------


class Estimate(NamedTuple):
    e: Tensor  # of the mean field, (u, -v) [1, d]
    point: Tensor  # where clients evaluate their fields once more, z_{r-1} or SVRG's anchor [1, d]
    anchor: Tensor  # SVRG: the estimate at `point` [1, d]


class Estimator(ABC):
    """How the server's estimate of the mean field follows from the fields of a few clients.

    A new one writes `update`, and says whether it needs the fields at a second point and whether it starts afresh now and
    then. It is an argument of FedSGDA, which has the hyper-parameters.
    """

    two_points: ClassVar[bool] = False  # whether clients also evaluate at Estimate.point
    periodic: ClassVar[bool] = False  # whether it starts afresh every `period` rounds, from a large cohort
    decay: ClassVar[float] = 0.0  # the exponent of the step sizes that the theory gives it

    @abstractmethod
    def update(self, old: Estimate, z: Tensor, F: Tensor, F_point: Tensor | None, alpha: Any) -> Estimate:
        """The estimate at z, from mean fields F at z and F_point at old.point; F_point is None on a fresh start."""


class MB(Estimator):
    """The minibatch estimate: e_r = F(z_r)."""

    def update(self, old: Estimate, z: Tensor, F: Tensor, F_point: Tensor | None, alpha: Any) -> Estimate:
        return Estimate(F, z, F)


class STORM(Estimator):
    """Momentum with a correction: e_r = (1 - alpha_r) (e_{r-1} - F(z_{r-1})) + F(z_r)."""

    two_points = True
    decay = 1 / 3

    def update(self, old: Estimate, z: Tensor, F: Tensor, F_point: Tensor | None, alpha: Any) -> Estimate:
        e = F if F_point is None else (1 - alpha) * (old.e - F_point) + F
        return Estimate(e, z, e)


class SPIDER(Estimator):
    """Differences along the path: e_r = e_{r-1} + F(z_r) - F(z_{r-1}), afresh from a large cohort now and then."""

    two_points = periodic = True

    def update(self, old: Estimate, z: Tensor, F: Tensor, F_point: Tensor | None, alpha: Any) -> Estimate:
        e = F if F_point is None else old.e + (F - F_point)
        return Estimate(e, z, e)


class SVRG(Estimator):
    """Differences to an anchor: e_r = F(z_r) - F(anchor) + e(anchor), with a new anchor now and then."""

    two_points = periodic = True

    def update(self, old: Estimate, z: Tensor, F: Tensor, F_point: Tensor | None, alpha: Any) -> Estimate:
        if F_point is None:
            return Estimate(F, z, F)
        return Estimate(F - F_point + old.anchor, old.point, old.anchor)


class Averaged(Estimator):
    """The averaged gradient: e_r = (1 - alpha_r) e_{r-1} + alpha_r F(z_r), starting at F(z_0)."""

    decay = 1 / 3

    def update(self, old: Estimate, z: Tensor, F: Tensor, F_point: Tensor | None, alpha: Any) -> Estimate:
        e = (1 - alpha) * old.e + alpha * F
        return Estimate(e, z, e)


ESTIMATORS: dict[str, Estimator] = {
    "mb": MB(),
    "storm": STORM(),
    "spider": SPIDER(),
    "svrg": SVRG(),
    "averaged": Averaged(),
}


# ---- the algorithm -----------------------------------------------------------------------------------------------


class State(NamedTuple):
    z: Tensor  # server iterate [1, d]
    estimate: Estimate
    round: int


class Points(NamedTuple):
    z: Tensor
    point: Tensor | None  # None where the estimator does not need it


class Down(NamedTuple):
    z: Tensor
    e: Tensor
    lr: Control  # eta_r and gamma_r
    lr_dual: Control


@dataclass(frozen=True)
class FedSGDA(Algorithm):
    """FedSGDA: local descent ascent along a shared estimate of the mean gradient, for clients without memory.

    Args:
        lr: c_eta; the step size of x in round r = 0, 1, ... is lr / (r+1)^decay.
        lr_dual: c_gamma, of y likewise; None: the same as lr.
        local_steps: steps between two communications, > 0.
        estimator: "mb", "storm", "spider", "svrg", "averaged", or an Estimator.
        decay: exponent of the step sizes, >= 0; None: the estimator's own (1/3 for storm and averaged, else 0).
        momentum: c_alpha >= 0; storm and averaged use alpha_r = min(1, momentum / (r+1)^(2 decay)).
        period: spider and svrg start afresh every so many rounds; None: in the first round only.
        large_cohort: how many are asked then, of all clients, whomever the scheme has in turn; None: the square of a round's
            participants, at most all.

    Example:
        >>> import fedsaddle as fs
        >>> clients = fs.quadratic_federation(clients=4, dim_x=5, dim_y=3)
        >>> fedsgda = fs.FedSGDA(lr=0.05, local_steps=10, estimator="mb")
        >>> run = fs.train(fs.QuadraticSaddle(5, 3), fedsgda, clients, rounds=200, dtype="float64")
        >>> run.metrics["distance"] < 1e-6
        True
    """

    lr: float = 0.01
    lr_dual: float | None = None
    local_steps: int = 10
    estimator: str | Estimator = "storm"
    decay: float | None = None
    momentum: float = 1.0
    period: int | None = 10
    large_cohort: int | None = None

    cites = Citation(
        "xie2021federated",
        "Xie, Jiahao and Zhang, Chao and Zhang, Yunsong and Shen, Zebang and Qian, Hui",
        "A Federated Learning Framework for Nonconvex-PL Minimax Problems",
        "arXiv:2105.14216",
        2021,
    )

    def __post_init__(self) -> None:
        self._require_positive("lr", "local_steps", "lr_dual", "period", "large_cohort")
        self._require_nonnegative("momentum", "decay")
        if not isinstance(self.estimator, Estimator) and self.estimator not in ESTIMATORS:
            raise FedsaddleError(
                f"FedSGDA: estimator must be one of {', '.join(ESTIMATORS)} (or an Estimator), got {self.estimator!r}"
            )

    @property
    def of_all(self) -> bool:  # type: ignore[override]
        """A fresh start asks clients of all, and the differences that follow vanish where the iterate stands still."""
        return self._estimator.periodic

    # ---- schedules ---------------------------------------------------------------------------------------

    @property
    def _estimator(self) -> Estimator:
        return self.estimator if isinstance(self.estimator, Estimator) else ESTIMATORS[self.estimator]

    def _power(self) -> Any:
        return self._estimator.decay if self.decay is None else self.decay

    def lr_at(self, r: int) -> tuple[Any, Any]:
        """eta_r and gamma_r."""
        slower = (r + 1) ** self._power()
        return self.lr / slower, (self.lr if self.lr_dual is None else self.lr_dual) / slower

    def alpha_at(self, r: int) -> Any:
        """alpha_r = beta_r."""
        alpha = self.momentum / (r + 1) ** (2 * self._power())
        return alpha.clamp(max=1.0) if isinstance(alpha, Tensor) else min(1.0, alpha)

    def fresh(self, r: int) -> bool:
        """Whether round r starts the estimate afresh."""
        again = self._estimator.periodic and self.period is not None and r % self.period == 0
        return r == 0 or again

    # ---- a round -----------------------------------------------------------------------------------------

    def init(self, z: Tensor, problem: Problem) -> State:
        zero = torch.zeros_like(z)
        return State(z, Estimate(zero, z, zero), 0)

    def round(self, s: State, clients: Clients) -> State:
        r, estimator = s.round, self._estimator
        fresh = self.fresh(r)
        # Framework 1, lines 3-5: S'_r
        who = clients.sample(self._large(clients)) if fresh and estimator.periodic else clients.sample()
        point = None if fresh or not estimator.two_points else s.estimate.point
        F, _ = clients.mean(self.full_fields, Points(s.z, point), who=who)
        alpha = 1.0 if fresh else self.alpha_at(r)
        estimate = estimator.update(s.estimate, s.z, F.z, F.point, alpha)
        # lines 7-9: S_r
        lr, lr_dual = (Control.of(v, s.z) for v in self.lr_at(r))
        z, _ = clients.mean(self.corrected_steps, Down(s.z, estimate.e, lr, lr_dual))
        return State(z, estimate, r + 1)

    def _large(self, clients: Clients) -> int:
        asked = self.large_cohort if self.large_cohort is not None else clients.round_size() ** 2
        return min(asked, clients.n_clients)

    def full_fields(self, cohort: Cohort, m: Points) -> tuple[Points, None]:
        """Framework 2: the fields over all local samples, at one point or two."""
        at_point = None if m.point is None else cohort.full_field(m.point)
        return Points(cohort.full_field(m.z), at_point), None

    def corrected_steps(self, cohort: Cohort, m: Any) -> tuple[Tensor, None]:
        """Framework 3: local steps along e, corrected by what the client's own field has changed since."""
        lr = cohort.per_variable(x=m.lr, y=m.lr_dual)

        def step(z: Tensor, batch: Batch) -> Tensor:
            d = cohort.field(z, batch) - cohort.field(m.z, batch) + m.e  # the same minibatch at both points
            return cohort.prox(z - lr * d, lr)

        return cohort.scan(step, m.z, self.local_steps), None
