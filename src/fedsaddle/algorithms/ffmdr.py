"""FFMDR: Douglas-Rachford splitting for federated min-max problems.

"A Fast Federated Method for Minimax Problems with Sequential Convergence Guarantees" (anonymous), Algorithm 1.

    paper                | here
    ---------------------+--------------------------------------------------------------
    z^t                  | z: the server's point, the x part of State.z
    x_i, w_i, y_i        | Memory: what a client keeps; y_i is never sent
    z~_i = 2 w_i - x_i   | reflected: its change is sent up
    beta                 | beta; g is the problem's regulariser, prox_{beta g} its prox
    criterion (10), eps  | the residual rule, accuracy; m is the modulus
    r_i(w, y)            | c_i f_i(w, y) + ||w - x_i||^2 / (2 beta), with the field T; c_i = 1, or by samples

**Each client has its own dual variable (E4.1).** The method solves min_x mean_i max_{y_i} f_i(x, y_i) + g(x), which is the
problem with one shared y only where the clients' maximisers agree (docs/mathematics.md has an example with numbers).

Deviations: the server's prox is prox_{beta g}, which solves the problem as stated; the printed prox_{(beta/n) g} solves it
with g / n (E4.2). Local losses are means, not sums (E4.3). Criterion (10) needs the unknown solution; the residual rule
implies it for linear models (E4.4, T32). x_i and z~_i start at x_0 (E4.8). A client's inner epoch is ceil(n_i / B)
minibatches; clients that have stopped are masked. Inner steps project y (a regulariser of y belongs into f, and is refused
as a prox); g belongs to the server alone. Theorem 1's
potential is monitored with the norms divided by N as F is, and without its last term, whose coefficient 1/(12 L^2) has the
wrong dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Citation
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError, warn
from fedsaddle.messages import Control
from fedsaddle.problem import Batch, ModelProblem, Problem

SOLVERS = ("sgda", "extragradient", "saga", "exact")
_MOST_EXACT, _LARGEST_TABLE = 4000, 1 << 29


class Monitors(NamedTuple):
    """How the sequence converges, [1, 1] each."""

    move: Tensor  # ||z_{r+1} - z_r||
    fixed_point: Tensor  # root mean square over the round's participants of ||z_r - w_i||, before they work: 0 at a solution
    potential: Tensor  # H of Theorem 1, over all clients


class State(NamedTuple):
    z: Tensor  # (z, y_0) [1, d]: the dual part has no meaning for the server
    z_bar: Tensor  # mean over all N clients of their latest reflected points [1, n_x]
    s_bar: Tensor | None  # mean over all N clients of their part of the potential [1, 1]
    monitors: Monitors | None


class Memory(NamedTuple):
    x: Tensor  # [1, n_x]
    w: Tensor  # [1, n_x]
    y: Tensor  # [1, n_y]
    s: Tensor | None  # the client's part of the potential [1, 1]
    inverse: Tensor | None  # "exact": of its linear system [1, d d], double; NaN before the first solve
    constant: Tensor | None  # and its constant [1, d], double


class Down(NamedTuple):
    z: Tensor  # [1, n_x]
    size: Any  # mean number of samples of a client, where they are weights


class Up(NamedTuple):
    change: Tensor  # of the reflected point 2w - x [n_x]
    gap: Tensor | None  # ||z - w||^2 before the work [1]
    ds: Tensor | None  # change of s [1]


@dataclass(frozen=True)
class FFMDR(Algorithm):
    """Douglas-Rachford splitting: clients solve proximal saddle problems, the server a prox of the mean of reflections.

    Args:
        beta: prox parameter; the theory asks for beta L < 0.0549, the experiments use 0.5 to 500.
        solver: of the clients' problem: "sgda", "extragradient" (full local gradients), "saga" (a table of the gradients
            of all local samples), or "exact" (one linear system a client, kept; for affine fields, such as linear AUC's).
        lr, lr_dual: step sizes of the inner solver; lr_dual None: the same.
        epochs: inner epochs at most.
        stop: "residual" (as soon as the computable rule holds) or "fixed_epochs".
        accuracy: eps in (0, 1) of the rule ||T(u)||^2 <= eps m^2 ||u_old - u||^2.
        modulus: m, strong monotonicity of the inner problem; None: min(1/beta, mu) where the problem knows mu, which is
            right where f_i is convex in w (linear models). Where y meets a constraint the rule need never hold.
        tolerance: the rule also holds where ||T(u)|| is below this.
        relaxation: x_i <- x_i + relaxation (z - w_i), in (0, 2).
        server_prox: "derived" prox_{beta g}, or "printed" prox_{(beta/N) g}.
        monitor: report how the sequence converges: its steps, from the second round on the fixed-point residual and, in
            rounds in which all clients take part, the potential H of Theorem 1 (exact solves; from below with others); for
            one pass over the local samples and two numbers up in each round.
        weights: clients count equally in the objective ("clients"), or by their sample counts ("samples"): f_i times c_i =
            n_i / n, n their mean. The paper's sums over samples are "samples" with n beta and g / n.
    """

    beta: float = 0.5
    solver: Literal["sgda", "extragradient", "saga", "exact"] = "sgda"
    lr: float = 0.01
    lr_dual: float | None = None
    epochs: int = 5
    stop: Literal["residual", "fixed_epochs"] = "residual"
    accuracy: float = 0.5
    modulus: float | None = None
    tolerance: float = 1e-12
    relaxation: float = 1.0
    server_prox: Literal["derived", "printed"] = "derived"
    monitor: bool = False
    weights: Literal["clients", "samples"] = "clients"

    cites = Citation(
        "anonymous2025fast",
        "Anonymous",
        "A Fast Federated Method for Minimax Problems with Sequential Convergence Guarantees",
        "under review",
        2025,
    )
    shared_dual: ClassVar[bool] = False
    weighs_replies: ClassVar[bool] = False
    of_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._require_positive("beta", "lr", "epochs", "accuracy", "relaxation", "lr_dual", "modulus")
        if self.accuracy > 1:
            raise FedsaddleError(f"FFMDR: accuracy must be at most 1, got {self.accuracy}")
        if not isinstance(self.epochs, int):
            raise FedsaddleError(f"FFMDR: epochs must be whole, got {self.epochs}")
        self._require_nonnegative("tolerance")
        if self.relaxation >= 2:
            raise FedsaddleError(f"FFMDR: relaxation must be below 2, got {self.relaxation}")
        self._require_weights()
        for name, known in (
            ("solver", SOLVERS),
            ("stop", ("residual", "fixed_epochs")),
            ("server_prox", ("derived", "printed")),
        ):
            if getattr(self, name) not in known:
                raise FedsaddleError(
                    f"FFMDR: {name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )

    def check(self, problem: Problem) -> None:
        super().check(problem)
        generic = torch.linspace(1.0, 2.0, problem.n_x + problem.n_y).unsqueeze(0)
        if not torch.equal(problem.prox(generic, 1.0)[..., problem.n_x :], problem.projected_dual(generic)):
            raise FedsaddleError(
                f"FFMDR: takes projections of y alone, but the prox of {type(problem).__name__}'s y depends on its step, "
                "as a regulariser's does; write that term into the loss"
            )
        d, by_rule = problem.n_x + problem.n_y, self.stop == "residual" and self.solver != "exact"
        if (
            by_rule
            and self.modulus is None
            and isinstance(problem, ModelProblem)
            and not problem.flat.is_linear
        ):
            warn(
                "FFMDR: stop = 'residual' takes min(1/beta, mu) as modulus, which is right for linear models; with others "
                "clients may stop too early: give modulus, or use stop = 'fixed_epochs'"
            )
        if self.solver == "exact" and d > _MOST_EXACT:
            raise FedsaddleError(
                f"FFMDR: solver 'exact' keeps a matrix of d^2 numbers for each client, got d = {d:,}; use 'sgda' for more "
                f"than {_MOST_EXACT:,} variables"
            )

    def init(self, z: Tensor, problem: Problem) -> State:
        return State(z, z[..., : problem.n_x], torch.zeros_like(z[..., :1]) if self.monitor else None, None)

    def memory(self, z: Tensor, problem: Problem) -> Memory:
        x, y = z.split((problem.n_x, problem.n_y), dim=-1)
        d, exact = z.shape[-1], self.solver == "exact"
        unknown = z.new_full((*z.shape[:-1], d * d), torch.nan, dtype=torch.float64) if exact else None
        s = torch.zeros_like(z[..., :1]) if self.monitor else None
        return Memory(x, x, y, s, unknown, torch.zeros_like(z, dtype=torch.float64) if exact else None)

    def round(self, s: State, clients: Clients) -> State:
        problem, beta = clients.problem, self.beta
        x, y = s.z.split((problem.n_x, problem.n_y), dim=-1)
        size = Control.of(float(clients.sizes.double().mean()), x) if self.weights == "samples" else None
        mean, share = clients.mean(self.proximal_saddle, Down(x, size))
        z_bar = s.z_bar + share * mean.change  # the mean over all N: others keep theirs
        step = beta if self.server_prox == "derived" else beta / clients.n_clients
        z = problem.prox(torch.cat([z_bar, y], dim=-1), step)  # eq. (3), with E4.2
        if s.s_bar is None:
            return State(z, z_bar, None, None)
        new = z[..., : problem.n_x]
        # H = mean_i s_i - <z, z_bar> / beta + ||z||^2 / (2 beta) + g(z), Theorem 1
        s_bar = s.s_bar + share * mean.ds
        g = problem.penalty(z) / (1.0 if self.server_prox == "derived" else float(clients.n_clients))
        H = s_bar - _dot(new, z_bar) / beta + _dot(new, new) / (2 * beta) + g
        if share < 1:
            H = torch.full_like(H, torch.nan)  # others have not said how far they went
        # in the first round z and w_i are x_0, solved by nobody yet
        gap = torch.full_like(H, torch.nan) if s.monitors is None else mean.gap.sqrt()
        return State(z, z_bar, s_bar, Monitors(_dot(new - x, new - x).sqrt(), gap, H))

    # ---- clients -----------------------------------------------------------------------------------------

    def proximal_saddle(self, cohort: Cohort, m: Down) -> tuple[Up, Memory]:
        """Algorithm 1, a participant's part."""
        old, z = cohort.memory, m.z
        c = None if m.size is None else cohort.sizes.unsqueeze(-1).to(z) / m.size  # of f_i; None: 1
        x = old.x + self.relaxation * (z - old.w)
        inverse, constant = old.inverse, old.constant
        if self.solver == "exact":
            inverse, constant = self._linear_system(cohort, c, inverse, constant)
            u = self._solved(cohort, x, inverse, constant)
        else:
            u = self._iterated(cohort, c, torch.cat([old.w, old.y], dim=-1), x)
        w, y = u.split((cohort.problem.n_x, cohort.problem.n_y), dim=-1)
        change = (2 * w - x) - (2 * old.w - old.x)
        if not self.monitor:
            return Up(change, None, None), Memory(x, w, y, None, inverse, constant)
        gap, s = z - old.w, self._potential(cohort, c, x, w, y, old.w)
        return Up(change, _dot(gap, gap), s - old.s), Memory(x, w, y, s, inverse, constant)

    def _iterated(self, cohort: Cohort, c: Tensor | None, u: Tensor, x: Tensor) -> Tensor:
        """About the saddle of r_i, started at u = (w_i, y_i)."""
        problem, start = cohort.problem, u
        lr = cohort.vector(self.lr, self.lr if self.lr_dual is None else self.lr_dual)
        centre = cohort.pad(x)
        steps, most = cohort.epoch()
        on_x = cohort.vector(1.0, 0.0)

        def pulled(u: Tensor, F: Tensor) -> Tensor:
            return _times(c, F) + on_x * (u - centre) / self.beta

        def moved(u: Tensor, T: Tensor) -> Tensor:
            u = u - lr * T
            return torch.cat([u[..., : problem.n_x], problem.projected_dual(u)], dim=-1)

        going = torch.ones_like(u[..., :1])  # 1 for clients that have not stopped
        table = self._table(cohort, u) if self.solver == "saga" else None
        done = torch.zeros_like(going)  # steps of this epoch

        def sgda(carry: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
            u, done, going = carry
            new = moved(u, pulled(u, cohort.field(u, batch)))
            active = (done < steps) & (going > 0)
            return torch.where(active, new, u), done + 1, going

        def saga(carry: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, ...]:
            u, done, going, table, mean = carry
            active = (done < steps) & (going > 0)
            F, table, mean = self._saga_field(cohort, batch, u, active, table, mean)
            return torch.where(active, moved(u, pulled(u, F)), u), done + 1, going, table, mean

        for e in range(self.epochs):
            if self.solver == "extragradient":
                half = moved(u, pulled(u, cohort.full_field(u)))
                u = torch.where(going > 0, moved(u, pulled(half, cohort.full_field(half))), u)
            elif self.solver == "sgda":
                u, _, _ = cohort.scan(sgda, (u, done, going), most, later=e * steps)
            else:
                assert table is not None
                u, _, _, *table = cohort.scan(
                    saga, (u, done, going, *table), most, later=e * steps, numbered=True
                )
            if self.stop == "residual" and e + 1 < self.epochs:
                T = pulled(u, cohort.full_field(u))
                size, way = _dot(T, T), _dot(start - u, start - u)
                enough = (size <= self.accuracy * self._m(problem, c) ** 2 * way) | (
                    size.sqrt() <= self.tolerance
                )
                going = torch.where(enough, 0.0, going)
                if not going.is_cuda and not going.any():
                    break
        return u

    def _m(self, problem: Problem, c: Tensor | None) -> float | Tensor:
        """Strong monotonicity of T: min(1/beta, c_i mu), for f_i convex in w."""
        if self.modulus is not None:
            return self.modulus
        mu = problem.concavity if problem.n_y else math.inf
        if mu is None:
            raise FedsaddleError(
                f"FFMDR: the strong concavity of {type(problem).__name__} is not known; give modulus, or use "
                "stop='fixed_epochs'"
            )
        beta: Any = self.beta
        if c is not None:
            return torch.minimum(1 / torch.as_tensor(beta).to(c), mu * c)
        return (1 / beta).clamp(max=mu) if isinstance(beta, Tensor) else min(1 / beta, mu)

    # ---- SAGA --------------------------------------------------------------------------------------------

    def _table(self, cohort: Cohort, u: Tensor) -> tuple[Tensor, Tensor]:
        """Fields of all local samples at u, [S, n d], and their mean [S, d]."""
        numbers = u.numel() * int(cohort.sizes.max())
        if numbers > _LARGEST_TABLE:
            raise FedsaddleError(
                f"FFMDR: solver 'saga' keeps a gradient of every local sample, here {numbers:,} numbers; use 'sgda', or "
                "compute fewer clients at once (chunk)"
            )
        parts, mean = [], torch.zeros_like(u)
        for batch in cohort.everything():
            F = cohort.each_field(u, batch)
            parts.append(F)
            mean = mean + (F * cohort.apply(lambda z, batch: batch.w, u, batch).unsqueeze(-1)).sum(-2)
        return torch.cat(parts, dim=-2).flatten(-2), mean

    @staticmethod
    def _saga_field(
        cohort: Cohort, batch: Batch, u: Tensor, active: Tensor, table: Tensor, mean: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """fresh_B - table_B + the table's mean, and the table and its mean with the minibatch's entries renewed."""

        def rows(z: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            assert batch.places is not None
            return batch.places.expand(*z.shape[:-1], -1), batch.w.expand(*z.shape[:-1], -1)

        fresh = cohort.each_field(u, batch)  # [S, B, d]
        places, w = cohort.apply(rows, u, batch)  # [S, B]
        at = places.unsqueeze(-1).expand_as(fresh)
        entries = table.unflatten(-1, (-1, u.shape[-1]))
        there = w > 0  # absent slots hold sample 0
        change = (fresh - entries.gather(-2, at)) * there.unsqueeze(-1)
        F = (change * w.unsqueeze(-1)).sum(-2) + mean
        # a sample that was drawn more than once is renewed once
        times = ((places.unsqueeze(-1) == places.unsqueeze(-2)) & there.unsqueeze(-2)).sum(-1, keepdim=True)
        change = torch.where(active.unsqueeze(-1), change / times.clamp(min=1), 0.0)
        entries.scatter_add_(-2, at, change)  # the table is this round's own
        mean = mean + change.sum(-2) / cohort.sizes.unsqueeze(-1)
        return F, table, mean

    # ---- exact -------------------------------------------------------------------------------------------

    def _linear_system(
        self, cohort: Cohort, c: Tensor | None, inverse: Tensor | None, constant: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The inverse [S, d d] of H + P_x / beta and h, of the client's field H u + h; made once.

        In double precision, since the system is badly conditioned for large beta. The solution itself is not: a prox
        enlarges no error of x.
        """
        assert inverse is not None and constant is not None
        if not inverse.isnan().any():
            return inverse, constant
        d, cohort = constant.shape[-1], cohort.in_double()
        H, h = cohort.affine_field(d)
        probe = torch.linspace(-1.0, 1.0, d, dtype=h.dtype, device=h.device).unsqueeze(0)
        wrong = cohort.full_field(cohort.each(probe)) - (H @ probe.mT).squeeze(-1) - h
        if wrong.abs().max() > 1e-3 * ((H.abs() @ probe.abs().mT).max() + h.abs().max()):
            raise FedsaddleError(
                "FFMDR: solver 'exact' needs a saddle field that is affine, such as linear AUC or quadratics; use 'sgda'"
            )
        on_x = cohort.vector(1.0, 0.0) / _double(self.beta)  # [d], or one a replica [R, 1, d]
        H, h = _times(None if c is None else c.double().unsqueeze(-1), H), _times(c, h)
        return torch.linalg.inv(H + torch.diag_embed(on_x.expand_as(h))).flatten(-2), h

    def _solved(self, cohort: Cohort, x: Tensor, inverse: Tensor, constant: Tensor) -> Tensor:
        right = (cohort.pad(x).double() / _double(self.beta) - constant).unsqueeze(-1)
        u: Tensor = (inverse.unflatten(-1, (constant.shape[-1], -1)) @ right).squeeze(-1).to(x)
        dual = u[..., cohort.problem.n_x :]
        if not torch.equal(cohort.problem.projected_dual(u), dual):
            raise FedsaddleError(
                "FFMDR: solver 'exact' knows no constraint on y, which is active here; use 'sgda'"
            )
        return u

    # ---- the potential -----------------------------------------------------------------------------------

    def _potential(
        self, cohort: Cohort, c: Tensor | None, x: Tensor, w: Tensor, y: Tensor, before: Tensor
    ) -> Tensor:
        """s_i = c_i f_i(w, y) + (||x - w||^2 - ||x||^2) / (2 beta) + ||w||^2 / beta + ||w - w'||^2 / (8 beta)  [S, 1].

        f_i(w, y) is F_i(w) where y is the maximiser, as after an exact solve, and less elsewhere.
        """
        value = _times(c, cohort.full_loss(torch.cat([w, y], dim=-1)))
        step = w - before
        norms = (_dot(x - w, x - w) - _dot(x, x)) / 2 + _dot(w, w) + _dot(step, step) / 8
        return value + norms / self.beta


def _double(number: float | Tensor) -> float | Tensor:
    return number.double() if isinstance(number, Tensor) else number


def _times(c: Tensor | None, v: Tensor) -> Tensor:
    return v if c is None else c * v


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)
