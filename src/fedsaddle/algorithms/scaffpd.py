"""SCAFF-PD, AFL and AgnosticFedAvg: distributionally robust learning by primal-dual steps, the weights on the server.

SCAFF-PD: Yu, Karimireddy, Ma, Jordan 2023, Algorithm 1. AFL: Mohri, Sivek, Suresh 2019. AgnosticFedAvg: Ro et al. 2021.

    paper                  | here
    -----------------------+--------------------------------------------------------------
    x, f_i                 | z, the problem's local objective (a min-max problem's field serves too)
    lambda, psi, Lambda    | lam, ambiguity (ambiguity.py); they never travel
    tau_r, sigma_r, theta_r| step of x, step of lambda, extrapolation
    eta_l, J               | lr = tau / (J server_lr), local_steps
    c_i, c                 | c_k: the client's gradient at x^r; c: their mean by the new weights
    Delta_i                | (x^r - u) / (eta_l J), the client's mean direction

    s = (1 + theta) L^r - theta L^{r-1}
    lambda^{r+1} = argmin psi(lambda) - <s, lambda> + ||lambda - lambda^r||^2 / (2 sigma)
    u <- u - eta_l (g_i(u) - c_i + c),   x^{r+1} = x^r - tau sum_i lambda_i^{r+1} Delta_i

Deviations: in the first round L^{r-1} = L^r (E5.1). c is the mean by the new weights (E5.2). The growing schedule also
shrinks tau, as the proof of Lemma B.3 has it (E5.3). eta_l follows from tau (E5.4). AFL's output is the last iterate, not
the running average. AgnosticFedAvg is from what is recalled of it: its paper was not at hand.

Where not all clients take part (the paper has all): a client that does not keeps its last loss, and sums over all clients
are estimated by N/M times those over the M that do, c + (N/M) sum_i lambda_i (Delta_i - c) for the direction of x. There
lambda is lambda^r. lambda^{r+1} follows who takes part: their losses have fallen and are extrapolated, those of absent
clients are still what they were, so participants would weigh too little. By lambda^r, which the draw does not change, the
estimates are unbiased given lambda^r where all are equally likely to take part. But lambda follows stale losses, noise does
not vanish, and the theorems do not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle import ambiguity as sets
from fedsaddle.algorithms.base import Algorithm, Citation
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Control, Once
from fedsaddle.problem import Batch, Problem


class Monitors(NamedTuple):
    """[1, 1] each."""

    robust_loss: Tensor  # max over lambda of <lambda, L> - psi(lambda), at the losses of this round's start
    largest_weight: Tensor


class State(NamedTuple):
    z: Tensor  # [1, d]
    lam: Tensor | None  # the clients' weights [1, N]; equal before the first round
    losses: Tensor | None  # of the round before [1, N]
    round: int
    monitors: tuple[Any, ...] | None  # Monitors, or others


@dataclass(frozen=True)
class Robust(Algorithm):
    """What methods with weights on the server share.

    Args:
        ambiguity: "chi2(0.1)", "afl", "cvar(0.2)", "q_ffl(1)", "average", or one's own set.
    """

    ambiguity: Any = "chi2(0.1)"

    def __post_init__(self) -> None:
        sets.named(self.ambiguity)

    def init(self, z: Tensor, problem: Problem) -> State:
        return State(z, None, None, 0, None)

    def _weights(self, s: State, clients: Clients) -> Tensor:
        """lambda [1, N]: equal before the first round."""
        if s.lam is not None:
            return s.lam
        return sets.named(self.ambiguity).start(clients.n_clients, s.z).expand(*s.z.shape[:-1], -1)

    @staticmethod
    def _heard(s: State, clients: Clients, who: Tensor, L: Tensor) -> Tensor:
        """All clients' losses [1, N]: those that did not answer keep their last one, or the mean if there is none."""
        last = L.mean(-2, keepdim=True).expand(*s.z.shape[:-1], clients.n_clients)
        return (last if s.losses is None else s.losses).scatter(-1, _at(s, who), L.mT.to(s.z))

    @staticmethod
    def _of(lam: Tensor, s: State, who: Tensor) -> Tensor:
        """The weights of the M who answered, such that sums by them estimate those over all N: N/M lambda_i [1, M]."""
        own = lam.gather(-1, _at(s, who))
        tiny = torch.finfo(lam.dtype).tiny  # all of q_ffl's weights may be 0
        return own * (lam.shape[-1] / own.shape[-1]) / lam.sum(-1, keepdim=True).clamp(min=tiny)


def _at(s: State, who: Tensor) -> Tensor:
    """Clients' numbers [S] (replicas: [R, S]) as an index of [1, N]."""
    return who.to(s.z.device).expand(*s.z.shape[:-2], -1).unsqueeze(-2)


class Down(NamedTuple):
    z: Any  # once a round
    c: Tensor | None
    lr: Any = None  # eta_l of the round, control


@dataclass(frozen=True)
class ScaffPD(Robust):
    """SCAFF-PD: drift-corrected local steps for the worst mixture of clients; two phases a round.

    With a part of the clients a round, weights follow the last losses heard of, and steps are noisy estimates by the weights
    of the round before.

    Args:
        tau: step of x on gradients.
        sigma: step of the weights.
        theta: extrapolation of the losses, in [0, 1].
        local_steps: J.
        server_lr: eta_g, at least 1 in the paper; the local step is tau / (J eta_g).
        mu_x: strong convexity for the growing schedule, for ambiguity sets without a strongly convex psi (AFL, CVaR):
            gamma_{r+1} = gamma_r (1 + mu_x tau_r), tau_{r+1} = tau_r sqrt(gamma_r / gamma_{r+1}), sigma_r = gamma_r tau_r,
            theta_r = sigma_{r-1} / sigma_r, with gamma_0 = sigma / tau; theta is not used then. None: constant steps.
        corrected: False leaves the corrections out.
    """

    tau: float = 0.1
    sigma: float = 1.0
    theta: float = 0.9
    local_steps: int = 10
    server_lr: float = 1.0
    mu_x: float | None = None
    corrected: bool = True

    cites = Citation(
        "yu2023scaffpd",
        "Yu, Yaodong and Karimireddy, Sai Praneeth and Ma, Yi and Jordan, Michael I.",
        "Scaff-PD: Communication Efficient Fair and Robust Federated Learning",
        "TMLR",
        2023,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("tau", "sigma", "local_steps", "server_lr", "mu_x")
        self._require_nonnegative("theta")
        if self.theta > 1:
            raise FedsaddleError(f"ScaffPD: theta must be at most 1, got {self.theta}")

    def memory(self, z: Tensor, problem: Problem) -> Tensor:
        return torch.zeros_like(z)  # c_i, from the first phase of a round to its second

    def steps_of(self, r: int) -> tuple[Any, Any, Any]:
        """(tau_r, sigma_r, theta_r)."""
        if self.mu_x is None:
            return self.tau, self.sigma, self.theta
        tau, gamma, before = self.tau, self.sigma / self.tau, None
        for _ in range(r):
            new = gamma * (1 + self.mu_x * tau)
            before, tau, gamma = gamma * tau, tau * (gamma / new) ** 0.5, new
        return tau, gamma * tau, 1.0 if before is None else before / (gamma * tau)

    def round(self, s: State, clients: Clients) -> State:
        tau, sigma, theta = self.steps_of(s.round)
        psi, point = sets.named(self.ambiguity), Once(s.z, version=s.round, name="point")
        who, heard = clients.gather(self.losses_and_gradients, Down(point, None))
        now = self._heard(s, clients, who, heard.loss)
        before = now if s.losses is None else s.losses
        old = self._weights(s, clients)
        lam = psi.prox(old, (1 + theta) * now - theta * before, sigma)
        by = lam if who.shape[-1] == clients.n_clients else old  # the draw has no part in those
        c = self._of(by, s, who) @ heard.gradient
        lr = Control.of(tau / (self.local_steps * self.server_lr), s.z)
        who, (delta,) = clients.gather(self.corrected_steps, Down(point, c, lr))
        direction = c + self._of(by, s, who) @ (delta - c)  # where all take part, sum_i lambda_i Delta_i
        scale = by.sum(-1, keepdim=True)  # 1, but for sets whose weights need not sum to one
        z = clients.problem.prox(s.z - tau * scale * direction, tau)
        return State(z, lam, now, s.round + 1, Monitors(psi.value(now), lam.amax(-1, keepdim=True)))

    def losses_and_gradients(self, cohort: Cohort, m: Down) -> tuple[LossAndGradient, Tensor]:
        z = cohort.each(m.z)
        c_k = cohort.full_field(z)
        return LossAndGradient(cohort.full_loss(z), c_k), c_k

    def corrected_steps(self, cohort: Cohort, m: Down) -> tuple[tuple[Tensor], Tensor]:
        c_k, z = cohort.memory, cohort.each(m.z)

        def step(u: Tensor, batch: Batch) -> Tensor:
            g = cohort.field(u, batch)
            new: Tensor = u - m.lr * (g - c_k + m.c if self.corrected else g)
            return new

        u = cohort.scan(step, z, self.local_steps)
        return ((z - u) / (m.lr * self.local_steps),), c_k


class LossAndGradient(NamedTuple):
    loss: Tensor  # [S, 1]
    gradient: Tensor  # [S, d]


class Local(NamedTuple):
    z: Tensor  # where the local steps ended [S, d]
    loss: Tensor  # f_i at the received point [S, 1]


@dataclass(frozen=True)
class AgnosticFL(Robust):
    """AFL with local steps: the clients' models averaged by weights that follow their losses.

    With a part of the clients a round, weights follow the last losses heard of, and steps are noisy estimates.

    Args:
        lr: local step size.
        local_steps: J; 1 is the original method, one gradient a client and round.
        dual_lr: step of the weights.
    """

    ambiguity: Any = "afl"
    lr: float = 0.01
    local_steps: int = 10
    dual_lr: float = 0.1

    cites = Citation(
        "mohri2019agnostic",
        "Mohri, Mehryar and Sivek, Gary and Suresh, Ananda Theertha",
        "Agnostic Federated Learning",
        "ICML",
        2019,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr", "local_steps")
        self._require_nonnegative("dual_lr")

    def round(self, s: State, clients: Clients) -> State:
        psi, lam = sets.named(self.ambiguity), self._weights(s, clients)
        who, heard = clients.gather(self.local_descent, (s.z,))
        now = self._heard(s, clients, who, heard.loss)
        z = s.z + self._of(lam, s, who) @ (heard.z - s.z)  # where all take part, sum_i lambda_i z_i
        new = self.dual_step(lam, now)
        monitors = Monitors(psi.value(now), new.amax(-1, keepdim=True))
        return State(clients.problem.prox(z, 0.0), new, now, s.round + 1, monitors)

    def dual_step(self, lam: Tensor, losses: Tensor) -> Tensor:
        """The new weights [1, N]."""
        dual_lr: Any = self.dual_lr
        moves = isinstance(dual_lr, Tensor) or dual_lr > 0
        return sets.named(self.ambiguity).prox(lam, losses, dual_lr) if moves else lam

    def local_descent(self, cohort: Cohort, m: tuple[Tensor]) -> tuple[Local, None]:
        z = cohort.each(m[0])

        def step(u: Tensor, batch: Batch) -> Tensor:
            return cohort.prox(u - self.lr * cohort.field(u, batch), self.lr)

        return Local(cohort.scan(step, z, self.local_steps), cohort.full_loss(z)), None


@dataclass(frozen=True)
class AgnosticFedAvg(AgnosticFL):
    """AgnosticFedAvg: AFL with local steps and weights that are multiplied, not projected.

        lambda_i <- lambda_i exp(dual_lr L_i) / sum_j lambda_j exp(dual_lr L_j)

    From what is recalled of the paper, in which a client may hold data of several domains; here each client is one.

    Args:
        lr: local step size.
        local_steps: J.
        dual_lr: step of the weights' logarithms.
    """

    cites = Citation(
        "ro2021communication",
        "Ro, Jae and Chen, Mingqing and Mathews, Rajiv and Mohri, Mehryar and Suresh, Ananda Theertha",
        "Communication-Efficient Agnostic Federated Averaging",
        "Interspeech",
        2021,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ambiguity != "afl":
            raise FedsaddleError(
                f"AgnosticFedAvg: ambiguity must be 'afl', got {self.ambiguity!r}; AgnosticFL and ScaffPD take others"
            )

    def dual_step(self, lam: Tensor, losses: Tensor) -> Tensor:
        # exact weights are never 0, and a client whose weight was rounded to 0 could not come back
        return torch.softmax(lam.clamp(min=torch.finfo(lam.dtype).tiny).log() + self.dual_lr * losses, dim=-1)
