"""Who takes part in a round: full, uniform, independent, cyclic groups, Markov availability, recorded trace.

A scheme is a frozen dataclass, and `scheme.draw(n, seed, round, draw)` a pure function: the simulator,
several processes and a deployment draw the same clients, and a resumed run continues exactly.
Rounds count from 0.

    >>> Cyclic(groups=2).draw(n=4, seed=0, round=1).ids
    array([2, 3])

Every random number comes from `np.random.default_rng([tag, seed, round, draw])`, one tag for each purpose:

    tag           | purpose                                            | round, draw
    _ASKED        | who is asked                                       | as given
    _FAILED       | who of those does not answer (scheme's `failure`)  | as given
    _SHUFFLED     | which clients share a group (`Cyclic`)             | 0, 0
    _AVAILABLE    | who is available (`Markov`)                        | as given, 0

So a different `failure` leaves the asked clients as they are, and a larger one only adds clients that fail.
"""

import csv
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedsaddle.errors import FedsaddleError

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
Shares = NDArray[np.float64]

_ASKED, _FAILED, _SHUFFLED, _AVAILABLE = 0x70A1, 0x70A2, 0x70A3, 0x70A4
_FEWEST_DRAWS, _MOST_DRAWS, _MOST_NUMBERS = 50, 5_000, 10_000_000  # to average over


def _rng(tag: int, seed: int, round: int = 0, draw: int = 0) -> np.random.Generator:
    return np.random.default_rng([tag, seed, round, draw])


class Draw(NamedTuple):
    """The clients of one draw; all three arrays have one entry for each client asked."""

    ids: Ids  # sorted and unique
    counts: Ids  # how often each was drawn: 1 unless drawn with replacement
    answered: Mask  # False: asked, but fails


@dataclass(frozen=True)
class Participation(ABC):
    """Base of the schemes. A new one writes `ask`, `validate` if it has more to check, and `shares` where they are known.

    failure: probability in [0, 1) that a client that was asked does not answer, independently of all else.
    """

    failure: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        for f in fields(self):  # so that a scheme given lists or arrays still compares, hashes and serialises
            object.__setattr__(self, f.name, _plain(getattr(self, f.name)))
        if not 0 <= self.failure < 1:
            raise self._error("failure must be at least 0 and below 1", self.failure)

    @abstractmethod
    def ask(self, n: int, seed: int, round: int, draw: int) -> Ids:
        """Ids of the clients asked, in any order, as often as each was drawn."""

    def validate(self, n: int) -> None:
        """Raise FedsaddleError if the scheme does not fit n clients; called once, when a run starts."""
        if n < 1:
            raise self._error("a run must have at least one client", n)

    @property
    def period(self) -> int:
        """Rounds after which the scheme begins again: one pass over all groups."""
        return 1

    def shares(self, n: int, seed: int, weights: Shares | None = None) -> Shares | None:
        """What the n clients weigh in a round's mean, on the average of many rounds: [n], sum 1; None where it is not known.

        As here; a scheme in which all clients come alike may return `self.alike(n, weights)`.

        Args:
            weights: how the clients count in a mean [n]; None: all equally.
        """
        return None

    def alike(self, n: int, weights: Shares | None, draws: int = _MOST_DRAWS) -> Shares:
        """The shares where all clients come alike: 1/n, or with weights the average of so many draws.

        Who weighs much then weighs less than in proportion: the mean of the rounds without that client is of the others.
        """
        if weights is None or (weights == weights[0]).all():
            return np.full(n, 1 / n)
        return _averaged(self, n, weights.tobytes(), draws).copy()

    def draw(self, n: int, seed: int, round: int, draw: int = 0) -> Draw:
        """Who of the n clients takes part in a round; `draw` numbers independent draws within the round."""
        return self.ask_these(self.ask(n, seed, round, draw), seed, round, draw)

    def ask_these(self, asked: Ids, seed: int, round: int, draw: int) -> Draw:
        """The draw of given clients (as often as each was drawn), some of which fail to answer."""
        ids, counts = np.sort(asked), np.ones(len(asked), dtype=np.int64)
        if (ids[1:] == ids[:-1]).any():
            ids, counts = np.unique(asked, return_counts=True)
        answered = np.ones(len(ids), dtype=bool)
        if self.failure:
            answered = _rng(_FAILED, seed, round, draw).random(len(ids)) >= self.failure
        return Draw(ids, counts.astype(np.int64, copy=False), answered)

    def _error(self, rule: str, value: object) -> FedsaddleError:
        return FedsaddleError(f"{type(self).__name__}: {rule}, got {value}")

    def _check_m(self, m: int, most: int, whom: str = "") -> None:
        if not isinstance(m, int):
            raise self._error("m must be a whole number", m)
        if not 1 <= m <= most:
            raise self._error(f"m must be between 1 and the {most} clients{whom}", m)

    def _check_ids(self, ids: Ids, n: int, where: str) -> None:
        outside = ids[(ids < 0) | (ids >= n)]
        if outside.size:
            raise self._error(f"client ids must be from 0 to {n - 1}", f"{outside[0]} in {where}")


@dataclass(frozen=True)
class Full(Participation):
    """Every client, every round."""

    def shares(self, n: int, seed: int, weights: Shares | None = None) -> Shares | None:
        return self.alike(n, weights) if weights is None or self.failure else weights / weights.sum()

    def ask(self, n: int, seed: int, round: int, draw: int) -> Ids:
        return np.arange(n, dtype=np.int64)


@dataclass(frozen=True)
class Uniform(Participation):
    """m clients uniformly at random; costs O(m), however many clients there are.

    replacement: draw m times from all clients, so that `counts` sums to m and m may exceed n.
    """

    m: int
    replacement: bool = False

    def shares(self, n: int, seed: int, weights: Shares | None = None) -> Shares:
        return self.alike(n, weights)

    def alike(self, n: int, weights: Shares | None, draws: int = _MOST_DRAWS) -> Shares:
        if self.m == n and not self.replacement and not self.failure and weights is not None:
            return np.asarray(weights / weights.sum())
        return super().alike(n, weights if self.m > 1 else None, draws)  # who is alone is the mean

    def validate(self, n: int) -> None:
        super().validate(n)
        if not self.replacement:
            self._check_m(self.m, n)
        elif not isinstance(self.m, int) or self.m < 1:
            raise self._error("m must be a whole number, at least 1", self.m)

    def ask(self, n: int, seed: int, round: int, draw: int) -> Ids:
        rng = _rng(_ASKED, seed, round, draw)
        return rng.integers(n, size=self.m) if self.replacement else _choose(rng, n, self.m)


@dataclass(frozen=True)
class Independent(Participation):
    """Each client by its own coin, with probability p (a number, or one for each client); may be nobody."""

    p: float | Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        p = np.atleast_1d(self._p)
        bad = p[~((p >= 0) & (p <= 1))]  # written so that nan is bad
        if bad.size:
            raise self._error("p must be between 0 and 1", bad[0])
        if not p.any():
            raise self._error("p must be above 0 for some client", "only zeros")

    def validate(self, n: int) -> None:
        super().validate(n)
        if self._p.shape not in ((), (n,)):
            raise self._error(f"p must be one number or one for each of the {n} clients", self._p.size)

    def shares(self, n: int, seed: int, weights: Shares | None = None) -> Shares | None:
        return self.alike(n, weights) if (self._p == self._p.flat[0]).all() else None

    def ask(self, n: int, seed: int, round: int, draw: int) -> Ids:
        return np.flatnonzero(_rng(_ASKED, seed, round, draw).random(n) < self._p)

    @cached_property
    def _p(self) -> NDArray[np.float64]:
        return np.asarray(self.p, dtype=np.float64)


@dataclass(frozen=True)
class Cyclic(Participation):
    """Groups of clients in a fixed order: round r visits group r mod G.

    groups:  G, for consecutive ids in groups as equal as possible; or the ids of each group; or one label for
             each client (groups then come in sorted order of their labels). Every client is in one group.
    m:       how many of the active group, uniformly without replacement; default all.
    shuffle: keep the sizes of the groups, but assign clients to them at random by the seed.
    """

    groups: int | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
    m: int | None = None
    shuffle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        groups = self.groups
        if isinstance(groups, int):
            return
        if not isinstance(groups, tuple) or not groups or len({isinstance(g, tuple) for g in groups}) > 1:
            rule = "groups must be a whole number, lists of client ids, or one label for each client"
            raise self._error(rule, str(groups)[:60])
        for g, ids in enumerate(groups):
            if isinstance(ids, tuple) and not (ids and _are_ids(ids)):
                raise self._error(f"group {g} must be a list of one or more client ids", str(ids)[:60])

    def validate(self, n: int) -> None:
        super().validate(n)
        if isinstance(self.groups, int):
            if not 1 <= self.groups <= n:
                raise self._error(f"groups must be between 1 and the {n} clients", self.groups)
            smallest = n // self.groups
        else:
            self._check_members(n)
            smallest = min(map(len, self._members))
        if self.m is not None:
            self._check_m(self.m, smallest, " of the smallest group")

    @property
    def period(self) -> int:
        return self.groups if isinstance(self.groups, int) else len(self._members)

    def _check_members(self, n: int) -> None:
        groups = cast(tuple[Any, ...], self.groups)
        if not isinstance(groups[0], tuple) and len(groups) != n:
            raise self._error(f"groups must give one label for each of the {n} clients", len(groups))
        for g, members in enumerate(self._members):
            self._check_ids(members, n, f"group {g}")
        times = np.bincount(np.concatenate(self._members), minlength=n)
        wrong = np.flatnonzero(times != 1)
        if wrong.size:
            got = f"client {wrong[0]} in {times[wrong[0]]}"
            raise self._error(f"each of the {n} clients must be in one group", got)

    def shares(self, n: int, seed: int, weights: Shares | None = None) -> Shares:
        """Groups weigh equally, and within its group each member, however large the group is (CyCp eq. (4)).

        Visits in which nobody answers do not count.
        """
        by = None if weights is None else weights.tobytes()
        return _of_groups(self, n, seed if self.shuffle else 0, by).copy()

    def ask(self, n: int, seed: int, round: int, draw: int) -> Ids:
        if isinstance(self.groups, int):
            g, (size, larger) = round % self.groups, divmod(n, self.groups)  # the first n mod G have one more
            start = g * size + min(g, larger)
            members = np.arange(start, start + size + (g < larger), dtype=np.int64)
        else:
            members = self._members[round % len(self._members)]
        if self.m is not None:
            members = members[_choose(_rng(_ASKED, seed, round, draw), len(members), self.m)]
        return _permutation(n, seed)[members] if self.shuffle else members

    @cached_property
    def _members(self) -> list[Ids]:
        groups = cast(tuple[Any, ...], self.groups)
        if isinstance(groups[0], tuple):
            return [np.asarray(ids, dtype=np.int64) for ids in groups]
        _, group, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
        return np.split(np.argsort(group, kind="stable"), np.cumsum(sizes)[:-1])


@dataclass(frozen=True)
class Markov(Participation):
    """Each client is an on/off chain; those that are on take part, at most m of them; may be nobody.

    From one round to the next, off -> on with probability p_on in (0, 1] and on -> off with p_off in [0, 1].
    Chains start in their stationary distribution: in any round a client is on with p_on / (p_on + p_off).
    m: at most this many of those on, uniformly without replacement; default all.
    """

    p_on: float
    p_off: float
    m: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p_on <= 1:
            raise self._error("p_on must be above 0 and at most 1", self.p_on)
        if not 0 <= self.p_off <= 1:
            raise self._error("p_off must be between 0 and 1", self.p_off)

    def validate(self, n: int) -> None:
        super().validate(n)
        if self.m is not None:
            self._check_m(self.m, n)

    def ask(self, n: int, seed: int, round: int, draw: int) -> Ids:
        on = np.flatnonzero(_available(self.p_on, self.p_off, n, seed, round))
        if self.m is None or len(on) <= self.m:
            return on
        return on[_choose(_rng(_ASKED, seed, round, draw), len(on), self.m)]

    def shares(self, n: int, seed: int, weights: Shares | None = None) -> Shares:
        return self.alike(n, weights)


@dataclass(frozen=True)
class Trace(Participation):
    """Replay of a recorded schedule; all draws by the scheme within a round are the recorded one.

    A method that asks for clients of its own (`Clients.sample(m)`: a large cohort of spider and svrg, DRFA's
    clients) draws them from all, whoever was recorded.

    rounds: the client ids of each round (an id given twice was drawn twice); or the path of a file.
            A `.csv` file has the columns round,client; any other is JSON lines such as a run's history.jsonl,
            where records without the keys "round" and "clients" are passed over. The rounds of a file are in
            any order, without gaps, numbered from 0 or from 1; the first is replayed in round 0.
    """

    rounds: str | Path | Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self._schedule:
            raise self._error("rounds must have at least one round", "none")

    def validate(self, n: int) -> None:
        super().validate(n)
        for round, ids in enumerate(self._schedule):
            self._check_ids(ids, n, f"round {round}")

    def ask(self, n: int, seed: int, round: int, draw: int) -> Ids:
        recorded = len(self._schedule)
        if round >= recorded:
            remedy = f"train for at most {recorded} rounds or record more"
            raise self._error(f"round must be below the {recorded} recorded rounds", f"{round}; {remedy}")
        return self._schedule[round]

    @cached_property
    def _schedule(self) -> list[Ids]:
        rounds = _read(self.rounds) if isinstance(self.rounds, str) else cast(Sequence[Any], self.rounds)
        for round, ids in enumerate(rounds):
            if not _are_ids(ids):
                raise self._error(f"round {round} must be a list of client ids", str(ids)[:60])
        return [np.asarray(ids, dtype=np.int64) for ids in rounds]


PARTICIPATION: dict[str, type[Participation]] = {
    "full": Full,
    "uniform": Uniform,
    "independent": Independent,
    "cyclic": Cyclic,
    "markov": Markov,
    "trace": Trace,
}


def calendar(scheme: Participation, n: int, seed: int, rounds: int) -> Mask:
    """Who takes part when, for pictures: [rounds, n], True for a client asked (draw 0) that answers."""
    scheme.validate(n)
    taking_part = np.zeros((rounds, n), dtype=np.bool_)
    for round in range(rounds):
        ids, _, answered = scheme.draw(n, seed, round)
        taking_part[round, ids[answered]] = True
    return taking_part


@lru_cache(maxsize=64)
def _averaged(scheme: Participation, n: int, weights: bytes, draws: int) -> Shares:
    return _average(scheme, n, np.frombuffer(weights), draws)


@lru_cache(maxsize=64)
def _of_groups(scheme: Cyclic, n: int, seed: int, weights: bytes | None) -> Shares:
    return _by_groups(scheme, n, seed, None if weights is None else np.frombuffer(weights))


def _by_groups(scheme: Cyclic, n: int, seed: int, w: Shares | None) -> Shares:
    """The shares under cyclic groups, whose visits have the draws of one scheme among them, so that many cost no more."""
    everyone, q = Cyclic(scheme.groups, shuffle=scheme.shuffle), np.empty(n)
    draws = max(_FEWEST_DRAWS, _MOST_DRAWS // scheme.period)
    for g in range(scheme.period):
        members = everyone.ask(n, seed, g, 0)
        visit = Uniform(scheme.m or len(members), failure=scheme.failure)
        own = visit.alike(len(members), None if w is None else w[members], draws)
        q[members] = own * (1 - scheme.failure**visit.m)
    return np.asarray(q / q.sum())


def _average(scheme: Participation, n: int, w: Shares, draws: int) -> Shares:
    """What clients of these weights w weigh in the mean of a round, where any set of k is as likely as another.

    Client i is in a share k/n of the rounds, as w_i / (w_i + W), where those who weigh W are any k - 1 of the rest (drawn
    with replacement: of all). So every draw, less one client, says something of each client.
    """
    q, rng = np.zeros(n), np.random.default_rng(0)
    again = isinstance(scheme, Uniform) and scheme.replacement
    for round in range(max(_FEWEST_DRAWS, min(draws, _MOST_NUMBERS // n))):
        ids, counts, answered = scheme.draw(n, 0, round)
        here = np.repeat(ids, counts * answered)
        if len(here):
            others = np.full(n, w[here].sum() - w[rng.choice(here)])
            if not again:
                others[here] = w[here].sum() - w[here]
            q += len(here) * w / (w + others)
    return np.asarray(q / q.sum())


def _choose(rng: np.random.Generator, n: int, m: int) -> Ids:
    return rng.choice(n, size=m, replace=False, shuffle=False)  # Floyd's algorithm, O(m), when m << n


@lru_cache(maxsize=4)
def _permutation(n: int, seed: int) -> Ids:
    return _rng(_SHUFFLED, seed).permutation(n)


def _available(p_on: float, p_off: float, n: int, seed: int, round: int) -> Mask:
    """State of all n chains in a round, a pure function although round t follows from round t - 1.

    A client moves in round t by one uniform u: it is on if u < p_on (was off) or u < 1 - p_off (was on). A u
    below both or above both decides, whatever the state was before; in between, the client keeps its state
    (or flips it, where p_on > 1 - p_off). Looking back from `round`, we stop when all clients are decided, at
    round 0, or at the state that the last call left behind: one round back in a run, and the same either way.
    """
    memo = _last_state(p_on, p_off, n, seed)
    known_round, known = memo[0] if memo else (-1, np.zeros(0, np.bool_))
    low, high, flips = min(p_on, 1 - p_off), max(p_on, 1 - p_off), p_on > 1 - p_off
    on, flipped, undecided = np.zeros(n, np.bool_), False, np.ones(n, np.bool_)
    for t in range(round, -1, -1):
        if t == known_round:
            on[undecided] = known[undecided] ^ flipped
            break
        u = _rng(_AVAILABLE, seed, t).random(n)
        if t == 0:
            low = high = p_on / (p_on + p_off)
        decided = undecided & ((u < low) | (u >= high))
        on[decided] = (u[decided] < low) ^ flipped
        undecided &= ~decided
        flipped ^= flips
        if not undecided.any():
            break
    memo[:] = [(round, on)]
    return on


@lru_cache(maxsize=16)
def _last_state(p_on: float, p_off: float, n: int, seed: int) -> list[tuple[int, Mask]]:
    return []  # a cell for _available: empty, or the (round, state) that it computed last


def _are_ids(ids: Any) -> bool:
    return isinstance(ids, list | tuple) and all(isinstance(i, int) for i in ids)


def _plain(value: Any) -> Any:
    """Arrays and lists as tuples, NumPy scalars as Python's, paths as strings."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple | range) else value


def _read(path: str) -> list[list[int]]:
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FedsaddleError(f"Trace: rounds must be a readable text file, got {path}: {error}") from None
    rounds = _read_csv(path, lines) if path.endswith(".csv") else _read_jsonl(path, lines)
    if not rounds:
        raise FedsaddleError(f"Trace: {path} must say which clients took part in a round, got no such record")
    first, last = min(rounds), max(rounds)
    if first not in (0, 1):
        raise FedsaddleError(f"Trace: {path} must number its rounds from 0 or 1, got {first} as the first")
    for round in range(first, last):
        if round not in rounds:
            raise FedsaddleError(
                f"Trace: {path} must have every round from {first} to {last}, got no round {round}; "
                'write a round without clients as {"round": ..., "clients": []} in JSON lines'
            )
    return [rounds[round] for round in range(first, last + 1)]


def _read_jsonl(path: str, lines: list[str]) -> dict[int, list[int]]:
    rounds: dict[int, list[int]] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.strip() or "{}")
        except json.JSONDecodeError:
            record = None
        if not isinstance(record, dict):
            raise FedsaddleError(f"Trace: {path} line {number} must be a JSON object, got {line[:60]}")
        if "round" not in record or "clients" not in record:
            continue
        if not isinstance(record["round"], int) or record["round"] in rounds:
            got = record["round"]
            raise FedsaddleError(f"Trace: {path} line {number} must have its own round number, got {got}")
        rounds[record["round"]] = record["clients"]
    return rounds


def _read_csv(path: str, lines: list[str]) -> dict[int, list[int]]:
    rounds: dict[int, list[int]] = {}
    reader = csv.DictReader(lines, skipinitialspace=True)
    for row in reader:
        try:
            rounds.setdefault(int(row["round"]), []).append(int(row["client"]))
        except (KeyError, TypeError, ValueError):
            rule = f"{path} line {reader.line_num} must have whole numbers in the columns round,client"
            raise FedsaddleError(f"Trace: {rule}, got {row}") from None
    return rounds
