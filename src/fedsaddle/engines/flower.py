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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from torch import Tensor

from fedsaddle import metrics
from fedsaddle.checkpoint import constants
from fedsaddle.clients import Clients, ClientWorkError, Control, Each, NobodyAnswered, Once, Work
from fedsaddle.cohort import Batching
from fedsaddle.deploy.protocol import ACTION, Head, Reply, Request, Tag
from fedsaddle.deploy.worker import SPLITS, Agreed, Missing
from fedsaddle.engines import Engine
from fedsaddle.engines.simulation import clamped
from fedsaddle.errors import FedsaddleError, first_line
from fedsaddle.federation import Federation
from fedsaddle.histograms import auc_from_histograms, edges
from fedsaddle.metrics import Evaluation, Split
from fedsaddle.participation import Draw, Participation
from fedsaddle.problem import Problem, tree_map
from fedsaddle.wire import Classes, Garbled, classes_of, pack, signature, tensors_of, unpack

_LONGEST_REASON = 300  # characters of what a site says
_LARGEST = 1e300  # number in a measurement
_AUC_TARGET = 1e-3  # how far the AUC over all sites may be off
_MOST_SCORES = 1e12  # of one class at a site, that are believed

Ask = Callable[[bool], Request]  # whether to send what the site should hold already -> the message
Check = Callable[[int, Reply], Any]  # raises Missing, or a FedsaddleError whose reply is then left out


class Answers(NamedTuple):
    """How an exchange ended."""

    replies: dict[int, Any]  # by site, in their order
    left_out: dict[int, str]  # and why
    refused: set[int]  # of those left out, the ones that said themselves that they cannot


class Post:
    """Messages to sites and their replies, over a Flower Grid.

    Args:
        grid: of the run, from Flower.
        sites: names of the sites, whose places are their numbers, with their public keys as Flower gives them.
        interval: seconds between two looks for replies, at most.
        look: seconds between two looks at who is connected.
    """

    def __init__(
        self, grid: Grid, sites: Mapping[str, bytes], interval: float = 1.0, look: float = 1.0
    ) -> None:
        self._grid, self._interval, self._look = grid, interval, look
        self.names = tuple(sites)
        self._number = {key: i for i, key in enumerate(sites.values())}

    def rename(self, names: Mapping[int, str]) -> None:
        """Call the sites by their own names, and number them in that order."""
        order = sorted(names, key=lambda i: names[i])
        self.names = tuple(names[i] for i in order)
        place = {old: new for new, old in enumerate(order)}
        self._number = {key: place[i] for key, i in self._number.items()}

    def connected(self) -> dict[int, NodeInfo]:
        """The sites that are connected, by number. Nodes with other keys are none of ours."""
        nodes = self._grid.get_nodes()
        found = ((self._number.get(node.public_key), node) for node in nodes)
        return {i: node for i, node in sorted((i, n) for i, n in found if i is not None)}

    def ask(self, to: Mapping[int, Ask], timeout: float, check: Check, enough: int) -> Answers:
        """Send each site its message and wait for the replies, at most so many seconds.

        Args:
            enough: with so many replies, sites that have not been connected since the beginning are not waited for.
        """
        replies: dict[int, Any] = {}
        left_out: dict[int, str] = {}
        waiting, refused = dict(to), set[int]()
        asked: dict[int, str] = {}  # when the site that was asked had connected
        mail: dict[str, int] = {}  # message -> site
        said: dict[int, str] = {}  # what Flower says of a message that got lost
        nodes: dict[int, NodeInfo] = {}
        started, next_look = time.monotonic(), 0.0
        deadline = started + timeout
        while waiting and time.monotonic() < deadline:
            if time.monotonic() >= next_look:
                nodes, next_look = self.connected(), time.monotonic() + self._look
                new = {i: n for i, n in nodes.items() if i in waiting and asked.get(i) != n.last_activated_at}
                # asked before: the site has been restarted, and has lost the message and what it was sent earlier
                mail |= self._send({n.node_id: (i, waiting[i](i in asked)) for i, n in new.items()}, timeout)
                asked |= {i: n.last_activated_at for i, n in new.items()}
            again: dict[int, tuple[int, Request]] = {}
            for message in self._grid.pull_messages(list(mail)) if mail else ():
                i = mail.pop(message.metadata.reply_to_message_id, None)
                if i is None or i not in waiting:
                    continue  # answered twice, or asked twice: the first answer counts
                if message.has_error():
                    said[i] = message.error.reason or "its message got lost"
                    continue
                try:
                    replies[i] = check(i, Reply.of(message.content))
                    del waiting[i]
                except Missing:
                    again[message.metadata.src_node_id] = i, waiting[i](True)
                except FedsaddleError as error:
                    left_out[i] = str(error)[:_LONGEST_REASON]
                    refused |= {i} if isinstance(error, ClientWorkError) else set()
                    del waiting[i]
                except Exception as error:  # bytes of a site must not end the run
                    left_out[i] = f"its answer is refused: {type(error).__name__}: {first_line(error)}"
                    del waiting[i]
            mail |= self._send(again, timeout)
            if len(replies) >= enough and not waiting.keys() & asked.keys():
                break  # the others are not connected
            if waiting:
                time.sleep(min(self._interval, 0.1 + (time.monotonic() - started) / 10))
        for i in waiting:
            late = f"no answer in {timeout:g} seconds"
            left_out[i] = f"{late} ({said[i]})" if i in said else late if i in nodes else "not connected"
        return Answers(dict(sorted(replies.items())), dict(sorted(left_out.items())), refused)

    def _send(self, to: Mapping[int, tuple[int, Request]], ttl: float) -> dict[str, int]:
        """Message ids with the site that each is for."""
        if not to:
            return {}
        messages = [
            Message(
                request.record(), node, ACTION, ttl=max(ttl, 1.0), group_id=str(request.head.get("round", ""))
            )
            for node, (_, request) in to.items()
        ]
        ids = self._grid.push_messages(messages)
        return {sent: i for sent, (i, _) in zip(ids, to.values(), strict=True) if sent}


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
    """

    post: Post
    run: str
    config: str
    constants: Mapping[str, Tensor]
    timeout: float = 600.0
    quorum: float = 0.5

    name = "flower"

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise FedsaddleError(f"deploy: timeout must be > 0 seconds, got {self.timeout}")
        if not 0 < self.quorum <= 1:
            raise FedsaddleError(f"deploy: quorum must be above 0 and at most 1, got {self.quorum}")

    def clients(self, problem: Problem, federation: Federation, participation: Participation, batching: Batching,
                seeds: Sequence[int], dtype: torch.dtype) -> Clients:  # fmt: skip
        return Flower(self, problem, federation, participation, batching, seeds, dtype)


class Flower(Clients):
    """Clients that are sites.

    Args:
        federation: what the server knows of the sites' data: sizes, names and classes.
    """

    remote = True

    def __init__(
        self,
        deployment: Deployment,
        problem: Problem,
        federation: Federation,
        participation: Participation,
        batching: Batching,
        seeds: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        super().__init__(federation.sizes, participation, seeds)
        if len(seeds) > 1:
            raise FedsaddleError("replicas: engine 'flower' computes one run at a time; use 'stacked'")
        self.device, self.dtype = torch.device("cpu"), dtype
        self.batching = clamped(batching, problem, federation)
        self.problem = self._posed = problem.to(self.device, dtype)
        self._deployment, self._post = deployment, deployment.post
        z = self.problem.init().to(dtype).unsqueeze(0)
        agreed = Agreed(
            deployment.run, deployment.config, tuple(deployment.constants.items()), *self.batching, z
        )
        self._session = pack(agreed)
        self._digest = hashlib.sha256(self._session).hexdigest()
        self._joined: set[int] = set()  # sites that hold the session
        self._lacked: Counter[int] = Counter()  # how often a site lacked what it had been sent
        self._tags: list[Tag | None] = [
            None
        ] * self.n_clients  # the version of each site's memory; None: blank
        self._committed = list(self._tags)
        self._missed: set[int] = set()  # the round's own participants that missed one of its phases
        self.phase_seconds: list[float] = []
        self.algorithm: Any = None

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
        if not isinstance(owner, Problem):
            self.algorithm = owner
        classes = classes_of(owner, self.problem, *([self.algorithm] if self.algorithm is not None else []))
        name = f"{'problem' if isinstance(owner, Problem) else 'algorithm'}.{work.__name__}"
        place = {int(client): at for at, client in enumerate(who.ids)}
        own_round = who is self._cohort
        asked = [i for i, at in place.items() if who.answered[at] and not (own_round and i in self._missed)]
        head = {"action": "work", "work": name, "remembers": self.has_memory, "phase": phase}
        content = tree_map(lambda control: control.value, message, of=(Control,))
        rows: list[Tensor] = []

        def apart(each: Each) -> Each:
            rows.append(each.value)
            return Each(None)

        shared_tree = constants(self.problem, self._posed), tree_map(apart, content, of=(Each,))
        held = {i: self._held_by(i, work.__name__, message) for i in asked}
        bodies: dict[Any, bytes] = {}

        def shared(held: frozenset[str]) -> bytes:  # one upload for all sites that hold the same
            def once(part: Once, k: int) -> tuple[str, bool]:
                key = _key(part, work.__name__, k)
                return key, key not in held

            if held not in bodies:
                bodies[held] = pack(shared_tree, once)
            return bodies[held]

        def ask(i: int) -> Ask:
            own = tuple(value[place[i] : place[i] + 1] for value in rows)

            def request(full: bool) -> Request:
                full = full or self._forgets(i)
                details = head | {"client": i, "base": self._tags[i], "committed": self._committed[i]}
                return self._request(i, details, pack(own), shared(frozenset() if full else held[i]), full)

            return request

        def check(i: int, reply: Reply) -> tuple[Any, bool]:
            tree = self._checked(i, reply, head | {"round": self.round}, classes)
            _check_finite(tree)
            return tree, bool(reply.head.get("wrote"))

        started = time.perf_counter()
        need = self._needed(int(who.answered.sum()))
        answers = self._post.ask({i: ask(i) for i in asked}, self._deployment.timeout, check, need)
        self.phase_seconds.append(time.perf_counter() - started)
        replies = dict(answers.replies)
        for i, reason in _odd_ones(replies, work).items():
            del replies[i]
            answers.left_out[i] = reason
        for i in sorted(self._missed.intersection(place) if own_round else ()):
            answers.left_out.setdefault(i, "missed an earlier phase of the round")
        self._leave_out(work.__name__, answers.left_out, own_round)
        self._require(need, work, phase, replies, answers)
        for i, (_, wrote) in replies.items():
            if wrote:
                self._tags[i] = (self.round, phase)
        if replies:
            at = np.array([place[i] for i in replies])
            yield at, tree_map(lambda *rows: torch.cat(rows, -2), *(tree for tree, _ in replies.values()))

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
        return Request(head, own, shared, b"" if i in self._joined and not full else self._session)

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
        try:
            return unpack(reply.body, classes)
        except Garbled as error:
            raise FedsaddleError(f"its answer is refused: {error}") from error

    def _held_by(self, i: int, name: str, message: Any) -> frozenset[str]:
        held = enumerate(self._held(name, message))
        return frozenset(
            _key(once, name, k) for k, (versions, once) in held if versions[0, i] == once.version
        )

    # ---- evaluation, at the sites ------------------------------------------------------------------------

    def evaluate(
        self, problem: Problem, z: Tensor, splits: Mapping[str, Split], federation: Federation
    ) -> list[Evaluation]:
        """Each site measures on its own data; the AUC over all of them comes from histograms of scores."""
        (point,) = z
        first = self._measure(0, (point, _AUC_TARGET, None))
        sketches = {i: tree for i, (tree, _) in first.items()}
        cuts = tuple(
            edges([dict(s[k]) for s in sketches.values() if s[k] is not None], _AUC_TARGET)
            if any(s[k] is not None for s in sketches.values())
            else torch.zeros(0, dtype=torch.float64)
            for k in range(len(SPLITS))
        )
        tested = all("test" in head.get("sizes", {}) for _, head in first.values())
        self.evaluated_on = "test" if tested else "train"
        values: dict[str, float] = {}
        if any(s[k] is not None for s in sketches.values() for k in range(len(SPLITS))):
            counts = [tree for tree, _ in self._measure(1, (point, _AUC_TARGET, cuts), list(first)).values()]
            keys = dict(zip(SPLITS, ("train_auc", "valid_auc", "auc"), strict=True))
            for k, split in enumerate(SPLITS):
                own = [c[k].long() for c in counts if c[k] is not None]
                if own and not (
                    split == "train" and any(c[SPLITS.index("test")] is not None for c in counts)
                ):
                    estimate = auc_from_histograms(own)
                    values |= {keys[split]: estimate.auc, f"{keys[split]}_bound": estimate.bound}
        return [_together(values, {i: head for i, (_, head) in first.items()}, self.n_clients)]

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
                _check_measured(tree, reply.head, message[2])
            except Exception as error:
                raise FedsaddleError(
                    f"its answer is refused: no measurement ({first_line(error)})"
                ) from error
            return tree, reply.head

        everyone = range(self.n_clients) if who is None else who
        answers = self._post.ask({i: ask(i) for i in everyone}, self._deployment.timeout, check, enough=1)
        self._leave_out("evaluate", answers.left_out)
        return answers.replies


def _key(once: Once, work: str, place: int) -> str:
    """By which key a site holds a value: that of the accounting."""
    return once.name if once.name is not None else f"{work} {place}"


def _check_finite(tree: Any) -> None:
    """Refuse numbers that a mean would spread to all sites; rows of single sites (Each) may have NaN for what is absent."""
    for path, tensor in tensors_of(tree, marked=False):
        if tensor.ndim != 2 or tensor.shape[0] != 1 or not tensor.is_floating_point():
            raise FedsaddleError(
                f"its answer is refused: {path or 'it'} must be a row of real numbers [1, k], got {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
        if not tensor.isfinite().all():
            bad = int((~tensor.isfinite()).sum())
            raise FedsaddleError(
                f"its answer is refused: {path or 'it'} has {bad} of {tensor.numel()} numbers that are not finite"
            )


def _check_measured(tree: Any, head: Head, cuts: Sequence[Tensor] | None) -> None:
    """Refuse what is no sketch of scores on each split or, after the cuts, no counts between them."""
    for name in ("values", "sizes"):
        if not all(type(v) in (int, float) and abs(v) <= _LARGEST for v in head.get(name, {}).values()):
            raise ValueError(f"{name} must be finite numbers")
    for k, (split, part) in enumerate(zip(SPLITS, tree, strict=True)):
        if part is None:
            continue
        if cuts is not None:
            if list(part.shape) != [3, 2 * len(cuts[k]) + 1] or not (part >= 0).all() or not part[2, 0] == 1:
                raise ValueError(f"counts of {split} must be those between its {len(cuts[k])} cuts")
            continue
        own = dict(part)
        if tuple(own["size"].shape) != (2,):
            raise ValueError(f"sizes of {split} must be two numbers")
        sizes = [len(own["negative"]), len(own["positive"])]
        if not (own["size"] >= torch.tensor(sizes)).all() or not (own["size"] <= _MOST_SCORES).all():
            raise ValueError(f"sizes of {split} must be two numbers of scores")
        if any(v.ndim != 1 or v.dtype != torch.float64 or v.isnan().any() for v in own.values()):
            raise ValueError(f"quantiles of {split} must be rows of numbers")
        if max(sizes) > 2 / _AUC_TARGET:
            raise ValueError(f"{max(sizes)} quantiles of {split} are more than were asked for")


def _odd_ones(replies: Mapping[int, tuple[Any, bool]], work: Work) -> dict[int, str]:
    """Replies whose form is not that of most, with what is odd."""
    forms = {i: signature(tree) for i, (tree, _) in replies.items()}
    if len(set(forms.values())) <= 1:
        return {}
    usual, _ = Counter(forms.values()).most_common(1)[0]
    return {
        i: f"its answer is refused: {work.__name__} gives {_in_short(usual)} at the other sites, got {_in_short(form)}"
        for i, form in forms.items()
        if form != usual
    }


def _in_short(form: Any) -> str:
    return " ".join(str(form).replace("torch.", "").split())


def _together(values: dict[str, float], heads: Mapping[int, Head], n: int) -> Evaluation:
    """What the sites have measured as one evaluation: means over sites, or over samples, and each site's own."""
    measured = {i: head.get("values", {}) for i, head in heads.items()}
    by_client: dict[str, list[float]] = {}
    for name in ("auc", "accuracy"):
        if any(f"{name}_clients" in m for m in measured.values()):
            by_client[name] = [measured.get(i, {}).get(f"{name}_clients", math.nan) for i in range(n)]
            values |= metrics.spread(by_client[name], name)
    for name, split in (("accuracy", "test"), ("valid_accuracy", "valid"), ("train_accuracy", "train")):
        sized = ((m.get(name), heads[i].get("sizes", {}).get(split, 0)) for i, m in measured.items())
        known = [(value, size) for value, size in sized if value is not None and size > 0]
        if known:
            values[name] = sum(v * size for v, size in known) / sum(size for _, size in known)
    losses = [m["loss"] for m in measured.values() if "loss" in m]
    if losses:
        values["loss"] = sum(losses) / len(losses)
    if any("single_class_clients" in m for m in measured.values()):
        values["single_class_clients"] = sum(m.get("single_class_clients", 0) for m in measured.values())
    return Evaluation(values, by_client)
