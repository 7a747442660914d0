"""Fair and robust baselines: DRFA, q-FedAvg and Delta-FL.

DRFA: Deng, Kamani, Mahdavi 2020. q-FedAvg: Li, Sanjabi, Beirami, Smith 2020. Delta-FL: Pillutla et al. 2021.

    paper                     | here
    --------------------------+--------------------------------------------------------
    lambda, gamma (DRFA)      | lam, dual_lr
    tau, t' (DRFA)            | local_steps, snapshot: the model after step t' in 1..tau
    q, L = 1/eta (q-FedAvg)   | q, 1/lr
    theta (Delta-FL)          | tail: which share of the clients, by samples, is trained on at least

Deviations: DRFA is the paper's version: participants drawn from lambda with replacement, one t' a round, plain simplex
projection, or the prox of an ambiguity set with sigma = tau gamma (DRFA-Prox); the last iterate is reported. Public code
differs in each of these. q-FedAvg's norm is over the whole vector. Delta-FL's quantile is the smallest loss at which the
samples of the clients with no larger loss reach the share 1 - tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle import ambiguity as sets
from fedsaddle.algorithms.base import Citation
from fedsaddle.algorithms.fedavg import FedAvg
from fedsaddle.algorithms.fedavg import State as Iterate
from fedsaddle.algorithms.scaffpd import Robust, State
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.messages import Control
from fedsaddle.participation import Draw
from fedsaddle.problem import Batch


class SnapshotDown(NamedTuple):
    z: Tensor
    at: Any  # t', control


class WithSnapshot(NamedTuple):
    z: Tensor
    snapshot: Tensor


class Drawn(NamedTuple):
    """[1, 1] each."""

    largest_drawn_loss: Tensor  # on a minibatch, of the clients whose loss was asked for
    largest_weight: Tensor


@dataclass(frozen=True)
class DRFA(Robust):
    """DRFA: participants drawn by their weights, which follow the losses at a random iterate of the local steps.

    Args:
        ambiguity: of the weights; "afl" is the paper's projection on the simplex, "chi2(0.1)" its regularised form.
        lr: local step size.
        local_steps: tau.
        dual_lr: gamma, step of the weights.
    """

    stacks: ClassVar[bool] = False  # who takes part depends on the weights

    ambiguity: Any = "afl"
    lr: float = 0.01
    local_steps: int = 10
    dual_lr: float = 0.01

    cites = Citation(
        "deng2020distributionally",
        "Deng, Yuyang and Kamani, Mohammad Mahdi and Mahdavi, Mehrdad",
        "Distributionally Robust Federated Averaging",
        "NeurIPS",
        2020,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "local_steps")
        self._require_nonnegative("dual_lr")

    def round(self, s: State, clients: Clients) -> State:
        psi, N, M = sets.named(self.ambiguity), clients.n_clients, clients.round_size()
        lam = self._weights(s, clients)
        p = lam[0].double().cpu().numpy().clip(min=0)
        if not np.isfinite(p).all():
            raise Diverged(
                f"DRFA: diverged, the weights are not finite; lower the step size (lr is {self.lr})"
            )
        at = Control.of(float(clients.integer(self.local_steps)) + 1, s.z)
        mean, _ = clients.mean(
            self.local_steps_with_snapshot, SnapshotDown(s.z, at), who=clients.sample(M, p / p.sum())
        )
        who, losses = clients.gather(self.loss_at_snapshot, (mean.snapshot,), who=clients.sample(M))
        v = torch.zeros_like(lam).scatter(-1, who.to(lam.device).unsqueeze(0), losses[0].mT.to(lam))
        v = v * (N / len(who))  # of those who answered, M where no site fails
        sigma = self.local_steps * self.dual_lr
        lam = psi.prox(lam, v, sigma) if self.dual_lr else lam
        monitors = Drawn(losses[0].max().reshape(1, 1), lam.amax(-1, keepdim=True))
        return State(clients.problem.prox(mean.z, 0.0), lam, None, s.round + 1, monitors)

    def local_steps_with_snapshot(self, cohort: Cohort, m: SnapshotDown) -> tuple[WithSnapshot, None]:
        def step(carry: tuple[Tensor, Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            u, snapshot, t = carry
            u = cohort.prox(u - self.lr * cohort.field(u, batch), self.lr)
            return u, torch.where(t + 1 == m.at, u, snapshot), t + 1

        zero = torch.zeros_like(m.z[..., :1])
        u, snapshot, _ = cohort.scan(step, (m.z, m.z, zero), self.local_steps)
        return WithSnapshot(u, snapshot), None

    def loss_at_snapshot(self, cohort: Cohort, m: tuple[Tensor]) -> tuple[tuple[Tensor], None]:
        return (cohort.minibatch_loss(m[0]),), None


class Fair(NamedTuple):
    delta: Tensor  # F^q (x - x_i) / lr
    h: Tensor  # [S, 1]


@dataclass(frozen=True)
class QFedAvg(FedAvg):
    """q-FedAvg: minimises the mean of f_i^(q+1) / (q+1), so that clients with large losses weigh more.

    Args:
        lr: local step size; 1/lr stands for the Lipschitz constant.
        local_steps: of each client; 1 is q-FedSGD.
        q: how fair; 0 is FedAvg.
    """

    q: float = 1.0

    cites = Citation(
        "li2020fair",
        "Li, Tian and Sanjabi, Maziar and Beirami, Ahmad and Smith, Virginia",
        "Fair Resource Allocation in Federated Learning",
        "ICLR",
        2020,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_nonnegative("q")
        if self.server_lr != 1 or self.weights != "clients":
            raise FedsaddleError(
                "QFedAvg: has its own server step and weights; leave out server_lr and weights"
            )

    def round(self, s: Iterate, clients: Clients) -> Iterate:
        mean, _ = clients.mean(self.fair_steps, s)
        return Iterate(clients.problem.prox(s.z - mean.delta / mean.h, lr=0.0))

    def fair_steps(self, cohort: Cohort, s: Iterate) -> tuple[Fair, None]:
        F = cohort.full_loss(cohort.each(s.z)) + 1e-10
        u = self.local_descent_ascent(cohort, s)[0].z
        delta, q = (s.z - u) / self.lr, self.q
        h = q * F ** (q - 1) * (delta**2).sum(-1, keepdim=True) + F**q / self.lr
        return Fair(F**q * delta, h), None


@dataclass(frozen=True)
class DeltaFL(FedAvg):
    """Delta-FL: only clients in the tail of the losses train in a round, for the superquantile of the losses.

    Args:
        lr, local_steps: of the clients that train.
        tail: theta in (0, 1], the least share of the participants' samples that the tail has: clients are in it whole, so it
            may have more; 1 is FedAvg by samples.
    """

    stacks: ClassVar[bool] = False  # who trains depends on the losses

    tail: float = 0.5

    cites = Citation(
        "pillutla2021federated",
        "Pillutla, Krishna and Laguel, Yassine and Malick, J{\\'e}r{\\^o}me and Harchaoui, Zaid",
        "Federated Learning with Superquantile Aggregation for Heterogeneous Data",
        "Machine Learning",
        2021,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tail <= 1:
            raise FedsaddleError(f"DeltaFL: tail must be above 0 and at most 1, got {self.tail}")
        if self.weights != "clients":
            raise FedsaddleError(
                f"DeltaFL: clients always count by their samples, got weights = {self.weights!r}; leave out weights"
            )

    @property
    def counting(self) -> str:
        return "samples"

    def round(self, s: Iterate, clients: Clients) -> Iterate:
        who, losses = clients.gather(self.full_losses, s)
        ids, L = who.cpu().numpy(), losses[0].squeeze(-1).double().cpu().numpy()
        threshold = quantile(L, clients.sizes.numpy()[ids], 1 - self.tail)
        worst = ids[threshold <= L]
        one = np.ones(len(worst), dtype=np.int64)
        mean, _ = clients.mean(
            self.local_descent_ascent, s, who=Draw(worst, one, one.astype(bool)), weights="samples"
        )
        z = s.z + self.server_lr * (mean.z - s.z)
        return Iterate(clients.problem.prox(z, lr=0.0))

    def full_losses(self, cohort: Cohort, s: Iterate) -> tuple[tuple[Tensor], None]:
        return (cohort.full_loss(cohort.each(s.z)),), None


def quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """The smallest value at which the weight of values no larger reaches `level` of all weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) >= level * weights.sum() * (1 - 1e-12)
    return float(values[order][np.argmax(reached)])
