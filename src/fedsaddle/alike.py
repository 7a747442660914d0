"""Runs that are alike are computed as one: those that differ in seed or real-valued hyper-parameters only (replicas.py).

That changes results by rounding at most. The others follow one by one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fedsaddle.config import Config, Hear
from fedsaddle.federation import Federation
from fedsaddle.journal import key_of
from fedsaddle.networks import Networks
from fedsaddle.problems import PROBLEMS
from fedsaddle.replicas import run_all, stackable
from fedsaddle.schema import named
from fedsaddle.toml import to_toml
from fedsaddle.trackers import flat
from fedsaddle.train import Run

Tick = Callable[[float, str], None]  # so many runs more are done, parts of runs too, and what goes on now

NETWORKS = "networks"  # folder beside a journal: those that transforms train first


class Tracked(NamedTuple):
    """How runs are told apart where they are tracked."""

    folder: Path
    names: dict[str, str]  # by the key of a run

    @classmethod
    def of(cls, wanted: Sequence[Config], folder: Path) -> Tracked | None:
        """Runs by what differs between them; None where none is tracked."""
        if not any(c.tree["train"].get("track") for c in wanted):
            return None
        trees = {key_of(c): flat(c.tree) for c in wanted}
        first = next(iter(trees.values()))
        keys = dict.fromkeys(k for tree in trees.values() for k in tree if k != "train.track")
        differ = [k for k in keys if any(tree.get(k) != first.get(k) for tree in trees.values())]
        names = {}
        for i, (key, tree) in enumerate(trees.items()):
            what = ", ".join(f"{k}={tree[k]}" for k in differ if k in tree)
            names[key] = f"{i + 1:0{len(str(len(trees)))}d} {what}"[:120].rstrip()
        return cls(folder, names)


class Federations:
    """The federation of each distinct [data], [partition] and [transform], loaded once.

    Args:
        networks: those that transforms train first; they stay when their data are dropped.
    """

    def __init__(self, networks: Networks | None = None) -> None:
        self._loaded: dict[str, Federation] = {}
        self.networks = networks or Networks()

    @classmethod
    def beside(cls, journal: Path) -> Federations:
        """Those of a journal's runs, whose networks are kept beside it."""
        return cls(Networks(journal.parent / NETWORKS))

    @staticmethod
    def key(config: Config) -> str:
        return to_toml({k: config.tree[k] for k in ("data", "partition", "transform") if k in config.tree})

    def start(self, config: Config, tracked: Tracked | None = None, hear: Hear | None = None) -> Run:
        """The run of a config, not computed yet; tracked if it is told as what."""
        key = self.key(config)
        setup = config.build(self._loaded.get(key), networks=self.networks, hear=hear)
        self._loaded[key] = setup.federation
        if tracked is None:
            return config.start(setup, progress=False, track=None)
        run = config.start(setup, progress=False)
        run.tracking.folder, run.tracking.group = tracked.folder, config.name
        run.tracking.name = tracked.names[key_of(config)]
        return run

    def drop(self, *keys: str) -> None:
        for key in keys:
            self._loaded.pop(key, None)


def shape(config: Config) -> str:
    """Equal for runs that differ in nothing but seed and real-valued hyper-parameters."""
    tree = {k: v for k, v in config.tree.items() if k != "name"}
    tree["train"] = {k: v for k, v in tree["train"].items() if k != "seed"}
    algorithm = named("algorithm", tree["algorithm"])
    real = PROBLEMS[tree["problem"]["name"]].real
    tree["problem"] = {k: "real" if k in real else v for k, v in tree["problem"].items()}
    tree["algorithm"] = {k: "real" if algorithm.is_real(k, v) else v for k, v in tree["algorithm"].items()}
    return to_toml(tree)


def computed(
    alike: Sequence[Config],
    federations: Federations,
    together: int,
    tracked: Tracked | None,
    tick: Tick = lambda n, text: None,
) -> Iterator[list[tuple[Config, Run]]]:
    """Finished runs, group by group as they were computed; no more of them exist at a time than that.

    A group is emptied when the next is asked for. Where one does not fit into memory, half of it is computed
    together from then on.
    """
    waiting = list(alike)
    while waiting:
        group: list[tuple[Config, Run]] = []
        told = _Told(tick)
        try:
            group = _group(waiting, federations, together, tracked, lambda text: tick(0, text))
            told.text = _words(len(group))
            told(0)
            run_all([run for _, run in group], told)
            told(len(group) - told.runs)  # some have diverged
        except Exception as error:
            told(-told.runs)
            together = (len(group) or min(together, len(waiting))) // 2
            if together == 0 or not _out_of_memory(error):
                raise
            group = []
        if group:
            yield group
            taken = {id(c) for c, _ in group}
            waiting = [c for c in waiting if id(c) not in taken]
            group.clear()  # who asks has the list still
        else:
            give_back()


class _Told:
    """How far a group of runs has come, as it was told."""

    def __init__(self, tick: Tick) -> None:
        self.tick, self.text, self.runs = tick, "", 0.0

    def __call__(self, n: float) -> None:
        self.runs += n
        self.tick(n, self.text)


def _group(
    waiting: Sequence[Config], federations: Federations, together: int, tracked: Tracked | None, hear: Hear
) -> list[tuple[Config, Run]]:
    """The first of the runs that wait, and those that can be computed as one with it."""
    first = federations.start(waiting[0], tracked, hear)
    most = together if stackable([first]) is None else 1
    some = [(c, federations.start(c, tracked)) for c in waiting[1:most]]
    return [(waiting[0], first), *(pair for pair in some if stackable([first, pair[1]]) is None)]


def _out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what caused it, is for want of memory, of a GPU or of the machine."""
    causes = [e for e in (error, error.__cause__) if e is not None]
    kinds = (torch.OutOfMemoryError, MemoryError)
    return any(isinstance(e, kinds) or "DefaultCPUAllocator" in str(e) for e in causes)


def _words(n: int) -> str:
    return f"{n} together" if n > 1 else "one by one"


def give_back() -> None:
    """Free the memory of runs that are over; they refer to themselves."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
