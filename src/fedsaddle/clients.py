"""The seam between an algorithm and wherever its clients are: `Clients` here is the server's side, `Cohort` the clients'.

An algorithm's round calls a few verbs on `Clients`; each call is one communication phase (server -> clients -> server)
and is counted here, for every engine alike.

    mean(work, message)     one phase; the (weighted) mean of the replies, and the share of all clients in it
    gather(work, message)   one phase; all replies
    sample(m, p)            draw other participants than the round's, to pass as `who`
    everyone()              all clients, to pass as `who`
    integer(n)              a uniform number for the server itself
    places(n, k)            for each participant, k places in pools of n that the server holds
    round_size()            how many the round's participants are
    forget()                all clients drop their memory (no traffic: a flag in the next message)

Client work is a method `work(cohort, message) -> (reply, memory)` that reads nothing but its arguments and the frozen
algorithm. It is the same in a simulator, a process or a hospital. What messages, replies and memory consist of, and what of
them is counted, is in `messages.py`; how replies become one in `aggregation.py`.

A round is a transaction: when it fails, or nobody answers, `rollback` undoes what its phases wrote to the clients' memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsaddle import sampling
from fedsaddle.aggregation import ByRule, Mean, Rule
from fedsaddle.cohort import Batching, Cohort
from fedsaddle.errors import Diverged, FedsaddleError, NobodyAnswered, warn
from fedsaddle.messages import (
    Once,
    PhaseTraffic,
    Traffic,
    check_reply,
    check_rows,
    key,
    numbers,
    onces,
    opened,
)
from fedsaddle.participation import Draw, Full, Participation, Uniform
from fedsaddle.problem import Problem, tree_map

if TYPE_CHECKING:
    from fedsaddle.algorithms.base import Algorithm
    from fedsaddle.federation import Federation
    from fedsaddle.metrics import Evaluation, Interval, Split

T = TypeVar("T")
Work = Callable[[Cohort, Any], tuple[Any, Any]]  # (cohort, message) -> (reply, what the clients remember)


class Gathered(NamedTuple):
    """All replies of a phase, one row a client."""

    ids: Tensor  # who answered [S]
    replies: Any  # every tensor [S, k]


class Task(NamedTuple):
    """What a run's clients are made for, by whatever engine."""

    problem: Problem
    federation: Federation  # the clients' data; of a deployment what the server knows of them
    participation: Participation
    batching: Batching = Batching()
    seeds: Sequence[int] = (0,)  # one, or those of R replicas that are computed together
    dtype: torch.dtype = torch.float32  # of all state
    algorithm: Algorithm | None = None  # whose work it is; None: work that counts all clients equally
    aggregation: Rule | None = None  # in place of the mean of replies


class Clients(ABC):
    """All N clients of a run, as an algorithm sees them.

    An engine writes how a phase is run (`_run`), and what becomes of the clients' memory (`remember`, `forget`, `rollback`).
    Where it needs to, also what happens when a round starts (`begin`), what a checkpoint holds (`_remembered` and `_recall`,
    or `accounts` and `restore`), who measures (`evaluate`), and how several processes agree (`alone`, `failed`).
    """

    writes = True  # whether this process writes the run's files; one does, where several compute it
    remote = False  # whether the data are elsewhere
    in_tensors = False  # whether client work has the problem's and the algorithm's numbers as tensors

    def __init__(self, task: Task, device: torch.device) -> None:
        federation = task.federation
        self.n_clients = federation.n_clients
        self.sizes = federation.sizes  # samples of each client [N]
        self.names = federation.names  # of the clients
        self.federation = federation  # their data, but for `remote` ones
        self.unscaled = "x" in federation.data and federation.scaling is None  # features as the user has them
        self.device, self.dtype = device, task.dtype
        self.problem = task.problem.to(device, task.dtype)  # later with its constants agreed on
        self.batching = _clamped(task.batching, task.problem, federation)  # how clients draw minibatches
        self.seeds = tuple(task.seeds)
        self.participation = task.participation
        self.algorithm = task.algorithm
        self.aggregation = task.aggregation
        self.traffic = Traffic()
        self.spent: dict[str, float] = {}  # where the seconds went, where an engine measures that
        self.failures = 0  # clients that were asked and did not answer, over the run
        self.evaluated_on: str | None = None  # which data of theirs, where only the clients know
        self.test_class_counts: list[list[int]] | None = None  # likewise
        self.auc_intervals: dict[str, Interval] = {}  # likewise; of "test" and "valid"
        # in this round: site, phase and reason, where an engine knows them
        self.left_out: list[dict[str, str]] = []
        self.round = -1  # -1: set-up
        self.rounds: int | None = None  # how many there will be, where that is known
        self.has_memory = False
        self.watched = False  # whether replies that are not finite end the run at once
        self._told: set[str] = set()  # the works whose replies the rule has no part in, as was said
        self._phase = self._draws = self._integers = self._pools = 0  # counted within a round
        self._cohort: Draw | None = None
        self._asked: list[np.ndarray] = []
        self._holds: dict[tuple[str, int], np.ndarray] = {}  # version of each client's Once values

    # ---- what an algorithm calls -------------------------------------------------------------------------

    def mean(
        self, work: Work, message: Any, *, who: Draw | None = None, weights: str = "clients"
    ) -> tuple[Any, float | Tensor]:
        """One phase: send `message`, run `work` on every participant, average the replies.

        Args:
            who: participants; by default the round's.
            weights: "clients" (each participant equally) or "samples" (by local sample count).

        Returns:
            the mean reply, every tensor [1, k] (rows [S, k] where the reply is marked `Each`), and the share of all
            clients that are in it: M/N, or by their weights (one a replica [R, 1, 1]).
        """
        if weights not in ("clients", "samples"):
            raise FedsaddleError(
                f"mean: weights must be 'clients' or 'samples', got {weights!r}; gather replies to weigh them otherwise"
            )
        per = self.size_weights if weights == "samples" else None  # weight of each client
        rule = self.aggregation if self.round >= 0 else None
        collected: Mean | ByRule = Mean() if rule is None else ByRule(rule)
        present, answered = torch.zeros(()), 0
        for ids, counts, replies in self._exchange(work, message, who):
            at = torch.as_tensor(ids)
            w = torch.as_tensor(counts, dtype=torch.float64)  # [..., S]
            if per is not None:
                own = per[at]
                w, present = w * own, present + own.sum(-1)[..., None, None]
            collected.add(at, w, replies)
            answered += ids.shape[-1]
        if per is None:
            return collected.result(), answered / self.n_clients
        share = present / per.sum()
        return collected.result(), share.item() if share.numel() == 1 else share.to(self.device, self.dtype)

    @cached_property
    def size_weights(self) -> Tensor:
        """Sample counts as weights [N], less their common divisor: whole numbers, 1 each where all are equal."""
        n = self.sizes.cpu()
        return (n // int(np.gcd.reduce(n.numpy()))).double()

    def shares(self, by: str | None = None) -> Tensor | None:
        """What each client's loss weighs in the objective that the rounds go down, [N] with sum 1; None: all equally.

        Where the scheme does not know who comes how often, clients count as if they came alike.

        Args:
            by: how clients count in a mean, "clients" or "samples"; None: as the algorithm has it.
        """
        counting, of_all, by_reply = "clients", False, True
        if self.algorithm is not None:
            counting, of_all = self.algorithm.counting, self.algorithm.of_all
            by_reply = self.algorithm.weighs_replies
        scheme = Full() if of_all else self.participation
        per = self.size_weights.numpy() if (by or counting) == "samples" else np.ones(self.n_clients)
        q = scheme.shares(self.n_clients, self.seeds[0], per if by_reply else None)
        if q is None or not by_reply:
            q = per / per.sum() if q is None else q * per / (q @ per)
        return None if (q == q[0]).all() else torch.from_numpy(q)

    def gather(self, work: Work, message: Any, *, who: Draw | None = None) -> Gathered:
        """One phase: send `message`, run `work` on every participant, return all replies [S, k]."""
        if self.aggregation is not None and self.round >= 0:
            self._warn_of_rule(work)
        parts = list(self._exchange(work, message, who))
        ids = torch.as_tensor(np.concatenate([ids for ids, _, _ in parts], axis=-1))
        return Gathered(
            ids,
            tree_map(lambda *rows: torch.cat(rows, dim=-2), *(opened(replies) for _, _, replies in parts)),
        )

    def _warn_of_rule(self, work: Work) -> None:
        """Say once of each client work whose replies are gathered that no rule guards them."""
        name, owner = work.__name__, work.__qualname__.partition(".")[0]
        if self.algorithm is not None:  # what is inherited has the name of another
            owner = type(self.algorithm).__name__
        if name not in self._told:
            self._told.add(name)
            warn(
                f"{owner}: takes what each client answers to {name} as it is; aggregation has no part in it, only in means "
                "of replies, so one wrong client can spoil the run: check what clients send, or take a method that "
                "averages, such as CODASCA, SCAFFOLD or FedAvg"
            )

    def sample(self, m: int | None = None, p: np.ndarray | None = None) -> Draw:
        """Participants drawn anew: by the run's scheme, m distinct of all, or m with probabilities p (with replacement).

        With m they are drawn from all N clients, also from those whom the scheme would not ask in this round.
        """
        self._draws += 1
        if m is None:
            return self._draw(self._draws)
        if p is not None and len(self.seeds) > 1:
            raise FedsaddleError(
                "replicas: participants drawn by weights differ from replica to replica; run them apart"
            )
        round = max(self.round, 0)

        def drawn(seed: int) -> Draw:
            if p is None:
                ids = Uniform(m).ask(self.n_clients, seed, round, self._draws)
            else:
                rng = np.random.default_rng([sampling.SERVER, seed, round, self._draws])
                ids = rng.choice(self.n_clients, size=m, p=p)
            return self.participation.ask_these(ids, seed, round, self._draws)

        return self._for_each_seed(drawn)

    def round_size(self) -> int:
        """How many clients the run's scheme asks in this round."""
        return int(self._participants().ids.shape[-1])

    def everyone(self) -> Draw:
        """All clients, for a phase that needs each of them, such as the set-up."""
        ids = np.arange(self.n_clients)
        return self._for_each_seed(lambda seed: Draw(ids, np.ones_like(ids), np.ones(len(ids), dtype=bool)))

    def integer(self, n: int) -> int | Tensor:
        """A uniform integer in {0..n-1} for the server, a function of (seed, round) and of the calls before in the round.

        With replicas, one each: [R, 1, 1].
        """
        again = (self._integers,) if self._integers else ()
        self._integers += 1
        drawn = [sampling.integer(n, sampling.SERVER, seed, self.round, *again) for seed in self.seeds]
        return drawn[0] if len(drawn) == 1 else torch.tensor(drawn).view(-1, 1, 1)

    def places(self, n: Tensor, k: int) -> Tensor:
        """For each of the round's participants, k places in each of several pools: [pools, M, k].

        They are in random order and distinct; where k is larger than a pool, all of it comes again and again. A function of
        (seed, round, pools asked for before).

        Args:
            n: sizes of the pools, at least 1: [pools], or one a replica [pools, R], equal for replicas of one seed.
        """
        seeds = list(dict.fromkeys(self.seeds))
        pools = range(self._pools, self._pools + len(n))
        self._pools = pools.stop
        keys = [sampling.key(sampling.POOL, seed, self.round, pool) for pool in pools for seed in seeds]
        positions = torch.arange(self.round_size(), device=n.device)
        own = n.view(len(n), -1)  # [pools, R]; a replica that has diverged counts fewer
        of = [[i for i, s in enumerate(self.seeds) if s == seed] for seed in seeds]
        sizes = torch.stack([own[:, at].amax(-1) for at in of], dim=-1)  # [pools, seeds]
        sizes = sizes.unsqueeze(-1).expand(-1, -1, len(positions))
        key = sampling.keys(keys, n.device).view(len(n), len(seeds), 1, 1)
        places, _ = sampling.minibatches(
            key,
            positions.new_zeros(1),
            positions.expand_as(sizes),
            sizes,
            k,
            "without_replacement",
            fill=True,
        )
        places = places.squeeze(0)[:, [seeds.index(seed) for seed in self.seeds]]  # [pools, R, M, k]
        return places if n.ndim > 1 else places.squeeze(1)

    @abstractmethod
    def forget(self) -> None:
        """All clients go back to the memory that they started with."""

    # ---- what a run calls --------------------------------------------------------------------------------

    @abstractmethod
    def remember(self, blank: Any) -> None:
        """Give every client the memory that an algorithm starts from: None, or tensors [1, k]."""

    def begin(self, round: int) -> None:
        """Start round r: its participants are drawn when the first phase asks for them."""
        self.round, self._cohort = round, None
        self._phase = self._draws = self._integers = self._pools = 0
        self._asked, self.left_out = [], []

    @abstractmethod
    def rollback(self) -> None:
        """Undo what the current round wrote to the clients' memory."""

    def alone(self, function: Callable[[], T]) -> T:
        """What a function gives that one process must call for all, such as an evaluation."""
        return function()

    def evaluate(
        self, problem: Problem, z: Tensor, splits: Mapping[str, Split], federation: Federation
    ) -> list[Evaluation]:
        """Measures of progress at the iterates z [R, 1, d], as `Problem.evaluate`, wherever the data are."""
        return self.alone(lambda: problem.evaluate(z, splits, federation))

    def snapshot(self) -> Any:
        """What a checkpoint keeps of the clients: which values they hold already, and what they remember."""
        held = tuple((name, place, torch.from_numpy(v.copy())) for (name, place), v in self._holds.items())
        return held, self._remembered()

    def recall(self, snapshot: Any) -> None:
        """Go back to a snapshot, after `remember`."""
        held, memory = snapshot
        self._holds = {(name, place): v.cpu().numpy() for name, place, v in held}
        if memory is not None:
            self._recall(*memory)

    def _remembered(self) -> tuple[Tensor, Any] | None:
        """The clients that have written to their memory, and its rows [m, k]; None where they keep it themselves."""
        return None

    def _recall(self, ids: Tensor, rows: Any) -> None:
        """Write these rows to these clients' memory."""

    def accounts(self) -> dict[str, Any]:
        """What was counted so far, as JSON, for a checkpoint."""
        traffic = {name: list(t) for name, t in self.traffic.by_phase.items()}
        return {"traffic": traffic, "setup": list(self.traffic.setup), "failures": self.failures}

    def restore(self, accounts: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        by_phase = {name: PhaseTraffic(*t) for name, t in accounts["traffic"].items()}
        self.traffic = Traffic(by_phase, PhaseTraffic(*accounts["setup"]))
        self.failures = accounts["failures"]

    def failed(self, error: Exception) -> None:
        """The run ends with this error: tell other processes that compute it."""

    @property
    def asked(self) -> list[int]:
        """The clients that were asked in this round (by any replica), in order."""
        if len(self._asked) == 1 and self._asked[0].ndim == 1:  # sorted and unique already
            ids: list[int] = self._asked[0].tolist()
            return ids
        ids = np.unique(np.concatenate([a.reshape(-1) for a in self._asked])).tolist() if self._asked else []
        return ids

    def take_accounts(self, other: Clients, replica: int) -> None:
        """Take over what another engine has counted for one of its replicas."""
        self.traffic = other.traffic.of(replica)
        self._asked = [ids[replica] for ids in other._asked]

    # ---- one phase ---------------------------------------------------------------------------------------

    def _participants(self) -> Draw:
        if self._cohort is None:
            self._cohort = self._draw(0)
        return self._cohort

    def _draw(self, draw: int) -> Draw:
        """Who takes part by the run's scheme: ids [S], or [R, S] with replicas."""
        round = max(self.round, 0)
        return self._for_each_seed(lambda seed: self.participation.draw(self.n_clients, seed, round, draw))

    def _for_each_seed(self, draw: Callable[[int], Draw]) -> Draw:
        """One run's draw as it is; replicas' draws as arrays [R, S], drawn once for those of the same seed."""
        drawn = {seed: draw(seed) for seed in dict.fromkeys(self.seeds)}
        if len(self.seeds) == 1:
            return drawn[self.seeds[0]]
        if len({len(d.ids) for d in drawn.values()}) > 1 or not all(d.answered.all() for d in drawn.values()):
            raise FedsaddleError(
                "replicas: every replica must have the same number of participants in a round, all of which answer; "
                "use Full, Uniform without replacement or Cyclic, without failures"
            )
        return Draw(*(np.stack(parts) for parts in zip(*(drawn[seed] for seed in self.seeds), strict=True)))

    def _exchange(
        self, work: Work, message: Any, who: Draw | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
        """Yield (ids, how often each was drawn, replies) of those who answer, part by part; count the traffic."""
        who = who or self._participants()
        if self.has_memory and (who.counts > 1).any():
            client, times = next((i, n) for i, n in zip(who.ids.flat, who.counts.flat, strict=True) if n > 1)
            raise FedsaddleError(
                f"{work.__qualname__.partition('.')[0]}: clients keep memory, so client {client} cannot take part {times} "
                f"times in round {self.round}; draw participants without replacement"
            )
        name, phase, self._phase = work.__name__, self._phase, self._phase + 1
        setup, replicas = self.round < 0, len(self.seeds)
        if not setup:
            self._asked.append(who.ids)
        asked = who.ids.shape[-1]
        check_rows(work.__qualname__, message, asked)
        down = numbers(message, asked) // replicas
        down = down + self._count_once(name, message, who.ids)
        up = answered = 0
        try:
            for at, replies in self._run(work, message, who, phase):
                ids = who.ids[..., at]
                check_reply(work.__qualname__, replies, ids.shape)
                if self.watched:
                    self._check_finite(work, replies, ids)
                up += numbers(replies) // replicas
                answered += len(at)
                self._mark_held(name, message, ids)
                yield ids, who.counts[..., at], replies
        finally:
            self.traffic.add(name, down, up, setup)
            self.failures += 0 if setup else asked - answered
        if answered == 0:
            raise NobodyAnswered(f"nobody answered phase {phase} ({name}) of round {self.round}")

    def _check_finite(self, work: Work, replies: Any, ids: np.ndarray) -> None:
        def check(r: Tensor) -> None:
            bad = (~r.isfinite()).any(-1)
            if bad.any():
                client = self.names[int(ids[bad.cpu().numpy()].flat[0])]
                owner = work.__qualname__.partition(".")[0]
                lr = getattr(getattr(work, "__self__", None), "lr", None)
                scale = 'scale the features ([data] scale = "standard"), or ' if self.unscaled else ""
                raise Diverged(
                    f"{owner}: diverged in round {self.round + 1}, what client {client!r} answers to {work.__name__} is "
                    f"not finite; {scale}lower the step size (lr is {lr})"
                )

        tree_map(check, replies)

    @abstractmethod
    def _run(self, work: Work, message: Any, who: Draw, phase: int) -> Iterator[tuple[np.ndarray, Any]]:
        """Run the work on these clients; yield, in one or several parts, who answered (their places in who.ids) and what."""

    def _held(self, name: str, message: Any) -> Iterator[tuple[np.ndarray, Once]]:
        for place, part in enumerate(onces(message)):
            blank = np.full((len(self.seeds), self.n_clients), -1)
            yield self._holds.setdefault(key(part, name, place), blank), part

    def _count_once(self, name: str, message: Any, ids: np.ndarray) -> Any:
        """Numbers that must be sent since some clients do not hold them: an int, or one a replica [R]."""
        down: Any = 0
        for held, once in self._held(name, message):
            missing = (np.take_along_axis(held, np.atleast_2d(ids), axis=1) != once.version).sum(1)
            down = down + once.value.numel() // len(self.seeds) * (
                missing if len(self.seeds) > 1 else int(missing[0])
            )
        return down

    def _mark_held(self, name: str, message: Any, ids: np.ndarray) -> None:
        for held, once in self._held(name, message):
            np.put_along_axis(held, np.atleast_2d(ids), once.version, axis=1)


def _clamped(batching: Batching, problem: Problem, federation: Federation) -> Batching:
    """Minibatches no larger than the largest client: more slots would stay empty."""
    # (slots of pairs are filled, and their number is that of the scores a client shares)
    fills = problem.pairwise or batching.sampling != "without_replacement"
    if batching.size is None or fills:
        return batching
    return batching._replace(size=min(batching.size, int(federation.sizes.max())))
