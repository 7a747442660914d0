"""Which runs are repetitions of one another: the same config, but for the seed of training."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsaddle.parse import from_toml

_APART = ("seed", "track")  # of [train]: what repetitions may differ in


def grouped(results: Mapping[Path, dict[str, Any]]) -> tuple[dict[str, list[Path]], dict[Path, Path]]:
    """Folders of runs by the name of their row, and those left out, each with the folder of the same run.

    Args:
        results: result.json by folder.
    """
    alike: dict[str, dict[Any, Path]] = {}
    twins: dict[Path, Path] = {}
    for folder, result in results.items():
        runs = alike.setdefault(_described(folder, result), {})
        first = runs.setdefault(result["config"]["train"].get("seed"), folder)
        if first is not folder:
            twins[folder] = first
    short = named(results)
    rows: dict[str, list[Path]] = {}
    for runs in alike.values():
        own = list(runs.values())
        names = [short[folder] for folder in own]
        label = names[0] if len(own) == 1 else f"{_stem(names)} ({len(own)} seeds)"
        rows[label if label not in rows else f"{label}, {names[0]}"] = own
    return rows, twins


def named(folders: Iterable[Path]) -> dict[Path, str]:
    """Folders with their last name, and as many parents as it takes to tell them apart."""
    parts = {folder: folder.resolve().parts for folder in folders}
    depth = 1
    while len({p[-depth:] for p in parts.values()}) < len(set(parts.values())):
        depth += 1
    return {folder: "/".join(p[-depth:]) for folder, p in parts.items()}


def _described(folder: Path, result: dict[str, Any]) -> str:
    """What a run was, but for its seed: its config where there is one, and what is known of its data."""
    kept: dict[str, Any] = {k: dict(part) for k, part in result["config"].items()}
    data = {k: result.get(k) for k in ("test_class_counts", "sample", "client_names")}
    with suppress(OSError, ValueError):  # a run of fs.train has none
        tree = from_toml((folder / "config.toml").read_text(encoding="utf-8"))
        tree.pop("name", None)
        kept = {**tree, "federation": kept.get("federation")}
    train = {k: v for k, v in kept.get("train", {}).items() if k not in _APART}
    return json.dumps({**kept, "train": train, "known": data}, sort_keys=True, default=str)


def _stem(names: Sequence[str]) -> str:
    """What the names of repetitions have in common, without the number of the seed."""
    common = os.path.commonprefix(list(names))  # noqa: RUF071  names, not paths
    cut = any(name[len(common) : len(common) + 1].isdigit() for name in names)  # within a number
    common = re.sub(r"\d+$", "", common) if cut else common
    return re.sub(r"[-_. ]*(seed)?[-_. ]*$", "", common) or names[0]
