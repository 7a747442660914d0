"""check: the facts that hold for every algorithm, whoever wrote it.

They say that a method fits the library: its work is pure, its State is all that changes, replicas and bytes do it no harm.
That it is the method of a paper they cannot say: a reference, a limit case and a known solution do (docs/own-algorithm.md).
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsaddle.algorithms.base import Algorithm
from fedsaddle.clients import Task, Work
from fedsaddle.engines import Engine
from fedsaddle.engines.simulation import Simulation
from fedsaddle.errors import FedsaddleError, first_line
from fedsaddle.federation import Federation
from fedsaddle.messages import unwrapped
from fedsaddle.participation import Draw, Full, Uniform
from fedsaddle.problem import Problem
from fedsaddle.problems import AUC, ERM, PairwiseAUC, PartialAUC, QuadraticSaddle, quadratic_federation
from fedsaddle.replicas import run_together, stackable
from fedsaddle.train import Run, train
from fedsaddle.wire import classes_of, pack, tensors_of, unpack

_SIZES = (4, 1, 3, 2, 4)  # samples of clients, one with less than a minibatch
_BATCH = 2
_CLOSE = 1e-9  # of the size of the numbers, in double precision


def check(
    algorithm: Algorithm,
    problem: Problem | None = None,
    federation: Federation | None = None,
    *,
    rounds: int = 4,
) -> None:
    """Check an algorithm against what must hold for every one; an AssertionError names the first fact that fails.

    One after another: the run repeats; engines agree; the order of clients does not matter, and identical clients are one
    (with all samples in a step, and where the algorithm draws nothing); who is absent keeps its memory; a resumed run is
    the uninterrupted one; runs computed together are those computed alone; messages survive the wire.

    Args:
        algorithm: with hyper-parameters by which it does not diverge.
        problem: a small one that it can learn; by default a quadratic, or else one of AUC, ERM and pairs.
        federation: the problem's data, of a few clients.
        rounds: of each run, >= 2.

    Example:
        >>> import fedsaddle as fs
        >>> from fedsaddle.testing import check
        >>> check(fs.SCAFFOLD(lr=0.05, local_steps=3))
        >>> check(fs.FedAvg(lr=0.05), fs.ERM(torch.nn.Linear(3, 1)), tiny_classes())
    """
    if rounds < 2:
        raise FedsaddleError(f"check: rounds must be >= 2, got {rounds}")
    if (problem is None) != (federation is None):
        raise FedsaddleError("check: give a problem and its federation, or none of the two")
    if problem is None or federation is None:
        problem, federation = _suitable(algorithm)
    bench = Bench(algorithm, problem, federation, rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of settings that are odd on a tiny problem
        for fact in FACTS:
            fact(bench)


@dataclass(frozen=True)
class Bench:
    """An algorithm on a small problem, to be run in different ways that should make no difference."""

    algorithm: Algorithm
    problem: Problem
    federation: Federation
    rounds: int

    def run(
        self, algorithm: Algorithm | None = None, federation: Federation | None = None, **options: Any
    ) -> Run:
        """A run, not computed yet."""
        fixed: dict[str, Any] = {"rounds": self.rounds, "batch_size": _BATCH, "dtype": "float64"}
        fixed |= {"eval_every": self.rounds, "progress": False}
        return train(
            self.problem, algorithm or self.algorithm, federation or self.federation, **(fixed | options)
        )

    @cached_property
    def plain(self) -> Run:
        return self.run().finish()

    @cached_property
    def some(self) -> Uniform:
        """A part of the clients a round."""
        return Uniform(max(1, self.federation.n_clients // 2))

    @cached_property
    def whole(self) -> Run:
        """With all samples in every step."""
        return self.run(batch_size=None).finish()

    @cached_property
    def draws(self) -> bool:
        """Whether chance plays a part although everybody is there and all samples are in every step."""
        pairs = self.problem.pairwise  # whose partners are drawn
        return pairs or _apart(self.whole.z, self.run(batch_size=None, seed=1).z) > _CLOSE

    def same(self, a: Any, b: Any, fact: str, reason: str) -> None:
        if (gap := _apart(a, b)) > _CLOSE:
            raise AssertionError(
                f"{type(self.algorithm).__name__}: {fact} (they are {gap:.2g} apart): {reason}"
            )


# -------------------------------------------------------------------------------------------------- facts


def repeats(bench: Bench) -> None:
    """The same run gives the same numbers again."""
    reason = "chance that is no function of the seed, such as torch.randn: use cohort.normal and clients.integer; or the "
    reason += "algorithm changes something that is not in its State"
    bench.same(bench.plain.state, bench.run().finish().state, "a second run is not the first one", reason)


def engines(bench: Bench) -> None:
    """One client at a time, or two, is the whole cohort at once."""
    reason = "client work mixes clients: a norm, mean or maximum over the whole cohort; use dim=-1"
    for participation in (Full(), bench.some):
        first = bench.run(participation=participation).finish().state
        for fact, options in (("serial", {"engine": "serial"}), ("chunk=2", {"chunk": 2})):
            other = bench.run(participation=participation, **options).finish().state
            bench.same(first, other, f"engine 'stacked' and {fact} disagree", reason)


def order(bench: Bench) -> None:
    """Clients in another order, who take part in the same rounds, end where they did."""
    if bench.draws:
        return
    turned = reordered(bench.federation, range(bench.federation.n_clients)[::-1])
    reason = "a client's place decides: an index into the replies, or a State with a row a client that is not addressed by "
    reason += "the ids of gather"
    z = bench.run(federation=turned, batch_size=None).z
    bench.same(bench.whole.z, z, "the order of clients matters", reason)


def identical(bench: Bench) -> None:
    """Clients with the same data are one client."""
    if bench.draws:
        return
    counts = bench.federation.class_counts() if "y" in bench.federation.data else None
    sizes = bench.federation.sizes.tolist()
    has = (
        [0] * len(sizes) if counts is None or bench.federation.is_regression else (counts > 0).sum(1).tolist()
    )
    i = max(range(len(sizes)), key=lambda k: (has[k], sizes[k]))
    one, four = (
        bench.run(federation=reordered(bench.federation, [i] * n), batch_size=None).z for n in (1, 4)
    )
    reason = "a sum over clients where a mean belongs, or a divisor that is not their number"
    bench.same(one, four, "four identical clients are not one client", reason)


def absent(bench: Bench) -> None:
    """Who does not take part keeps what it remembers, unless all forget."""
    run = bench.run(participation=bench.some)
    before: Any = None
    for record in run:
        assert isinstance(run.clients, Simulation)
        now = dict(tensors_of(run.clients.memory))
        if before is not None:
            away = [k for k in range(bench.federation.n_clients) if k not in record["clients"]]
            start = run.problem.init().to(torch.float64).unsqueeze(0)
            blank = dict(tensors_of(run.algorithm.memory(start, run.problem)))
            for path, rows in now.items():
                kept = _apart(rows[away], before[path][away]) == 0
                if not kept and _apart(rows[away], blank[path].expand_as(rows)[away]) > 0:
                    raise AssertionError(
                        f"{type(bench.algorithm).__name__}: clients that were absent in round {record['round']} remember "
                        f"something else than before: memory is written in place; return the new one"
                    )
        before = {path: rows.clone() for path, rows in now.items()}


def resumed(bench: Bench) -> None:
    """A run that was stopped goes on as if it had not been."""
    who = type(bench.algorithm).__name__
    with tempfile.TemporaryDirectory() as out:
        options: dict[str, Any] = {"out": out, "checkpoint_every": 1, "participation": bench.some}
        rounds = iter(bench.run(**options))
        list(islice(rounds, bench.rounds // 2 + 1))
        rounds.close()  # type: ignore[attr-defined]
        try:
            again = bench.run(**options, resume=True).finish()
        except FedsaddleError as error:
            raise AssertionError(
                f"{who}: a run cannot be resumed ({error}): a State, and memory, is a NamedTuple at the top of its "
                "module, of tensors, tuples and plain values"
            ) from error
    reason = "something that changes is in neither the State nor the clients' memory"
    whole = bench.run(participation=bench.some).finish()
    bench.same(whole.state, again.state, "a resumed run is not the uninterrupted one", reason)


def together(bench: Bench) -> None:
    """Runs that differ in seed or real numbers, computed together, are those computed alone."""
    algorithm, who = bench.algorithm, type(bench.algorithm).__name__
    kinds: list[tuple[str, Algorithm, int]] = [("", algorithm, 0), ("seed", algorithm, 1)]
    for f in dataclasses.fields(algorithm):
        value = getattr(algorithm, f.name)
        if isinstance(value, float):
            try:
                kinds.append((f.name, replace(algorithm, **{f.name: 0.9 * value}), 0))
            except FedsaddleError:
                continue  # a value that it does not take
    base = bench.run()
    kinds = [k for k in kinds if not k[0] or stackable([base, bench.run(k[1], seed=k[2])]) is None]
    runs = [bench.run(kind, seed=seed) for _, kind, seed in kinds]
    if len(runs) < 2:
        return
    remedy = "write vectors' axes from the end (clients -2, numbers -1); a real number that decides a branch or how many "
    remedy += "steps there are goes into `branching` or `shaping`; a round that looks at values needs stacks = False"
    try:
        run_together(runs)
        ends = [run.finish().z for run in runs]
    except Exception as error:  # whatever one's own code raises on tensors of another shape
        raise AssertionError(
            f"{who}: runs cannot be computed together ({type(error).__name__}: {first_line(error)}): {remedy}"
        ) from error
    for (name, kind, seed), end in zip(kinds, ends, strict=True):
        what = (
            f"runs that differ in {name or 'other runs'} are not those alone when they are computed together"
        )
        bench.same(bench.run(kind, seed=seed).z, end, what, remedy)


def wire(bench: Bench) -> None:
    """Messages, replies, memory and States are the same after they were bytes."""
    reason = "a message or reply has something that bytes do not keep"
    try:
        wired = bench.run(engine=_Wire()).finish()
        classes = classes_of(bench.algorithm, wired.problem)
        kept = unpack(pack(wired.state), classes)
    except FedsaddleError as error:
        raise AssertionError(
            f"{type(bench.algorithm).__name__}: something that travels cannot be sent ({error}): messages, replies, memory "
            "and States are tensors, plain values, tuples, and NamedTuples at the top of the algorithm's module"
        ) from error
    bench.same(
        bench.plain.state, wired.state, "what travels through bytes is not what travels without", reason
    )
    if not same(kept, wired.state):
        raise AssertionError(
            f"{type(bench.algorithm).__name__}: the State is not itself after it was bytes: {reason}"
        )


FACTS: tuple[Callable[[Bench], None], ...] = (
    repeats,
    engines,
    order,
    identical,
    absent,
    resumed,
    together,
    wire,
)


# -------------------------------------------------------------------------------------------------- parts


class Wired(Simulation):
    """A simulation whose messages and replies go through bytes, and whose memory could."""

    def _run(self, work: Work, message: Any, who: Draw, phase: int) -> Iterator[tuple[np.ndarray, Any]]:
        classes = classes_of(work.__self__, self.problem)  # type: ignore[attr-defined]
        for at, reply in super()._run(work, unpack(pack(unwrapped(message)), classes), who, phase):
            if self._memory is not None:
                remembered = self.memory
                if not same(remembered, unpack(pack(remembered), classes)):
                    raise AssertionError(f"{work.__qualname__}: memory is not itself after it was bytes")
            yield at, unpack(pack(reply), classes)


class _Wire(Engine):
    name = "wired"

    def clients(self, task: Task) -> Wired:
        return Wired(task)


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal to the last bit, classes and precisions included; NaN is NaN."""
    if isinstance(a, Tensor):
        alike = isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())  # NaN marks what is not known yet
    if isinstance(a, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def reordered(federation: Federation, clients: Sequence[int]) -> Federation:
    """These clients of a federation, in this order, some perhaps more than once; without test data."""
    offsets = federation.offsets.tolist()
    rows = torch.cat([torch.arange(offsets[i], offsets[i + 1]) for i in clients])
    sizes = [offsets[i + 1] - offsets[i] for i in clients]
    return Federation(
        {name: values[rows] for name, values in federation.data.items()},
        torch.tensor(np.concatenate([[0], np.cumsum(sizes)])),
        tuple(f"{k}: {federation.names[i]}" for k, i in enumerate(clients)),
        federation.classes,
    )


def tiny_classes(sizes: Sequence[int] = (9, 4, 14, 6, 11)) -> Federation:
    """Clients of these sizes with three features, each of both classes."""
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    y = np.concatenate([np.arange(n) % 3 == 0 for n in sizes]).astype(np.int64)
    x = rng.normal(size=(len(y), 3)) + 0.6 * y[:, None] + 0.3 * owner[:, None]
    return Federation.from_arrays(x, y, clients=owner)


def tiny_quadratics() -> Federation:
    """Five clients with one to four quadratics each."""
    whole = quadratic_federation(len(_SIZES), 3, 2, samples=max(_SIZES), noise=0.2)
    keep = np.concatenate([np.arange(max(_SIZES)) < n for n in _SIZES])
    return whole.keep(keep)


def _suitable(algorithm: Algorithm) -> tuple[Problem, Federation]:
    """The first of some small problems that an algorithm takes."""
    made: list[Callable[[], Problem]] = [
        lambda: QuadraticSaddle(3, 2),
        lambda: AUC(nn.Linear(3, 1), p="pooled"),
        lambda: ERM(nn.Linear(3, 1)),
        lambda: PairwiseAUC(nn.Linear(3, 1)),
        lambda: PartialAUC(nn.Linear(3, 1), loss="sigmoid"),
    ]
    said: FedsaddleError | None = None
    with torch.random.fork_rng(devices=[]):
        for make in made:
            torch.manual_seed(0)
            problem = make()
            try:
                algorithm.check(problem)
            except FedsaddleError as error:
                said = error
                continue
            quadratic = isinstance(problem, QuadraticSaddle)
            return problem, tiny_quadratics() if quadratic else tiny_classes()
    raise FedsaddleError(f"check: give a problem and a federation, none of the own ones suits ({said})")


def _apart(a: Any, b: Any) -> float:
    """The largest distance of two trees' numbers, in units of their size; infinite where they differ in form."""
    one, other = dict(tensors_of(a)), dict(tensors_of(b))
    if one.keys() != other.keys():
        return float("inf")
    gap = 0.0
    for path, x in one.items():
        y = other[path]
        if x.shape != y.shape or (x.isnan() != y.isnan()).any():
            return float("inf")
        x, y = x.double().nan_to_num(), y.double().nan_to_num()
        if x.numel():
            gap = max(gap, (x - y).abs().max().item() / (1 + x.abs().max().item()))
    return gap
