"""Where a round's time goes: sampling, gathering samples, field and update, and the rest (Python, participants, memory).

W1 (100 clients x 300 samples x 123 features, linear AUC, CODASCA, 20 a round x 20 steps x batch 32). In the eager run every
part is timed by a wrapper around the function that does it. A compiled run has two calls, the sampler and the local steps
(in which gathering, field and update are fused), so those are its parts.

    python benchmarks/where_time_goes.py [--threads 1] [--rounds 200]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from engines import Turn

from fedsaddle import cohort
from fedsaddle.participation import Uniform
from fedsaddle.problems import AUC

spent: dict[str, float] = {}


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - started

    return call


@contextmanager
def watched(*places: tuple[Any, str, str]) -> Iterator[None]:
    """While active, functions (owner, attribute) are timed under a name."""
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in places]
    for (owner, attribute, function), (_, _, name) in zip(before, places, strict=True):
        setattr(owner, attribute, timed(name, function))
    try:
        yield
    finally:
        for owner, attribute, function in before:
            setattr(owner, attribute, function)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    compiled = cohort.compiled
    parts = {
        "stacked": [
            (cohort, "rows_of_steps", "sampling"),
            (cohort.Cohort, "_gathered", "gathering"),
            (AUC, "field", "field"),
            (cohort, "local_steps", "all local steps"),
            (Uniform, "draw", "participants"),
        ],
        "compiled": [(Uniform, "draw", "participants")],
    }
    for engine, places in parts.items():
        turn = Turn(engine)
        turn.rounds_per_second(5)
        alone = args.rounds / turn.rounds_per_second(args.rounds)
        if engine == "compiled":  # what the compiler made is called through `compiled`
            names = {"rows_of_steps": "sampling", "local_steps": "all local steps"}
            made = {
                f: timed(names[f.__name__], compiled(f, "cpu"))
                for f in (cohort.rows_of_steps, cohort.local_steps)
            }
            cohort.compiled = lambda f, device, made=made: made[f]  # type: ignore[misc]
        spent.clear()
        with watched(*places):
            whole = args.rounds / turn.rounds_per_second(args.rounds)
        cohort.compiled = compiled
        spent["rest"] = whole - sum(
            spent.get(k, 0.0) for k in ("sampling", "all local steps", "participants")
        )
        steps = spent.pop("all local steps")
        if engine == "stacked":
            spent["update and calls"] = steps - spent["gathering"] - spent["field"]
        else:
            spent["gathering, field, update"] = steps
        print(
            f"{engine}: {1e3 * alone / args.rounds:.2f} ms a round ({1e3 * whole / args.rounds:.2f} ms when watched)"
        )
        for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
            print(f"  {name:26s} {1e3 * seconds / args.rounds:6.2f} ms  {100 * seconds / whole:3.0f} %")


if __name__ == "__main__":
    main()
