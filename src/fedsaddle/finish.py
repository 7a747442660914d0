"""finish: compute the runs that a journal lacks, one group after another or several beside one another in processes."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedsaddle.alike import Federations, Tick, Tracked, computed, give_back, shape
from fedsaddle.config import Config
from fedsaddle.errors import FedsaddleError
from fedsaddle.journal import Entry, Journal, append, entry_of, key_of
from fedsaddle.networks import Networks

TOGETHER = 64
_LOOK = 0.5  # seconds between two looks at what other processes have done


def finish(
    wanted: Sequence[Config],
    journal: Journal,
    together: int = TOGETHER,
    tick: Tick = lambda n, text: None,
    federations: Federations | None = None,
    jobs: int | Processes = 1,
) -> list[Entry]:
    """Compute the runs that the journal lacks, and return the entries of all.

    Args:
        wanted: one config a run.
        journal: gets each run as soon as it is finished, by whichever process computes it.
        together: at most so many runs are computed as one.
        tick: hears of the progress.
        federations: those that are loaded already.
        jobs: so many processes compute beside one another, each with one thread and its own copy of the data; or those that
            an earlier call has left.
    """
    left = {key_of(c): c for c in wanted if c not in journal}
    tracked = Tracked.of(wanted, journal.path.parent)
    tick(len(wanted) - len(left), "")
    by_data: dict[str, dict[str, list[Config]]] = {}
    for c in left.values():
        by_data.setdefault(Federations.key(c), {}).setdefault(shape(c), []).append(c)
    federations = federations or Federations.beside(journal.path)
    most = jobs.most if isinstance(jobs, Processes) else jobs
    if most > 1 and left:
        for by_shape in by_data.values():
            first = next(iter(by_shape.values()))[0]
            first.train_first(federations.networks, lambda text: tick(0, text))
        federations.drop(*by_data)  # each process loads its own
        give_back()
        alike = [a for by_shape in by_data.values() for a in by_shape.values()]
        shares = _shares(alike, together, most)
        with nullcontext(jobs) if isinstance(jobs, Processes) else Processes(jobs) as processes:
            _beside(shares, journal, together, tick, processes, tracked, federations.networks.folder)
        return [journal[c] for c in wanted]
    for data, by_shape in by_data.items():
        for same in by_shape.values():
            for group in computed(same, federations, together, tracked, tick):
                journal.add([entry_of(c, run, journal.curves, journal.scores) for c, run in group])
        federations.drop(data)
    return [journal[c] for c in wanted]


def _shares(alike: Sequence[list[Config]], together: int, jobs: int) -> list[list[Config]]:
    """Runs that are alike, cut into shares for processes.

    A share has equally many runs of each seed, as far as that leaves no process idle: only then do those of a seed share
    their minibatches.
    """
    if alike[0][0].tree["train"]["device"].startswith("cuda"):
        # processes share the GPU, where a run alone costs as much as many together
        return [a[i : i + together] for a in alike for i in range(0, len(a), together)]
    # no process stands idle long; if all are alike they cost alike, so that each process has one share of them
    most = -(-sum(map(len, alike)) // (jobs if len(alike) == 1 else 2 * jobs))

    def cut(runs: list[Config], by: int) -> list[list[Config]]:
        size = min(-(-most // by) * by, max(together // by * by, min(by, together)))
        return [runs[i : i + size] for i in range(0, len(runs), size)]

    in_turn = [_seeds_in_turn(a) for a in alike]
    shares = [share for runs, seeds in in_turn for share in cut(runs, seeds)]
    return shares if len(shares) >= jobs else [share for runs, _ in in_turn for share in cut(runs, 1)]


def _seeds_in_turn(runs: Sequence[Config]) -> tuple[list[Config], int]:
    """Runs in the order: one of each seed, the next of each seed, ...; and how many seeds there are."""
    seen: Counter[int] = Counter()
    rank = []
    for c in runs:
        rank.append(seen[c.tree["train"]["seed"]])
        seen[c.tree["train"]["seed"]] += 1
    return [c for _, c in sorted(zip(rank, runs, strict=True), key=lambda pair: pair[0])], len(seen)


class Processes:
    """Processes that compute beside one another, begun when there is work for them; they keep what they have compiled.

    Args:
        most: how many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.last: list[_Share | None] = []  # what each computes, or did last
        self._pools: list[ProcessPoolExecutor] = []
        self._spawn = multiprocessing.get_context(
            "spawn"
        )  # a forked process would inherit torch's threads, and hang
        self._done: Any = None  # how much they have done, in runs; to write it waits for nobody

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown()

    @property
    def done(self) -> float:
        return 0.0 if self._done is None else float(self._done.value)

    def begin(self, n: int) -> None:
        """Let there be n, or as many as there may be."""
        self._done = self._done or self._spawn.Value("d", 0.0)
        while len(self._pools) < min(n, self.most):
            self._pools.append(
                ProcessPoolExecutor(1, self._spawn, initializer=_begin, initargs=(self._done,))
            )
            self.last.append(None)

    def idle(self, n: int, left: Sequence[_Share]) -> list[int]:
        """The n that should begin, when none computes: those first that have compiled steps for what is left."""
        wanted = {share.steps for share in left} - {None}
        has = [last is not None and last.steps in wanted for last in self.last]
        return sorted(range(len(has)), key=lambda process: not has[process])[:n]

    def give(self, process: int, share: _Share, *more: Any) -> Future[None]:
        self.last[process] = share
        return self._pools[process].submit(_compute, [c.tree for c in share.runs], *more)

    def stop(self) -> None:
        """End them at once, whatever they compute."""
        for pool in self._pools:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown()
        self._pools, self.last = [], []


def _beside(
    shares: Sequence[list[Config]],
    journal: Journal,
    together: int,
    tick: Tick,
    processes: Processes,
    tracked: Tracked | None,
    networks: Path | None,
) -> None:
    """Compute shares of runs, each of which are alike, in several processes.

    When one fails no more are begun; those that run are waited for, and then its error is raised. Where this process is
    interrupted, nothing is waited for.
    """
    left = [_Share.of(share) for share in shares]
    n = min(processes.most, len(left))
    words, told = f"{n} processes", processes.done
    path = journal.path.absolute()
    failed: BaseException | None = None
    running: dict[Future[None], int] = {}

    def give(process: int) -> None:
        share = _next(left, processes.last[process], processes.last)
        left.remove(share)
        more = (together, path, journal.curves, journal.scores, tracked, networks)
        running[processes.give(process, share, *more)] = process

    tick(0, words)
    processes.begin(n)
    try:
        for process in processes.idle(n, left):
            give(process)
        while running:
            ended, _ = wait(running, _LOOK, FIRST_COMPLETED)
            now = processes.done
            tick(now - told, words)
            told = now
            for share in ended:
                process = running.pop(share)
                failed = failed or share.exception()
                if left and failed is None:
                    give(process)
    except BrokenProcessPool as error:  # one that had nothing to do
        processes.stop()
        failed = failed or error
    except BaseException:  # an interrupt, and no run's own error
        processes.stop()
        raise
    journal.read()
    if isinstance(failed, BrokenProcessPool):
        raise FedsaddleError(
            f"jobs: one of {n} processes was killed, perhaps for want of memory: use fewer; or your script starts processes "
            'at import: put the call under if __name__ == "__main__":'
        )
    if failed is not None:
        raise failed


class _Share(NamedTuple):
    """Runs that are alike, for one process."""

    runs: list[Config]
    data: str
    steps: str | None  # what is compiled for them; None where nothing is

    @classmethod
    def of(cls, runs: list[Config]) -> _Share:
        tree = {k: v for k, v in runs[0].tree.items() if k not in ("data", "partition", "transform")}
        return cls(
            runs, Federations.key(runs[0]), shape(Config(tree)) if tree["train"].get("compile") else None
        )


def _next(left: Sequence[_Share], last: _Share | None, others: Sequence[_Share | None]) -> _Share:
    """What a process should compute next: compiled steps that it has, or else that no other has yet; data that it has."""
    at_others = {share.steps for share in others if share is not None}

    def suits(share: _Share) -> tuple[bool, bool, bool]:
        mine = last is not None and share.steps == last.steps
        return (
            share.steps is not None and mine,
            share.steps is not None and share.steps not in at_others,
            last is not None and share.data == last.data,
        )

    return max(left, key=suits)  # the first of equals


_done: Any = None  # of a process of several: how much all of them have done


def _begin(done: Any) -> None:
    """Of a process: one thread, and where to say how much is done; Ctrl-C is for the first process, with which it ends."""
    global _done
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    torch.set_num_threads(1)
    _done = done


def _end_with_the_first() -> None:
    """Else a process whose first one was killed would wait for work, and hold its memory, for ever."""
    first = multiprocessing.parent_process()
    assert first is not None
    first.join()
    os._exit(1)


def _tell(n: float, text: str) -> None:
    if _done is not None:
        with _done.get_lock():
            _done.value += n


def _compute(
    trees: Sequence[dict[str, Any]],
    together: int,
    journal: Path,
    curves: Sequence[str],
    scores: bool,
    tracked: Tracked | None,
    networks: Path | None,
) -> None:
    """In a process of its own: compute runs that are alike, and write down each group of them as soon as it is finished."""
    give_back()  # other processes need what an earlier share had
    alike = [Config(tree) for tree in trees]
    federations = _last_federation(Federations.key(alike[0]), networks)
    for group in computed(alike, federations, together, tracked, _tell):
        append(journal, [entry_of(c, run, curves, scores) for c, run in group])


@functools.lru_cache(maxsize=1)  # shares of the same data follow one another
def _last_federation(key: str, networks: Path | None) -> Federations:
    return Federations(Networks(networks))
