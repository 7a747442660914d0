"""What is finished of many runs, in a file: nothing runs twice."""

from __future__ import annotations

import hashlib
import io
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsaddle import config as configs
from fedsaddle.config import Config
from fedsaddle.errors import Diverged, FedsaddleError
from fedsaddle.folder import held, write_whole
from fedsaddle.parse import from_json, from_toml
from fedsaddle.train import Run

Entry = dict[str, Any]  # a line of a journal
Curves = dict[str, list[Any]]  # "round" and the values of metrics in these rounds

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
        self._size = self._lines = 0  # of what was read
        self.read()

    def read(self) -> None:
        """Take in the lines that the file has got since it was last read, from other processes too."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as journal:
            journal.seek(self._size)
            new = journal.read()
        if not _ends(new):  # another process writes just now, or was killed while it wrote
            with held(self.path) as journal:
                new = _mended(journal)[self._size :]
        self._size += len(new)
        for line in new.split(b"\n")[:-1]:
            self._lines += 1
            try:
                entry = {"metrics": {}, **from_json(line)}
                if not (isinstance(entry["metrics"], dict) and isinstance(entry.get("curves", {}), dict)):
                    raise ValueError
                self._done[entry["config"]] = entry
            except (ValueError, KeyError, TypeError):
                raise FedsaddleError(
                    f"{self.path}, line {self._lines}: is no finished run; delete the line"
                ) from None

    def __contains__(self, config: Config) -> bool:
        key = key_of(config)
        if key not in self._done and not self._renewed:
            self._renew()
        entry = self._done.get(key)
        if entry is None:
            return False
        return "diverged" in entry["metrics"] or entry.get("curves", {}).keys() >= set(self.curves)

    def __len__(self) -> int:
        return len(self._done)

    def __getitem__(self, config: Config) -> Entry:
        return self._done[key_of(config)]

    def _renew(self) -> None:
        """A run that was written down before some option existed ran with what is now its default (CONTRIBUTING.md)."""
        self._renewed = True
        for text, entry in list(self._done.items()):
            with suppress(FedsaddleError, ValueError):
                self._done.setdefault(key_of(configs.resolve(from_toml(text), rehearse=False)), entry)

    def add(self, entries: Sequence[Entry]) -> None:
        """Write down finished runs."""
        append(self.path, entries)
        self._done |= {entry["config"]: entry for entry in entries}


def append(path: Path, entries: Sequence[Entry]) -> None:
    """Write finished runs into a journal, and their scores beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scores = [(entry, entry.pop("scores", {})) for entry in entries]
    with held(path) as journal:
        if journal.tell() > 0:  # at its end
            journal.seek(-1, os.SEEK_END)
            if journal.read() != b"\n":
                _mended(journal)
        journal.write("".join(json.dumps(entry) + "\n" for entry in entries).encode())
    for entry, parts in scores:  # after the runs, which are not lost where these cannot be written
        for part, found in parts.items():
            file = _scores_file(path.parent, entry, part)
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


def entry_of(config: Config, run: Run, curves: Sequence[str], scores: bool) -> Entry:
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
