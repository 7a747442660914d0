"""A site's side of a run: client work by name, on a cohort of one, and the site's own measurements.

What a session brings from the server (config, scaling constants, start point, the site's number) is kept in memory only; a
site that was restarted answers "missing" and is sent it again. What an algorithm remembers is kept on disk (`SiteMemory`).

The site runs the code of the fedsaddle that is installed there. A message names a method of the algorithm or the problem
that takes a cohort, and nothing else can be called.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsaddle import __version__, sampling
from fedsaddle.algorithms import Algorithm
from fedsaddle.cohort import Batching, Cohort, Sides
from fedsaddle.config import resolve
from fedsaddle.deploy.memory import LostMemory, SiteMemory
from fedsaddle.deploy.protocol import SPLITS, Agreed, Head, Missing, Reply, Request
from fedsaddle.engines.execution import Execution
from fedsaddle.engines.simulation import sides_of
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.histograms import score_histogram, sketch
from fedsaddle.messages import Each, answered, check_memory, reason
from fedsaddle.metrics import Split
from fedsaddle.problem import ModelProblem, Problem, tree_map
from fedsaddle.wire import Classes, classes_of, pack, unpack


class SiteData(Protocol):
    """What the worker asks of a site."""

    @property
    def name(self) -> str: ...

    @property
    def memory(self) -> Path: ...

    @property
    def digest(self) -> str: ...

    def noise_key(self, asked: bytes) -> int: ...

    def summary(self) -> dict[str, Tensor]: ...

    @property
    def modules(self) -> Sequence[str]: ...

    def federation(self, constants: dict[str, Tensor]) -> Federation: ...


class Session:
    """One run at this site."""

    def __init__(self, agreed: Agreed, site: SiteData) -> None:
        if agreed.version != __version__:
            raise FedsaddleError(
                f"this site has fedsaddle {__version__}, the server {agreed.version}; install the same"
            )
        tree = json.loads(agreed.config)
        _allowed(tree, site)
        config = resolve(tree | {"data": {"sites": "."}})
        self.federation = site.federation(dict(agreed.constants))
        setup = config.build(self.federation)
        self._run, self._noise_key = agreed.run, site.noise_key
        self.z, self.dtype, self.seed = agreed.z, agreed.z.dtype, int(config.tree["train"]["seed"])
        self.problem: Problem = setup.problem.to(torch.device("cpu"), self.dtype)
        self.algorithm: Algorithm = setup.algorithm
        self.batching = Batching(agreed.batch_size, agreed.sampling)
        self.data = self.federation.on_device(torch.device("cpu"), self.dtype)
        self.classes: Classes = classes_of(self.algorithm, self.problem)
        self.memory = SiteMemory(site.memory / _folder(agreed.run), self.classes)
        self.held: dict[str, tuple[int, Tensor]] = {}  # Once values by key, with their version
        self._sides: Sides | None = sides_of(self.problem, self.federation, torch.device("cpu"))
        parts = {"train": self.federation, "valid": self.federation.valid, "test": self.federation.test}
        self.splits = {
            k: Split(v, torch.device("cpu"), self.dtype)
            for k, v in parts.items()
            if v is not None and v.n_samples
        }
        self._execute = Execution(torch.device("cpu"))

    def work(self, request: Request) -> Reply:
        """Run one piece of client work."""
        head = request.head
        round, phase, client = int(head["round"]), int(head["phase"]), int(head["client"])
        problem, message = self._told(request)
        work = _named(head["work"], self.algorithm, problem)
        self.memory.settle(_tag(head["committed"]), round)
        base = _tag(head["base"])
        memory = self.algorithm.memory(self.z, problem) if head["remembers"] else None
        if memory is not None and base is not None:
            memory = self.memory.read(base)
        key = sampling.key(sampling.MINIBATCH, self.seed, round, phase)
        n = self.federation.n_samples
        cohort = Cohort(
            problem,
            ids=torch.tensor([client]),  # the global number, on which minibatches depend
            data=self.data,
            first=torch.zeros(1, dtype=torch.long),
            sizes=torch.tensor([n]),
            memory=memory,
            key=sampling.keys([key], torch.device("cpu")),
            batching=self.batching,
            dtype=self.dtype,
            longest=n,
            sides=self._sides,
            noise_key=lambda: sampling.keys([self._noise_key(self._asked(request))], torch.device("cpu")),
        )
        reply, new = answered(work.__qualname__, self._execute(work, message, cohort))
        if new is not None:
            check_memory(work.__qualname__, new, self.algorithm.memory(self.z, problem), (1,))
            self.memory.write((round, phase), new)
        return Reply({"status": "done", "wrote": new is not None}, pack(reply))

    def _asked(self, request: Request) -> bytes:
        """A digest of what the server asks for, and in which run, round and phase."""
        head = [self._run, *(request.head[k] for k in ("round", "phase", "client", "work"))]
        return hashlib.sha256(b"\0".join([json.dumps(head).encode(), request.shared, request.own])).digest()

    def evaluate(self, request: Request) -> Reply:
        """Measure at z, and share a sketch of the scores; or, told edges, how many scores lie between them."""
        problem, (z, target, edges) = self._told(request)
        scored = self._scores(problem, z)
        if edges is not None:
            counts = tuple(
                score_histogram(*scored[name], edge).double() if name in scored else None
                for name, edge in zip(SPLITS, edges, strict=True)
            )
            return Reply({"status": "done"}, pack(counts))
        (found,) = problem.evaluate(z.unsqueeze(0), self.splits, self.federation)
        values = {k: v for k, v in found.values.items() if v == v}
        sketches = tuple(
            tuple(sketch(*scored[name], target).items()) if name in scored else None for name in SPLITS
        )
        sizes = {name: split.data["y"].shape[0] for name, split in self.splits.items() if "y" in split.data}
        return Reply({"status": "done", "values": values, "sizes": sizes}, pack(sketches))

    def _scores(self, problem: Problem, z: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Scores [n] and who is positive [n], of every split of a problem that ranks samples."""
        positive = getattr(problem, "positive", None)
        if not isinstance(problem, ModelProblem) or positive is None or self.federation.is_regression:
            return {}
        return {
            name: (problem.all_scores(z.unsqueeze(0), split)[0], split.data["y"] == positive)
            for name, split in self.splits.items()
        }

    def _told(self, request: Request) -> tuple[Problem, Any]:
        """The problem with its constants agreed on, and the message."""
        own = unpack(request.own, self.classes) if request.own else ()
        constants, message = unpack(request.shared, self.classes, self._held, self._keep)
        return replace(self.problem, **dict(constants)), _filled(message, iter(own))

    def _held(self, key: str, version: int) -> Tensor:
        kept, value = self.held.get(key, (None, None))
        if kept != version or value is None:
            raise Missing
        return value

    def _keep(self, key: str, version: int, value: Tensor) -> None:
        self.held[key] = version, value


class Worker:
    """Answers the server's messages.

    Args:
        site: its data.
    """

    def __init__(self, site: SiteData) -> None:
        self.site = site
        self._session: Session | None = None
        self._digest = ""

    def answer(self, request: Request) -> Reply:
        """The reply; what goes wrong here is one line in it, never an exception."""
        head = request.head
        belongs = {k: head.get(k) for k in ("run", "round", "phase", "action")} | {"site": self.site.name}
        try:
            reply = self._answered(request)
        except Missing:
            reply = Reply({"status": "missing"})
        except (FedsaddleError, LostMemory) as error:
            reply = Reply({"status": "refused", "reason": str(error)})
        except Exception as error:  # the user's model may raise anything
            work = head.get("work", head.get("action"))
            why = reason(error, head.get("remembers", True))
            reply = Reply({"status": "refused", "reason": f"{work} failed: {why}"})
        return Reply(belongs | reply.head, reply.body)

    def _answered(self, request: Request) -> Reply:
        head = request.head
        if head.get("action") == "hello":
            return self._hello()
        if head.get("data", self.site.digest) != self.site.digest:
            raise FedsaddleError(
                f"site {self.site.name!r}: its data have changed since the run was set up; restore them, or start a new run"
            )
        if request.session:
            digest = hashlib.sha256(request.session).hexdigest()
            if digest != self._digest:
                agreed = unpack(request.session, {f"{Agreed.__module__}:Agreed": Agreed})
                self._session, self._digest = Session(agreed, self.site), digest
        if self._session is None or head["session"] != self._digest:
            raise Missing
        actions: dict[str, Callable[[Request], Reply]] = {
            "work": self._session.work,
            "evaluate": self._session.evaluate,
        }
        if head["action"] not in actions:
            raise FedsaddleError(f"action {head['action']!r} is unknown here; is the site's fedsaddle older?")
        return actions[head["action"]](request)

    def _hello(self) -> Reply:
        summary = tuple(self.site.summary().items())
        head = {"fedsaddle": __version__, "torch": torch.__version__, "data": self.site.digest}
        return Reply({"status": "done"} | head, pack(summary))


def _allowed(tree: Any, site: SiteData) -> None:
    """Refuse a config that would import code, unless the site's operator has named it."""
    if not isinstance(tree, dict) or any(section in tree for section in ("data", "partition", "transform")):
        raise FedsaddleError("session: is no config of a deployment")
    for section, part in tree.items():
        module = part.get("module") if isinstance(part, dict) else None
        if module is not None and module not in site.modules:
            raise FedsaddleError(
                f"{section}.module: {module!r} is not allowed at this site; its operator may add it to modules in site.toml"
            )


def _named(name: str, algorithm: Algorithm, problem: Problem) -> Callable[..., Any]:
    """The method that a message names, if it is client work."""
    owner, _, method = str(name).partition(".")
    thing = {"algorithm": algorithm, "problem": problem}.get(owner)
    work = (
        getattr(type(thing), method, None) if method.isidentifier() and not method.startswith("_") else None
    )
    if not inspect.isfunction(work) or list(inspect.signature(work).parameters)[1:2] != ["cohort"]:
        raise FedsaddleError(
            f"{name!r} is no client work of {type(algorithm).__name__} or {type(problem).__name__}"
        )
    bound: Callable[..., Any] = getattr(thing, method)
    return bound


def _filled(message: Any, own: Any) -> Any:
    """The message with this site's rows in the places where sites differ."""
    return tree_map(lambda _: next(own), message, of=(Each,))


def _tag(value: Head | list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (int(value[0]), int(value[1]))  # type: ignore[index]


def _folder(run: str) -> str:
    if not isinstance(run, str) or not run.isalnum():
        raise FedsaddleError(f"run: must be letters and digits, got {run!r}")
    return run
