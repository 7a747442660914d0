"""Pairwise losses across clients: CyCp-Pairwise, RS-Pairwise (FeDXL with a linear outer function) and FeDXL2.

CyCp-Pairwise: Vangapally et al. 2026, Algorithms 3 and 4. FeDXL: Guo et al. 2023. A pair's samples lie at different
clients, so a client cannot compute its loss. In the active-passive scheme it differentiates its own samples (active) and
takes scores of others' samples (passive) from pools that the server collected in the epoch before.

    paper                   | here
    ------------------------+-------------------------------------------------------------
    w                       | z
    e, k: epoch and group   | one visit is one round; an epoch is the participation's period
    K groups, E_s epochs    | a stage has stage_rounds = E_s K rounds
    H_1^{e-1}, H_2^{e-1}    | pools: scores of the previous epoch; filling: those of this one
    R_1, R_2                | r_1, r_2: samples of the pools, I B for a visit, sent to a client
    h(w; z_1), h(w; z_2)    | s_1, s_2: active scores of B positives and B negatives
    G_1, G_2                | the two halves of the gradient, eq. (11) and (12)
    u, gamma, beta (FeDXL2) | log_u, rate, momentum

Deviations: eq. (12) takes nabla_2 psi (E2.1); Algorithm 3 is read as E2.4 says. The first epoch of a run only collects
scores (lines 23-24), and later stages go on with the pools that they find. Samples of a pool come in random order, so that
clients need not shuffle them again; where a pool is smaller than I B, all of it is sent again and again. A side of which an
epoch brought no score keeps its older pool. RS-Pairwise is the same method under uniform participation, where an epoch is
one round. FeDXL2 is written for the outer function of partial AUC, f(g) = T log g of g = E exp(psi / T), in logarithms:
f'(u) times the derivative of exp(psi / T) is exp(psi / T - log u) psi'. Its moving average of gradients starts at 0, in the
public code at the first gradient: with momentum < 1 the first steps are shorter here. A sample's u starts at its first g; a
passive positive whose u is not known yet has the g of the active negatives that it meets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Citation
from fedsaddle.algorithms.cycp import CyCpMinimax
from fedsaddle.algorithms.stages import Progress, Stagewise
from fedsaddle.clients import Clients
from fedsaddle.cohort import Cohort
from fedsaddle.errors import FedsaddleError, warn
from fedsaddle.messages import Each
from fedsaddle.problem import Batch, Problem
from fedsaddle.problems.pairs import PairLoss
from fedsaddle.problems.pairwise import Pairwise, PartialAUC, Pullback

GUO_2023 = Citation(
    "guo2023fedxl",
    "Guo, Zhishuai and Jin, Rong and Luo, Jiebo and Yang, Tianbao",
    "FeDXL: Provable Federated Learning for Deep X-Risk Optimization",
    "ICML",
    2023,
)


class Pool(NamedTuple):
    """Scores of one side that the server holds."""

    entries: Tensor  # [P, k]: the n that are there, then others
    n: Tensor  # [1, 1]

    @classmethod
    def of(cls, entries: Tensor, before: Pool | None) -> Pool:
        """A pool of what an epoch brought, rows of NaN apart; the pool before it where that is nothing."""
        there = ~entries[..., 0].isnan()
        n, order = there.sum(-1)[..., None, None], (~there).int().argsort(stable=True, dim=-1)
        entries = entries.gather(-2, order.unsqueeze(-1).expand_as(entries))
        if before is None:
            return cls(entries, n)
        length = max(entries.shape[-2], before.entries.shape[-2])
        old, new = (
            torch.nn.functional.pad(e, (0, 0, 0, length - e.shape[-2]), value=math.nan)
            for e in (before.entries, entries)
        )
        return cls(torch.where(n > 0, new, old), torch.where(n > 0, n, before.n))

    def at(self, places: Tensor) -> Each:
        """The entries at some places for each participant [M, count]: [M, count k]; NaN from a pool without entries."""
        rows = self.entries.unsqueeze(-3).expand(*places.shape[:-1], *self.entries.shape[-2:])
        return Each(rows.gather(-2, places.unsqueeze(-1).expand(*places.shape, rows.shape[-1])).flatten(-2))


class State(NamedTuple):
    z: Tensor  # server iterate [1, d]
    m: Tensor | None  # FeDXL2: moving average of gradients [1, d]
    pools: tuple[Pool, Pool] | None  # of the previous epoch; none in the first
    filling: tuple[Tensor, Tensor] | None  # scores of this epoch so far, [P, k] each
    epoch: int  # which one that is
    progress: Progress


class Down(NamedTuple):
    z: Tensor
    m: Tensor | None
    r_1: Any  # passive scores [M, I B k], one row a client
    r_2: Any
    stage: int


class Up(NamedTuple):
    z: Tensor | None
    m: Tensor | None
    h_1: Any  # Each: scores [S, I B k] as they were before each step; NaN where a client lacks the side
    h_2: Any
    ranges: Any  # Each or None: of quantised scores: the least and the largest of both sides [S, 4]


@dataclass(frozen=True)
class CyCpPairwise(Stagewise):
    """CyCp-Pairwise: local steps on a loss of pairs, with passive scores from the previous cycle epoch.

    Use it with PairwiseAUC or Contrastive, under Cyclic participation. A stage of E epochs over G groups has
    stage_rounds = E G. The run's first epoch (G rounds) collects scores and does not move the model.

    Args:
        pairing: each active sample meets one passive score ("one_to_one"), or all B of its step ("all_pairs").
        noise: standard deviation of Gaussian noise that clients add to the scores they share.
        bits: scores are shared as codes of this many bits of their range at the client; None: as they are.
    """

    pairwise: ClassVar[bool] = True

    output: str = "rounds"
    pairing: Literal["one_to_one", "all_pairs"] = "one_to_one"
    noise: float = 0.0
    bits: int | None = None

    cites = CyCpMinimax.cites

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_nonnegative("noise")
        if self.pairing not in ("one_to_one", "all_pairs"):
            raise FedsaddleError(
                f"{type(self).__name__}: pairing must be 'one_to_one' or 'all_pairs', got {self.pairing!r}"
            )
        if self.bits is not None and (isinstance(self.bits, bool) or self.bits not in range(1, 17)):
            raise FedsaddleError(
                f"{type(self).__name__}: bits must be between 1 and 16, or None, got {self.bits}"
            )

    @classmethod
    def outputs(cls) -> tuple[str, ...]:
        return ("rounds", "last")

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if isinstance(problem, PartialAUC):
            raise FedsaddleError(
                f"{type(self).__name__}: has a linear outer function, but PartialAUC a nonlinear one; use FeDXL2"
            )

    def init(self, z: Tensor, problem: Problem) -> State:
        return State(z, None, None, None, 0, Progress.start(z))

    def round(self, s: State, clients: Clients) -> State:
        epoch, stage = clients.round // clients.participation.period, s.progress.stage
        pools, filling = s.pools, s.filling
        if clients.round == 0:
            self._advise(clients)
        if epoch != s.epoch and filling is not None:  # line 4: what was filled is drawn from
            before = pools or (None, None)
            pools, filling = (Pool.of(filling[0], before[0]), Pool.of(filling[1], before[1])), None
        count = self.steps_at(stage) * self._batch_size(clients)
        if pools is None:  # line 2
            up, _ = clients.mean(self.first_scores, Down(s.z, None, None, None, stage))
            return State(s.z, s.m, None, self._filled(filling, up, count), epoch, s.progress)
        sizes = torch.stack([pool.n.clamp(min=1)[..., 0, 0] for pool in pools])
        r_1, r_2 = (pool.at(p) for pool, p in zip(pools, clients.places(sizes, count), strict=True))  # line 9
        up, _ = clients.mean(self.active_passive_steps, Down(s.z, s.m, r_1, r_2, stage))  # lines 7, 10, 11
        z, progress, _ = self.advance(s.progress, up.z, clients)  # lines 13, 16
        return State(z, up.m, pools, self._filled(filling, up, count), epoch, progress)  # line 12

    def _batch_size(self, clients: Clients) -> int:
        if clients.batching.size is None:
            raise FedsaddleError(
                f"{type(self).__name__}: needs a batch size, batch_size=None takes all samples"
            )
        return clients.batching.size

    def _advise(self, clients: Clients) -> None:
        """Warn of settings under which nothing, or something else, is learned."""
        me, period = type(self).__name__, clients.participation.period
        if clients.rounds is not None and clients.rounds <= period:
            warn(
                f"{me}: the first {period} rounds (one pass over all groups) only collect scores, so {clients.rounds} "
                "rounds leave the model as it is; train for more"
            )
        self._advise_whole_stages(clients)
        if clients.shares() is not None and period > 1:
            warn(
                f"{me}: groups are of unequal sizes, for which the two halves of a gradient are out of proportion (visits "
                "count groups, but the weights of owners and the pools count clients); use groups of equal sizes"
            )

    @staticmethod
    def _filled(filling: tuple[Tensor, Tensor] | None, up: Up, count: int) -> tuple[Tensor, Tensor]:
        """This epoch's scores with a visit's, [S, I B k] -> [S I B, k], added."""
        h_1, h_2 = (h.unflatten(-1, (count, -1)).flatten(-3, -2) for h in (up.h_1, up.h_2))
        if filling is None:
            return h_1, h_2
        return torch.cat([filling[0], h_1], dim=-2), torch.cat([filling[1], h_2], dim=-2)

    # ---- clients -----------------------------------------------------------------------------------------

    def first_scores(self, cohort: Cohort, m: Down) -> tuple[Up, Any]:
        """Lines 23-24: scores of I B samples of each side at the first model."""

        def step(z: Tensor, batch: Batch, _: tuple[()]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            return z, cohort.apply(
                lambda z, batch: self._active(cohort, z, batch, derived=False).shared(), z, batch
            )

        _, scores = cohort.scan(step, m.z, self.steps_at(m.stage), inputs=())
        return self._reply(cohort, m.stage, scores), cohort.memory

    def active_passive_steps(self, cohort: Cohort, m: Down) -> tuple[Up, Any]:
        """Lines 25-32."""
        lr = cohort.number(self.lr_at(m.stage))

        def halves(z: Tensor, batch: Batch, r_1: Tensor, r_2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            active = self._active(cohort, z, batch)
            psi, p_1, p_2 = active.psi, self._passive(r_1, active), self._passive(r_2, active)
            g_1 = psi.d1(active.s_1.unsqueeze(-2), p_2)  # eq. (11)
            g_2 = psi.d2(p_1, active.s_2.unsqueeze(-2))  # eq. (12), with nabla_2
            return (active.gradient(_known(g_1, p_2), _known(g_2, p_1)), *active.shared())

        def step(
            z: Tensor, batch: Batch, passive: tuple[Tensor, Tensor]
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            G, h_1, h_2 = cohort.apply(halves, z, batch, *passive)
            return cohort.prox(z - lr * G, lr), (h_1, h_2)  # line 31

        z, scores = cohort.scan(step, m.z, self.steps_at(m.stage), inputs=(m.r_1, m.r_2))
        return self._reply(cohort, m.stage, scores, z), None

    def _active(self, cohort: Cohort, z: Tensor, batch: Batch, derived: bool = True) -> Active:
        problem = cohort.problem
        assert isinstance(problem, Pairwise) and problem.owners is not None
        h, pullback = problem.represent(z, batch, derived)
        s_1, s_2 = h.chunk(2, dim=-2)
        return Active(s_1, s_2, batch.w, problem.owners.shares, problem.psi_at(z), pullback)

    def _passive(self, r: Tensor, active: Active) -> Tensor:
        """Passive scores [B k] as what each active sample meets: [B, 1, k], or [1, B, k] for all pairs."""
        r = r.unflatten(-1, (active.s_1.shape[-2], -1))
        return r.unsqueeze(-2) if self.pairing == "one_to_one" else r.unsqueeze(-3)

    def _reply(
        self,
        cohort: Cohort,
        stage: int,
        scores: tuple[Tensor, Tensor],
        z: Tensor | None = None,
        m: Tensor | None = None,
    ) -> Up:
        """What a client sends: its scores noised and quantised where that is asked for."""
        noise: Any = self.noise
        if not isinstance(noise, Tensor) and noise == 0 and self.bits is None:
            return Up(z, m, Each(scores[0]), Each(scores[1]), None)
        count, (extra_1, extra_2) = self.steps_at(stage) * cohort.batch_size, self.extras(cohort.problem)
        lengths = [h.shape[-1] for h in scores]
        by_1, by_2 = (noise * cohort.normal(sum(lengths))).split(lengths, dim=-1)
        h_1, range_1 = self._disguised(scores[0], by_1, count, extra_1)
        h_2, range_2 = self._disguised(scores[1], by_2, count, extra_2)
        ranges = [r for r in (range_1, range_2) if r is not None]
        return Up(z, m, h_1, h_2, Each(torch.cat(ranges, dim=-1)) if ranges else None)

    def extras(self, problem: Problem) -> tuple[int, int]:
        """How many numbers beside its score an entry of each side has."""
        assert isinstance(problem, Pairwise)
        return problem.extra, problem.extra

    def _disguised(self, h: Tensor, noise: Tensor, count: int, extra: int) -> tuple[Each, Tensor | None]:
        """Scores [count k] with noise, as codes of their range; the last `extra` of k stay as they are.

        The range is that of the client's scores, widened to multiples of a power of two, about an eighth of it: its ends
        would be the exact scores of two persons.
        """
        h, noise = h.unflatten(-1, (count, -1)), noise.unflatten(-1, (count, -1))
        k = h.shape[-1]
        own, rest = (h + noise)[..., : k - extra], h[..., k - extra :]
        if self.bits is None:
            return Each(torch.cat([own, rest], dim=-1).flatten(-2)), None
        low, high = own.amin((-2, -1), keepdim=True), own.amax((-2, -1), keepdim=True)
        span = high - low
        grid = torch.where(span > 0, span, 1.0).log2().ceil().exp2() / 8
        low, high = (low / grid).floor() * grid, ((high / grid).floor() + 1) * grid
        step = (high - low) / (2**self.bits - 1)
        codes = ((own - low) / step).round()
        coded = low + codes * step
        coded = torch.where(coded.isnan() & ~own.isnan(), math.inf, coded)
        coded = torch.cat([coded, rest], dim=-1).flatten(-2)
        return Each(coded, bits=(self.bits * (k - extra) + 32 * extra) / k), torch.cat(
            [low, high], -1
        ).squeeze(-2)


@dataclass(frozen=True)
class RSPairwise(CyCpPairwise):
    """RS-Pairwise: the same steps under random sampling, where an epoch is one round; FeDXL with a linear outer function.

    Use it with PairwiseAUC or Contrastive, under Uniform (or Full) participation.
    """

    cites = GUO_2023

    def _advise(self, clients: Clients) -> None:
        super()._advise(clients)
        if clients.participation.period > 1:
            warn(
                f"{type(self).__name__}: is meant for random sampling; under {type(clients.participation).__name__} "
                "participation its pools are renewed once in a pass over all groups, as CyCpPairwise's"
            )


@dataclass(frozen=True)
class FeDXL2(RSPairwise):
    """FeDXL with the nonlinear outer function of partial AUC. Use it with PartialAUC.

    Each client keeps, for each of its positives, a moving average u of the inner mean E exp(psi / T), and shares it along
    with the positive's score.

    Args:
        rate: gamma, how much of u is renewed when its positive is drawn; 1 keeps nothing.
        momentum: beta, how much of the moving average of gradients is renewed in a step; 1 is plain steps.
    """

    branching = {"momentum": 1.0}  # noqa: RUF012

    rate: float = 0.5
    momentum: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("rate", "momentum")
        for name in ("rate", "momentum"):
            if not 0 < getattr(self, name) <= 1:
                raise FedsaddleError(
                    f"FeDXL2: {name} must be above 0 and at most 1, got {getattr(self, name)}"
                )

    def check(self, problem: Problem) -> None:
        if not isinstance(problem, PartialAUC):
            raise FedsaddleError(
                f"FeDXL2: is made for PartialAUC, got {type(problem).__name__}; use CyCpPairwise or RSPairwise"
            )

    @property
    def averages(self) -> bool:
        momentum: Any = self.momentum
        return isinstance(momentum, Tensor) or momentum != 1

    def init(self, z: Tensor, problem: Problem) -> State:
        return super().init(z, problem)._replace(m=torch.zeros_like(z) if self.averages else None)

    def memory(self, z: Tensor, problem: Problem) -> Tensor:
        assert isinstance(problem, PartialAUC) and problem.owners is not None
        return z.new_full((*z.shape[:-1], problem.owners.largest), math.nan)  # log u, unknown

    def extras(self, problem: Problem) -> tuple[int, int]:
        return 1, 0  # log u beside a positive's score

    def _active(self, cohort: Cohort, z: Tensor, batch: Batch, derived: bool = True) -> Active:
        active = super()._active(cohort, z, batch, derived)
        return active._replace(
            beside=torch.full_like(active.s_1, math.nan)
        )  # log u, unknown in the first epoch

    def active_passive_steps(self, cohort: Cohort, m: Down) -> tuple[Up, Tensor]:
        lr, problem = cohort.number(self.lr_at(m.stage)), cohort.problem
        assert isinstance(problem, PartialAUC)
        T = problem.temperature

        def halves(
            z: Tensor, batch: Batch, log_u: Tensor, rate: Tensor, r_1: Tensor, r_2: Tensor
        ) -> tuple[Tensor, ...]:
            active = self._active(cohort, z, batch)
            psi, s_1, s_2 = active.psi, active.s_1.unsqueeze(-2), active.s_2.unsqueeze(-2)
            p_1, log_v = self._passive(r_1, active).split(1, dim=-1)
            p_2 = self._passive(r_2, active)
            inner = psi.value(s_1, p_2) / T  # [B, 1 or B]
            log_u, own = self._renewed(log_u, rate, inner, batch, active)
            g_1 = (inner - own.unsqueeze(-1)).exp().unsqueeze(-1) * psi.d1(s_1, p_2)  # f'(u) nabla_1
            inner = psi.value(p_1, s_2) / T
            at_hand = inner.unsqueeze(-1)  # what u of a passive positive is taken for where it is unknown
            if self.pairing == "all_pairs":
                at_hand = _log_mean_exp(at_hand, -3).unsqueeze(-3)
            log_v = torch.where(log_v.isnan(), at_hand, log_v)
            g_2 = (inner.unsqueeze(-1) - log_v).exp() * psi.d2(p_1, s_2)  # f'(v) nabla_2
            G = active.gradient(_known(g_1, p_2), _known(g_2, p_1))
            return (G, log_u, *active._replace(beside=own.unsqueeze(-1)).shared())

        def step(carry: tuple[Any, ...], batch: Batch, passive: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
            z, average, log_u = carry
            rate: Any = self.rate
            rate = rate if isinstance(rate, Tensor) else z.new_full((1, 1), rate)
            G, log_u, h_1, h_2 = cohort.apply(halves, z, batch, log_u, rate, *passive)
            if self.averages:
                G = average = (1 - self.momentum) * average + self.momentum * G
            return (cohort.prox(z - lr * G, lr), average, log_u), (h_1, h_2)

        (z, average, log_u), scores = cohort.scan(
            step, (m.z, m.m, cohort.memory), self.steps_at(m.stage), inputs=(m.r_1, m.r_2)
        )
        return self._reply(cohort, m.stage, scores, z, average), log_u

    @staticmethod
    def _renewed(
        log_u: Tensor, rate: Tensor, inner: Tensor, batch: Batch, active: Active
    ) -> tuple[Tensor, Tensor]:
        """u <- (1 - rate) u + rate g of the positives in a minibatch: all of them [n], and those that were drawn [B].

        A positive that was drawn more than once has the mean g of its slots. Without passive scores u stays as it is.
        """
        assert batch.places is not None
        B = inner.shape[-2]
        places = batch.places[..., :B].expand(*inner.shape[:-1])
        log_g = _log_mean_exp(inner, -1)
        same = places.unsqueeze(-1) == places.unsqueeze(-2)
        log_g = torch.where(same, log_g.unsqueeze(-2), -math.inf).logsumexp(-1) - same.sum(-1).to(log_g).log()
        old = log_u.gather(-1, places)
        new = torch.logaddexp((1 - rate).log() + old, rate.log() + log_g)
        new = torch.where(old.isnan(), log_g, new)
        new = torch.where(log_g.isnan() | (active.w[..., :B] == 0), old, new)
        return log_u.scatter(-1, places, new), new


class Active(NamedTuple):
    """A minibatch's samples at their own client; the client axes in front of all shapes are left out."""

    s_1: Tensor  # scores of the first side [B, k]
    s_2: Tensor  # and of the second
    w: Tensor  # weights [2B]: 1/B, or 0 where the client lacks a side
    shares: tuple[Any, Any]  # of the clients that own each side
    psi: PairLoss
    pullback: Pullback
    beside: Tensor | None = None  # what is shared beside s_1 [B, 1]

    def gradient(self, g_1: Tensor, g_2: Tensor) -> Tensor:
        """G_1 + G_2 [d] from the derivatives [B, n, k] by each active score in each of its pairs."""
        halves = torch.cat([g_1.mean(-2) / self.shares[0], g_2.mean(-2) / self.shares[1]], dim=-2)
        w = self.w.unsqueeze(-1)
        assert self.pullback is not None
        return self.pullback(torch.where(w > 0, w * halves, 0.0))

    def shared(self) -> tuple[Tensor, Tensor]:
        """The scores as they are sent, [B k] of each side; NaN where the client lacks it."""
        # NaN marks what is absent and nothing else: a run that has diverged must not look like one without the side
        s_1, s_2 = (torch.where(s.isnan(), math.inf, s) for s in (self.s_1, self.s_2))
        h_1 = s_1 if self.beside is None else torch.cat([s_1, self.beside], dim=-1)
        absent_1, absent_2 = (self.w == 0).unsqueeze(-1).chunk(2, dim=-2)
        return h_1.masked_fill(absent_1, math.nan).flatten(-2), s_2.masked_fill(absent_2, math.nan).flatten(
            -2
        )


def _known(g: Tensor, passive: Tensor) -> Tensor:
    """Derivatives by pairs, 0 where there is no passive score."""
    return torch.where(passive[..., :1].isnan(), 0.0, g)


def _log_mean_exp(v: Tensor, dim: int) -> Tensor:
    return v.logsumexp(dim) - math.log(v.shape[dim])
