"""The `flower` engine: clients are sites that keep their data, reached through a Flower Grid.

The algorithm is the same object as in a simulation. A phase is one exchange of messages: the server names the client work,
and each site runs it on a cohort of one (`deploy/worker.py`). Minibatches are drawn from the same hash, by the site's
number, so a deployment computes what the simulation of the same sites computes.

Sites can be late, die, come back, or answer badly. A phase waits until every site that was asked has answered or its time is
over, and goes on if a quorum answered; who was left out, and why, is written into the history. A site that misses a phase is
not asked again in that round, as in a simulation with failures. A site that was restarted in the middle of its work is asked
again as soon as it is back; since work is a function of the message, the round and the site's memory, it does not matter how
often it is asked. What a site remembers stays there; the server knows which version each site has written
(`deploy/memory.py`).

Replies are taken in the order of the sites' numbers, whatever the order in which they arrive. Each.bits is not used on the
wire: quantised numbers travel as float32 so far.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsaddle.checkpoint import constants
from fedsaddle.clients import Clients, Task, Work
from fedsaddle.deploy.measured import AUC_TARGET, cuts_of, intervals, pooled_auc, tested, together
from fedsaddle.deploy.post import Answers, Ask, Post
from fedsaddle.deploy.protocol import Agreed, Head, Missing, Reply, Request, Tag
from fedsaddle.deploy.replies import check_finite, check_measured, check_size, odd_ones
from fedsaddle.engines import Engine
from fedsaddle.errors import ClientWorkError, FedsaddleError, NobodyAnswered, first_line
from fedsaddle.federation import Federation
from fedsaddle.messages import Control, Each, Once, key_on_wire
from fedsaddle.metrics import Evaluation, Split
from fedsaddle.participation import Draw
from fedsaddle.problem import Problem, tree_map
from fedsaddle.wire import Classes, Garbled, classes_of, pack, unpack


@dataclass(frozen=True)
class Deployment(Engine):
    """A run's sites, as an engine for `fedsaddle.train`.

    Args:
        post: reaches them.
        run: what the run is called at the sites, letters and digits; their memory is tied to it.
        config: of the run, as JSON, from which sites make the problem and the algorithm.
        constants: of scaling, as agreed over all sites.
        timeout: seconds that a phase waits for an answer.
        quorum: the share of those asked that must answer, in (0, 1]; else the round changes nothing.
        digests: of each site's data at set-up; a site whose data are others now is left out.
    """

    post: Post
    run: str
    config: str
    constants: Mapping[str, Tensor]
    timeout: float = 600.0
    quorum: float = 0.5
    digests: Sequence[str] = ()

    name = "flower"

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise FedsaddleError(f"deploy: timeout must be > 0 seconds, got {self.timeout}")
        if not 0 < self.quorum <= 1:
            raise FedsaddleError(f"deploy: quorum must be above 0 and at most 1, got {self.quorum}")

    def clients(self, task: Task) -> Clients:
        return Flower(self, task)


class Flower(Clients):
    """Clients that are sites; of their data the server knows sizes, names and classes."""

    remote = True

    def __init__(self, deployment: Deployment, task: Task) -> None:
        super().__init__(task, torch.device("cpu"))
        if len(self.seeds) > 1:
            raise FedsaddleError("replicas: engine 'flower' computes one run at a time; use 'stacked'")
        self._posed = self.problem
        self._deployment, self._post = deployment, deployment.post
        z = self.problem.init().to(self.dtype).unsqueeze(0)
        agreed = Agreed(
            deployment.run, deployment.config, tuple(deployment.constants.items()), *self.batching, z
        )
        self._session, self._numbers = pack(agreed), z.numel()
        self._digest = hashlib.sha256(self._session).hexdigest()
        self._joined: set[int] = set()  # sites that hold the session
        self._lacked: Counter[int] = Counter()  # how often in a row a site lacked what it had been sent
        self._relied: set[int] = set()  # sites whose last message left out what they should hold
        self._tags: list[Tag | None] = [
            None
        ] * self.n_clients  # the version of each site's memory; None: blank
        self._committed = list(self._tags)
        self._tested: dict[int, tuple[int, int]] = {}  # test samples of sites, negatives and positives
        self._missed: set[int] = set()  # the round's own participants that missed one of its phases
        self.phase_seconds: list[float] = []

    # ---- memory, which is at the sites -------------------------------------------------------------------

    def remember(self, blank: Any) -> None:
        self.has_memory = blank is not None
        self._tags = [None] * self.n_clients
        self._committed = list(self._tags)

    def forget(self) -> None:
        self._tags = [None] * self.n_clients

    def begin(self, round: int) -> None:
        super().begin(round)
        self._committed, self._missed = list(self._tags), set()

    def rollback(self) -> None:
        self._tags = list(self._committed)

    def accounts(self) -> dict[str, Any]:
        return super().accounts() | {"memory": self._tags}

    def restore(self, accounts: Mapping[str, Any]) -> None:
        super().restore(accounts)
        self._tags = [None if tag is None else (tag[0], tag[1]) for tag in accounts["memory"]]
        self._committed = list(self._tags)

    # ---- one phase ---------------------------------------------------------------------------------------

    def _run(self, work: Work, message: Any, who: Draw, phase: int) -> Iterator[tuple[np.ndarray, Any]]:
        owner: Any = work.__self__  # type: ignore[attr-defined]
        classes = classes_of(self.algorithm, self.problem)
        name = f"{'problem' if isinstance(owner, Problem) else 'algorithm'}.{work.__name__}"
        place = {int(client): at for at, client in enumerate(who.ids)}
        own_round = who is self._cohort
        asked = [i for i, at in place.items() if who.answered[at] and not (own_round and i in self._missed)]
        head = {"action": "work", "work": name, "remembers": self.has_memory, "phase": phase}
        letter = _Letter(work.__name__, constants(self.problem, self._posed), message)
        held = {i: self._held_by(i, work.__name__, message) for i in asked}

        def ask(i: int) -> Ask:
            def request(full: bool) -> Request:
                full = full or self._forgets(i)
                details = head | {"client": i, "base": self._tags[i], "committed": self._committed[i]}
                shared = letter.shared(frozenset() if full else held[i])
                return self._request(i, details, letter.own(place[i]), shared, full)

            return request

        def check(i: int, reply: Reply) -> tuple[Any, bool]:
            tree = self._checked(i, reply, head | {"round": self.round}, classes)
            check_finite(tree)
            return tree, bool(reply.head.get("wrote"))

        started = time.perf_counter()
        need = self._needed(int(who.answered.sum()))
        answers = self._post.ask({i: ask(i) for i in asked}, self._deployment.timeout, check, need)
        self.phase_seconds.append(time.perf_counter() - started)
        absent = self._missed.intersection(place) if own_round else set()
        replies = self._alike(answers, work.__name__, absent)
        self._leave_out(work.__name__, answers.left_out, own_round)
        self._require(need, work, phase, replies, answers)
        for i, (_, wrote) in replies.items():
            if wrote:
                self._tags[i] = (self.round, phase)
        if replies:
            at = np.array([place[i] for i in replies])
            yield at, tree_map(lambda *rows: torch.cat(rows, -2), *(tree for tree, _ in replies.values()))

    def _alike(self, answers: Answers, work: str, absent: set[int]) -> dict[int, tuple[Any, bool]]:
        """The replies of one form; who answers otherwise, or was not asked any more, is noted as left out."""
        replies = dict(answers.replies)
        for i, reason in odd_ones(
            {i: tree for i, (tree, _) in replies.items()}, self._post.names, work
        ).items():
            del replies[i]
            answers.left_out[i] = reason
        for i in sorted(absent):
            answers.left_out.setdefault(i, "missed an earlier phase of the round")
        return replies

    def _needed(self, asked: int) -> int:
        """How many of those who are asked must answer."""
        return asked if self.round < 0 else math.ceil(self._deployment.quorum * asked)

    def _require(
        self, need: int, work: Work, phase: int, replies: Mapping[int, Any], answers: Answers
    ) -> None:
        """Refuse a phase that too few answered."""
        reasons = "; ".join(f"{self._post.names[i]}: {why}" for i, why in answers.left_out.items())
        if not replies and answers.refused >= answers.left_out.keys():
            raise ClientWorkError(f"{work.__name__}: no site could do it: {reasons}")
        if self.round < 0 and answers.left_out:
            raise FedsaddleError(f"set-up needs an answer of every site ({work.__name__}): {reasons}")
        if len(replies) < need:
            raise NobodyAnswered(
                f"{len(replies)} sites answered phase {phase} ({work.__name__}) of round {self.round}, the quorum is "
                f"{need}: {reasons}"
            )

    def _leave_out(self, phase: str, who: Mapping[int, str], own_round: bool = False) -> None:
        for i, reason in sorted(who.items()):
            self.left_out.append({"site": self._post.names[i], "phase": phase, "reason": reason})
            if own_round:
                self._missed.add(i)

    # ---- messages ----------------------------------------------------------------------------------------

    def _request(self, i: int, head: Head, own: bytes, shared: bytes, full: bool) -> Request:
        head = head | {"run": self._deployment.run, "round": self.round, "session": self._digest}
        if self._deployment.digests:
            head["data"] = self._deployment.digests[i]
        relies = i in self._joined and not full
        (self._relied.add if relies else self._relied.discard)(i)
        return Request(head, own, shared, b"" if relies else self._session)

    def _forgets(self, i: int) -> bool:
        """Whether a site holds nothing from message to message, as under Flower's own SuperNode, a process each."""
        return self._lacked[i] >= 2

    def _checked(self, i: int, reply: Reply, head: Head, classes: Classes) -> Any:
        """What a site answers; raises Missing, or an error that says why the reply cannot be used."""
        got = reply.head
        wanted = {k: head[k] for k in ("action", "round", "phase")} | {"run": self._deployment.run}
        if any(got.get(k) != v for k, v in wanted.items()):
            what = f"round {got.get('round')}, phase {got.get('phase')}"
            if got.get("run") != self._deployment.run:
                what = f"run {got.get('run')!r}"
            raise FedsaddleError(
                f"its answer is refused: it is for {what}, not for round {head['round']}, phase {head['phase']}"
            )
        if got.get("status") == "missing":
            self._lacked[i] += 1
            raise Missing
        if got.get("status") != "done":
            raise ClientWorkError(str(got.get("reason", "the site gives no reason")))
        self._joined.add(i)
        if i in self._relied:  # it holds what it was sent: if it lacked something, it had been restarted
            self._lacked[i] = 0
        check_size(reply.body, self._numbers)
        try:
            return unpack(reply.body, classes)
        except Garbled as error:
            raise FedsaddleError(f"its answer is refused: {error}") from error

    def _held_by(self, i: int, name: str, message: Any) -> frozenset[str]:
        held = enumerate(self._held(name, message))
        return frozenset(
            key_on_wire(once, name, k) for k, (versions, once) in held if versions[0, i] == once.version
        )

    # ---- evaluation, at the sites ------------------------------------------------------------------------

    def evaluate(
        self, problem: Problem, z: Tensor, splits: Mapping[str, Split], federation: Federation
    ) -> list[Evaluation]:
        """Each site measures on its own data; the AUC over all of them comes from histograms of scores."""
        (point,) = z
        first = self._measure(0, (point, AUC_TARGET, None))
        sketches = [tree for tree, _ in first.values()]
        on_test = all("test" in head.get("sizes", {}) for _, head in first.values())
        self.evaluated_on = "test" if on_test else "train"
        values: dict[str, float] = {}
        self.auc_intervals = {}
        if any(part is not None for sketch in sketches for part in sketch):
            counts = self._measure(1, (point, AUC_TARGET, cuts_of(sketches)), list(first))
            values = pooled_auc([tree for tree, _ in counts.values()])
            self.auc_intervals = intervals([tree for tree, _ in counts.values()])
            self._count_tested(problem, {i: tree for i, (tree, _) in first.items()})
        shares = self.shares()  # as in a simulation
        weights = torch.ones(self.n_clients) if shares is None else shares
        return [together(values, {i: head for i, (_, head) in first.items()}, weights.tolist())]

    def _count_tested(self, problem: Problem, sketches: Mapping[int, Any]) -> None:
        """Note the sites' test samples of each class, of a site that did not answer now as it said before."""
        self._tested |= {i: tested(sketch) for i, sketch in sketches.items()}
        positive = getattr(problem, "positive", None)
        if len(self.federation.classes) != 2 or positive not in (0, 1) or len(self._tested) < self.n_clients:
            return
        rows = [list(self._tested[i]) for i in range(self.n_clients)]
        if any(map(sum, rows)):
            self.test_class_counts = rows if positive == 1 else [row[::-1] for row in rows]

    def _measure(
        self, phase: int, message: Any, who: Sequence[int] | None = None
    ) -> dict[int, tuple[Any, Head]]:
        head = {"action": "evaluate", "phase": phase}
        shared = pack((constants(self.problem, self._posed), message))

        def ask(i: int) -> Ask:
            return lambda full: self._request(i, head | {"client": i}, b"", shared, full or self._forgets(i))

        def check(i: int, reply: Reply) -> tuple[Any, Head]:
            tree = self._checked(i, reply, head | {"round": self.round}, {})
            try:
                check_measured(tree, reply.head, message[2], AUC_TARGET)
            except Exception as error:
                raise FedsaddleError(
                    f"its answer is refused: no measurement ({first_line(error)})"
                ) from error
            return tree, reply.head

        everyone = range(self.n_clients) if who is None else who
        answers = self._post.ask({i: ask(i) for i in everyone}, self._deployment.timeout, check, enough=1)
        self._leave_out("evaluate", answers.left_out)
        return answers.replies


class _Letter:
    """What a phase sends: what all sites get, packed once for those that hold the same, and the rows of each site.

    Args:
        work: the name of the client work.
        constants: of the problem.
        message: as the algorithm has it.
    """

    def __init__(self, work: str, constants: Any, message: Any) -> None:
        self._work = work
        self._rows: list[Tensor] = []  # [M, k] each, one row a participant
        self._packed: dict[frozenset[str], bytes] = {}
        content = tree_map(lambda control: control.value, message, of=(Control,))
        self._all = constants, tree_map(self._apart, content, of=(Each,))

    def _apart(self, each: Each) -> Each:
        self._rows.append(each.value)
        return Each(None)

    def own(self, place: int) -> bytes:
        """Of the participant at this place."""
        return pack(tuple(value[place : place + 1] for value in self._rows))

    def shared(self, held: frozenset[str]) -> bytes:
        """For sites that hold the parts of these keys."""

        def once(part: Once, k: int) -> tuple[str, bool]:
            key = key_on_wire(part, self._work, k)
            return key, key not in held

        if held not in self._packed:
            self._packed[held] = pack(self._all, once)
        return self._packed[held]
