"""Replicas: runs that differ in seed, start or real-valued hyper-parameters only, computed together as one stacked run.

Real-valued hyper-parameters are those of the algorithm, and of the problem those that it names (`Problem.real`).

Every vector gets one more axis in front, [R, S, d], and a hyper-parameter that differs becomes a tensor [R, 1, 1], so the
algorithms' lines stay as they are. Each replica's trajectory is that of its own single run (to rounding). What decides
shapes or branches (local steps, batch size, stage lengths, output rules) must be equal; `stackable` says so.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedsaddle.algorithms.base import Algorithm
from fedsaddle.clients import Task
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.participation import Cyclic, Full, Participation, Uniform
from fedsaddle.problem import forget_made, tree_map
from fedsaddle.train import Record, Run, check_next

T = TypeVar("T")
Tick = Callable[[float], None]  # so much more is done, in runs


def stackable(runs: Sequence[Run]) -> str | None:
    """None if these runs can be computed together, else the reason why not."""
    first = runs[0]
    if first.machine.engine != "stacked":
        return f"the engine is {first.machine.engine}"
    if not first.algorithm.stacks:
        return f"who takes part in a round of {type(first.algorithm).__name__} depends on how it goes"
    if first.machine.offload:
        return "the data stay on the CPU"
    for run in runs:
        if run.guarded:
            return "a guard may step back, and halve the step sizes of one alone"
        if run.resumes:
            return "a resumed run goes on from its own checkpoint"
        for name in ("rounds", "eval_every", "federation"):
            if getattr(run, name) is not getattr(first, name) and getattr(run, name) != getattr(first, name):
                return f"{name} differs"
        mine, other = run.clients, first.clients
        if (mine.batching, run.machine) != (other.batching, first.machine):
            return "batch size, sampling, device or precision differ"
        if not _same(run.problem, first.problem):
            return "problems differ"
        if mine.participation != other.participation or not _fixed_size(mine.participation):
            return "participation differs, or is of no fixed size without failures"
        if type(run.algorithm) is not type(first.algorithm):
            return "algorithms differ"
        for f in fields(run.algorithm):
            a, b = getattr(run.algorithm, f.name), getattr(first.algorithm, f.name)
            real = all(run.algorithm.is_real(f.name, value) for value in (a, b))
            if a != b and not real:
                return f"algorithm.{f.name} differs, which decides shapes or branches"
            for special in (0.0, run.algorithm.branching.get(f.name, 0.0)):
                if real and (a == special) != (b == special):
                    return f"algorithm.{f.name} is {special:g} in some, which decides a branch"
        if not _alike(mine.shares(), other.shares()):
            return "unequal groups are shuffled by the seed, so objectives differ"
    return None


def _fixed_size(participation: Participation) -> bool:
    simple = isinstance(participation, Full | Cyclic) or (
        isinstance(participation, Uniform) and not participation.replacement
    )
    return simple and participation.failure == 0.0


def _same(a: Any, b: Any) -> bool:
    """Whether two problems differ in nothing but where a model's parameters start, and in real numbers that may differ."""
    if type(a) is not type(b):
        return False
    for f in fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if f.name == "model":
            if x.shapes != y.shapes or not _same_modules(x.module, y.module):
                return False
        elif f.name in a.real:
            pass
        elif x is not y and not (isinstance(x, (int, float, str, bool, type(None))) and x == y):
            return False
    return True


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def _same_modules(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules differ in nothing but their trainable parameters."""

    def parts(module: nn.Module) -> list[Any]:
        """What a module is made of: names and types of its parts, and their plain attributes."""
        return [
            (name, type(part), {k: v for k, v in vars(part).items() if not k.startswith("_")})
            for name, part in module.named_modules()
        ]

    def constants(module: nn.Module) -> list[Tensor]:
        """Frozen parameters and buffers, which are not in the flat vector."""
        return [*(p for p in module.parameters() if not p.requires_grad), *module.buffers()]

    try:
        if parts(a) != parts(b):
            return False
    except Exception:  # attributes that cannot be compared, such as tensors
        return False
    x, y = constants(a), constants(b)
    return len(x) == len(y) and all(torch.equal(u, v) for u, v in zip(x, y, strict=True))


def stack(things: Sequence[T], names: Iterable[str], like: Tensor, always: Iterable[str] = ()) -> T:
    """One algorithm or problem, whose hyper-parameters of these names are tensors [R, 1, 1] where they differ, or always."""
    stacked = copy.copy(things[0])
    for name in names:
        values = [getattr(thing, name) for thing in things]
        if name in always or any(v != values[0] for v in values):
            numbers = torch.tensor(values, dtype=torch.float64).to(like).view(-1, 1, 1)
            object.__setattr__(stacked, name, numbers)
    forget_made(stacked)  # from the first one's numbers
    return stacked


def _in_formulas(algorithm: Algorithm) -> list[str]:
    """The hyper-parameters that decide neither shapes nor branches."""
    named = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
    real = {k: v for k, v in named.items() if algorithm.is_real(k, v)}
    return [k for k, v in real.items() if v not in (0.0, algorithm.branching.get(k, 0.0))]


def run_together(runs: Sequence[Run], tick: Tick = lambda n: None) -> None:
    """Compute runs as one stacked run; each is then finished, with its own records, state and files.

    A replica that diverges ends as its single run would: its error is raised when its result is asked for. The others go on.
    """
    reason = stackable(runs)
    if reason is not None:
        raise FedsaddleError(f"replicas: {reason}; these runs cannot be computed together")
    runs = sorted(
        runs, key=lambda run: run.seed
    )  # side by side, replicas of one seed share their minibatches
    started, first = time.perf_counter(), runs[0]
    problem = first.problem.prepare(first.clients)
    constants = {
        f.name: getattr(problem, f.name) for f in fields(problem) if f.name not in ("model", *problem.real)
    }
    z = torch.stack([run.problem.init() for run in runs]).to(first.machine.device, first.machine.dtype)
    z = z.unsqueeze(1)  # [R, 1, d]
    problem = stack([problem, *(run.problem for run in runs[1:])], problem.real, z)
    names = [f.name for f in fields(first.algorithm)]
    # what is compiled for tuning then serves what was chosen
    always = _in_formulas(first.algorithm) if first.clients.in_tensors else ()
    algorithm = stack([run.algorithm for run in runs], names, z, always)
    one, seeds = first.clients, [run.seed for run in runs]
    task = Task(
        problem, one.federation, one.participation, one.batching, seeds, one.dtype, algorithm, one.aggregation
    )
    clients = first.machine.simulation(task)
    state = algorithm.init(z, problem)
    clients.remember(algorithm.memory(z, problem))
    clients.traffic.setup, clients.rounds = first.clients.traffic.setup, first.rounds
    try:
        for run in runs:
            run.clients.problem = replace(run.problem, **constants)
            run.hand_over()
        for r in range(first.rounds + 1):
            if r > 0:
                clients.begin(r - 1)
                before, state = state, algorithm.round(state, clients)
                if r == 1:
                    check_next(algorithm, before, state)
            found = first.look(r, state.z, problem)
            for i, run in enumerate(runs):
                own = tree_map(lambda t, i=i: t[i], state) if first.evaluated(r) else None
                run.take(r, own, clients, i, started, found[i])
            _tell(first, r, len(runs), tick)
    except BaseException as error:
        for run in runs:
            run.fail(error)
        raise


def _tell(run: Run, r: int, runs: int, tick: Tick) -> None:
    """After an evaluated round r of so many runs, how much was done since the last one."""
    if r > 0 and run.evaluated(r):
        tick(runs * (r % run.eval_every or run.eval_every) / run.rounds)


def _heard(run: Run, tick: Tick, record: Record) -> None:
    _tell(run, record["round"], 1, tick)


def run_all(runs: Sequence[Run], tick: Tick = lambda n: None) -> None:
    """Finish runs, those that can be computed together together.

    Args:
        tick: hears, whenever runs are evaluated, how much was done since, in runs.
    """
    left = list(runs)
    while left:
        group = [run for run in left if stackable([left[0], run]) is None]
        if len(group) > 1:
            run_together(group, tick)
        else:
            run = left[0]
            with suppress(Diverged):  # raised again when its result is asked for
                run.finish(functools.partial(_heard, run, tick))
            group = left[:1]
        left = [run for run in left if run not in group]
