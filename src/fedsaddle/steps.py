"""Which step size suits: several are tried beside one another, and the objective on the training data says how far they get.

No step suits all data: the square loss is as curved as features are long, and the scaled 0 and 1 of a rare text are long.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from fedsaddle.algorithms import Algorithm
from fedsaddle.errors import Diverged
from fedsaddle.federation import Federation
from fedsaddle.measures import LOWERED
from fedsaddle.problem import Problem
from fedsaddle.replicas import run_all
from fedsaddle.train import Record, Run, train

STEPS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)

_NEAR = 0.15  # of the way that the best gets; a larger step that is so near to it is taken
_MARGIN = 0.2  # of a step that raises the objective; a smaller one only is safe in a longer run


def tried(
    problem: Problem,
    algorithm: Algorithm,
    federation: Federation,
    key: str,
    steps: Sequence[float],
    **settings: Any,
) -> tuple[float, list[float]]:
    """The objective before training, NaN where it is not measured, and what a short run with each step size leaves of it.

    Args:
        key: the algorithm's step size, such as "lr".
        settings: arguments of `train`; `rounds` is how long they run.
    """
    quiet = {"eval_every": settings["rounds"], "progress": False, "guard": 0, "track": None}
    first = next(iter(train(problem, algorithm, federation, **settings | quiet)))
    start = _lowered(first, math.nan)
    if math.isnan(start):
        return start, []
    candidates = [dataclasses.replace(algorithm, **{key: step}) for step in steps]
    runs = [train(problem, candidate, federation, **settings | quiet) for candidate in candidates]
    run_all(runs)
    return start, [objective(run) for run in runs]


def largest_near_best(steps: Sequence[float], left: Sequence[float], start: float) -> float:
    """The largest of descending steps that gets about as far as the best, well below those that raise the objective."""
    wild = min(
        (step for step, value in zip(steps, left, strict=True) if not value <= start), default=math.inf
    )
    safe = {step: value for step, value in zip(steps, left, strict=True) if step <= _MARGIN * wild}
    if not safe:
        return steps[-1]
    best = min(safe.values())
    return next(step for step, value in safe.items() if value <= best + _NEAR * (start - best))


def objective(run: Run) -> float:
    """What training lowers, where a run ends; infinite where it diverged, or is not measured."""
    try:
        return _lowered(run.metrics, math.inf)
    except Diverged:
        return math.inf


def _lowered(metrics: Record, otherwise: float) -> float:
    keys = sorted(LOWERED, key=lambda k: k != "phi")  # a user's own metrics may have more of them
    return next((v for k in keys if (v := metrics.get(k)) is not None), otherwise)
