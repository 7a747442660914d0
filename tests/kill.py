"""Runs that are killed with SIGKILL at random moments, again and again, and must end with the same bits as if left alone.

    python tests/kill.py --kills 100 [--seed 0]

A child process computes a run of the harness with a checkpoint each round, so that many kills fall into the writing of one.
Kills go on, run after run, algorithm after algorithm, until there were enough; each run is then finished and compared to
its undisturbed twin: history and checkpoints, byte for byte.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from test_resume import ONE_EACH, begin, same  # noqa: E402

ROUNDS = 12


def compute(name: str, out: Path) -> None:
    """Begin a run, or go on with it; one that was killed before its first checkpoint begins anew."""
    from fedsaddle.folder import CHECKPOINTS, HISTORY, INDEX

    going = (out / CHECKPOINTS / INDEX).exists()
    if not going:
        (out / HISTORY).unlink(missing_ok=True)
    begin(name, out, rounds=ROUNDS, checkpoint_every=1, resume=going).finish()


def child(name: str, out: Path) -> int:
    """A process that computes; its number."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            compute(name, out)
            code = 0
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    return process


def killed(name: str, out: Path, after: float) -> bool:
    """Whether a process that computes a run was killed so many seconds after its start; it may end before."""
    process = child(name, out)
    time.sleep(after)
    os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"{name}: could not go on after a kill")
    return os.WIFSIGNALED(status)


def campaign(kills: int, seed: int, names: list[str]) -> Counter[str]:
    """Kill so often, over these cases in turn; where each kill fell: before the first checkpoint, writing, or between."""
    rng, fell = random.Random(seed), Counter[str]()
    for name in cycle(names):
        with tempfile.TemporaryDirectory() as folder:
            whole, cut = Path(folder, "whole"), Path(folder, "cut")
            started = time.perf_counter()
            compute(name, whole)
            usual = time.perf_counter() - started
            for _ in range(6):
                if fell.total() < kills and killed(name, cut, rng.uniform(0.0, usual)):
                    half = any(cut.rglob("*.tmp"))
                    first = not (cut / "checkpoint/index.json").exists()
                    fell[
                        "while a file was written"
                        if half
                        else "before the first checkpoint"
                        if first
                        else "between"
                    ] += 1
            compute(name, cut)
            same(whole, cut)
        if fell.total() >= kills:
            return fell
    return fell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    fell = campaign(args.kills, args.seed, list(ONE_EACH.values()))
    where = ", ".join(f"{n} {text}" for text, n in fell.most_common())
    print(
        f"{fell.total()} of {args.kills} kills survived ({where}); every run ended with the bits of its undisturbed twin"
    )


if __name__ == "__main__":
    main()
