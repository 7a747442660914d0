"""Many runs: what is alike is computed together, and what is finished is written down, so that nothing runs twice.

Runs that differ in seed or real-valued hyper-parameters only are computed as one (replicas.py), which changes results by
rounding at most; the others follow one by one, or beside one another in several processes.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import io
import json
import multiprocessing
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle import config as configs
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.config import Config, Hear
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.folder import held, write_whole
from fedsaddle.networks import Networks
from fedsaddle.parse import from_json, from_toml
from fedsaddle.problems import PROBLEMS
from fedsaddle.replicas import run_all, stackable
from fedsaddle.toml import to_toml
from fedsaddle.trackers import flat
from fedsaddle.train import Run

Entry = dict[str, Any]  # a line of a journal
Curves = dict[str, list[Any]]  # "round" and the values of metrics in these rounds
Tick = Callable[[float, str], None]  # so many runs more are done, parts of runs too, and what goes on now

TOGETHER = 64
NETWORKS = "networks"  # folder beside a journal: those that transforms train first
_LOOK = 0.5  # seconds between two looks at what other processes have done
_MOST_SCORES = 50_000  # samples; of more, scores are not kept
_PARTS: tuple[Literal["valid", "test"], ...] = ("valid", "test")


class Journal:
    """Finished runs by their whole config, in a file.

    Args:
        path: runs.jsonl; one line a run. A last line that was cut off is dropped. Several processes may add to it.
        curves: metrics of which every evaluation is kept (six digits), not only the last one.
        scores: whether those of validation and test samples are kept, in a folder beside the file (`kept_scores`).
    """

    def __init__(self, path: Path, curves: Sequence[str] = (), scores: bool = False) -> None:
        self.path, self.curves, self.scores = path, tuple(curves), scores
        self._done: dict[str, Entry] = {}
        self._renewed = False
        if not path.exists():
            return
        whole = path.read_bytes()
        if not _ends(whole):  # another process writes just now, or was killed while it wrote
            with held(path) as file:
                whole = _mended(file)
        for n, line in enumerate(whole.split(b"\n")[:-1], 1):
            try:
                entry = {"metrics": {}, **from_json(line)}
                if not (isinstance(entry["metrics"], dict) and isinstance(entry.get("curves", {}), dict)):
                    raise ValueError
                self._done[entry["config"]] = entry
            except (ValueError, KeyError, TypeError):
                raise FedsaddleError(f"{path}, line {n}: is no finished run; delete the line") from None

    def __contains__(self, config: Config) -> bool:
        key = key_of(config)
        if key not in self._done and not self._renewed:
            self._renew()
        entry = self._done.get(key)
        if entry is None:
            return False
        return "diverged" in entry["metrics"] or entry.get("curves", {}).keys() >= set(self.curves)

    def __getitem__(self, config: Config) -> Entry:
        return self._done[key_of(config)]

    def federations(self) -> Federations:
        """Data of its runs, whose networks are kept beside it."""
        return Federations(Networks(self.path.parent / NETWORKS))

    def _renew(self) -> None:
        """A run that was written down before some option existed ran with what is now its default (CONTRIBUTING.md)."""
        self._renewed = True
        for text, entry in list(self._done.items()):
            with suppress(FedsaddleError, ValueError):
                self._done.setdefault(key_of(configs.resolve(from_toml(text), rehearse=False)), entry)

    def add(self, entries: Sequence[Entry]) -> None:
        """Write down finished runs."""
        self._done |= {entry["config"]: entry for entry in entries}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scores = [(entry, entry.pop("scores", {})) for entry in entries]
        with held(self.path) as journal:
            if journal.tell() > 0:  # at its end
                journal.seek(-1, os.SEEK_END)
                if journal.read() != b"\n":
                    _mended(journal)
            journal.write("".join(json.dumps(entry) + "\n" for entry in entries).encode())
        for entry, parts in scores:  # after the runs, which are not lost where these cannot be written
            for part, found in parts.items():
                file = _scores_file(self.path.parent, entry, part)
                file.parent.mkdir(exist_ok=True)
                buffer = io.BytesIO()
                np.save(buffer, found)
                write_whole(file, buffer.getvalue())


def _ends(text: bytes) -> bool:
    """Whether the last line of a journal is whole."""
    return text[-1:] in (b"", b"\n")


def _mended(file: IO[bytes]) -> bytes:
    """What stands in a journal that nobody else writes meanwhile, less a last line that was cut off."""
    file.seek(0)
    text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        file.truncate(len(whole))
    return whole


def key_of(config: Config) -> str:
    """A whole config, less who is told of the run, which changes no result."""
    options = {k: v for k, v in config.tree["train"].items() if k != "track"}
    return configs.dump(Config({**config.tree, "train": options}))


def kept_scores(folder: Path, entry: Entry, part: str) -> tuple[Tensor, Tensor] | None:
    """A run's scores of "valid" or "test" samples [n] and which are positive [n] bool; None where they were not kept."""
    with suppress(OSError, ValueError, EOFError):
        scores, positive = torch.from_numpy(np.load(_scores_file(folder, entry, part)))
        return scores, positive > 0
    return None


def _scores_file(folder: Path, entry: Entry, part: str) -> Path:
    return folder / "scores" / f"{hashlib.sha256(entry['config'].encode()).hexdigest()[:24]}-{part}.npy"


def _entry(config: Config, run: Run, curves: Sequence[str], scores: bool) -> Entry:
    """What is written down of a finished run."""
    key = {"config": key_of(config)}
    try:
        entry: Entry = {"metrics": run.metrics, "clients_evaluated_on": run.evaluated_on}
        entry |= {k: v for k, v in run.began.items() if v is not None}
        if scores:
            found = {part: run.scores(part) for part in _PARTS}
            entry["scores"] = {
                part: torch.stack([own[0], own[1].to(own[0])]).numpy()
                for part, own in found.items()
                if own is not None and len(own[0]) <= _MOST_SCORES
            }
        return key | entry | ({"curves": _curves(run, curves)} if curves else {})
    except Diverged:
        return key | {"metrics": {"diverged": 1.0}}


def _curves(run: Run, names: Sequence[str]) -> Curves:
    """The evaluated rounds, and the metrics there."""
    evaluated = [record for record in run.records if run.evaluated(record["round"])]
    for name in names:
        if name not in evaluated[-1]:
            raise FedsaddleError(f"curve {name!r}: is no metric of this run; it has {', '.join(run.metrics)}")
    rounds = {"round": [record["round"] for record in evaluated]}
    # monitors of an algorithm are not there before the first round
    return rounds | {k: [short(record.get(k)) for record in evaluated] for k in names}


def short(value: float | None) -> float | None:
    """Six digits."""
    return None if value is None else float(f"{value:.6g}")


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


def finish(
    wanted: Sequence[Config],
    journal: Journal,
    together: int = TOGETHER,
    tick: Tick = lambda n, text: None,
    federations: Federations | None = None,
    jobs: int = 1,
) -> list[Entry]:
    """Compute the runs that the journal lacks, and return the entries of all.

    Args:
        wanted: one config a run.
        journal: gets each run as soon as it is finished.
        together: at most so many runs are computed as one.
        tick: hears of the progress.
        federations: those that are loaded already.
        jobs: so many processes compute beside one another, each with one thread and its own copy of the data.
    """
    left = {key_of(c): c for c in wanted if c not in journal}
    tracked = Tracked.of(wanted, journal.path.parent)
    tick(len(wanted) - len(left), "")
    by_data: dict[str, dict[str, list[Config]]] = {}
    for c in left.values():
        by_data.setdefault(Federations.key(c), {}).setdefault(_shape(c), []).append(c)
    federations = federations or journal.federations()
    if jobs > 1 and left:
        for by_shape in by_data.values():
            first = next(iter(by_shape.values()))[0]
            first.train_first(federations.networks, lambda text: tick(0, text))
        federations.drop(*by_data)  # each process loads its own
        _give_back()
        alike = [a for by_shape in by_data.values() for a in by_shape.values()]
        shares = _shares(alike, together, jobs)
        _beside(shares, journal, together, tick, jobs, tracked, federations.networks.folder)
        return [journal[c] for c in wanted]
    for data, by_shape in by_data.items():
        for same in by_shape.values():
            for group in _computed(same, federations, together, tracked, tick):
                journal.add([_entry(c, run, journal.curves, journal.scores) for c, run in group])
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


def _beside(
    shares: Sequence[list[Config]],
    journal: Journal,
    together: int,
    tick: Tick,
    jobs: int,
    tracked: Tracked | None,
    networks: Path | None,
) -> None:
    """Compute shares of runs, each of which are alike, in several processes.

    When one fails no more are begun; those that run are waited for and written down, and then its error is raised.
    """
    spawn = multiprocessing.get_context("spawn")  # a forked process would inherit torch's threads, and hang
    done = spawn.Value("d", 0.0)  # how much the processes have done, in runs; to write it waits for nobody
    with ProcessPoolExecutor(jobs, spawn, initializer=_begin, initargs=(done,)) as pool:
        waiting = {
            pool.submit(
                _share, [c.tree for c in share], together, journal.curves, journal.scores, tracked, networks
            )
            for share in shares
        }
        words, told = f"{min(jobs, len(shares))} processes", 0.0
        failed: BaseException | None = None
        tick(0, words)
        try:
            while waiting:
                ended, waiting = wait(waiting, _LOOK, FIRST_COMPLETED)
                now = done.value
                tick(now - told, words)
                told = now
                for share in ended:
                    if (error := share.exception()) is None:
                        journal.add(share.result())
                    elif failed is None:
                        failed, waiting = error, {other for other in waiting if not other.cancel()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if isinstance(failed, BrokenProcessPool):
        raise FedsaddleError(
            f"jobs: one of {jobs} processes was killed, perhaps for want of memory; use fewer"
        )
    if failed is not None:
        raise failed


_done: Any = None  # of a process of several: how much all of them have done


def _begin(done: Any) -> None:
    """Of a process: one thread, and where to say how much is done."""
    global _done
    torch.set_num_threads(1)
    _done = done


def _tell(n: float, text: str) -> None:
    if _done is not None:
        with _done.get_lock():
            _done.value += n


def _share(
    trees: Sequence[dict[str, Any]],
    together: int,
    curves: Sequence[str],
    scores: bool,
    tracked: Tracked | None,
    networks: Path | None,
) -> list[Entry]:
    """In a process of its own: the entries of runs that are alike."""
    _give_back()  # other processes need what an earlier share had
    entries = []
    alike = [Config(tree) for tree in trees]
    federations = _last_federation(Federations.key(alike[0]), networks)
    for group in _computed(alike, federations, together, tracked, _tell):
        entries += [_entry(c, run, curves, scores) for c, run in group]
    return entries


@functools.lru_cache(maxsize=1)  # shares of the same data follow one another
def _last_federation(key: str, networks: Path | None) -> Federations:
    return Federations(Networks(networks))


def _shape(config: Config) -> str:
    """Equal for runs that differ in nothing but seed and real-valued hyper-parameters."""
    tree = {k: v for k, v in config.tree.items() if k != "name"}
    tree["train"] = {k: v for k, v in tree["train"].items() if k != "seed"}
    shaping = ALGORITHMS[tree["algorithm"]["name"]].shaping
    real = PROBLEMS[tree["problem"]["name"]].real
    tree["problem"] = {k: "real" if k in real else v for k, v in tree["problem"].items()}
    tree["algorithm"] = {
        k: "real" if isinstance(v, float) and k not in shaping else v for k, v in tree["algorithm"].items()
    }
    return to_toml(tree)


def _computed(
    alike: Sequence[Config],
    federations: Federations,
    together: int,
    tracked: Tracked | None,
    tick: Tick = lambda n, text: None,
) -> Iterator[list[tuple[Config, Run]]]:
    """Finished runs, group by group as they were computed; no more of them exist at a time than that.

    Where a group does not fit into memory, half of it is computed together from then on.
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
        else:
            _give_back()


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


def _give_back() -> None:
    """Free the memory of runs that are over; they refer to themselves."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def over_seeds(runs: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """Mean, standard deviation and values of every metric that all runs have."""
    out = {}
    for name in runs[0]["metrics"]:
        values = [v for run in runs if isinstance(v := run["metrics"].get(name), int | float)]
        if len(values) == len(runs):
            std = statistics.stdev(values) if len(values) > 1 else 0.0
            out[name] = {"mean": statistics.fmean(values), "std": std, "values": values}
    return out


def mean_and_std(values: Mapping[str, Any]) -> str:
    """0.9312 ± 0.0021; without the deviation of a single value."""
    mean, std = values["mean"], values["std"]
    number = ".4f" if 1e-3 <= abs(mean) < 1e4 or mean == 0 else ".3g"
    return f"{mean:{number}}" + (f" ± {std:{number}}" if len(values["values"]) > 1 else "")


class Bar:
    """A progress bar over runs, on stderr; by default when that is a terminal."""

    def __init__(self, show: bool | None, total: int, title: str) -> None:
        self.bar, self.title, self.runs = None, title, 0.0
        if not (sys.stderr.isatty() if show is None else show):
            return
        from rich import progress
        from rich.console import Console

        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
            progress.TextColumn("runs"), progress.TimeRemainingColumn(), console=Console(stderr=True),
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self.task = self.bar.add_task(title, total=total)

    def __enter__(self) -> Tick:
        if self.bar is not None:
            self.bar.start()
        return self._tick

    def _tick(self, n: float, text: str) -> None:
        self.runs += n
        if self.bar is not None:  # the column cuts digits off
            self.bar.update(
                self.task,
                completed=round(self.runs, 6),
                description=", ".join(filter(None, (self.title, text))),
            )

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
