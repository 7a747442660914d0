"""A config file as it is read: what `--set` does to it, and where its paths lead. config.py checks what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsaddle.errors import FedsaddleError, warn
from fedsaddle.keys import Tree
from fedsaddle.parse import from_toml, read_toml
from fedsaddle.schema import NAMED, SECTIONS, keys

_PATHS = (
    ("data", "files"),
    ("data", "file"),
    ("data", "sites"),
    ("data", "data_dir"),
    ("transform", "folder"),
    ("participation", "rounds"),
)


def read(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Tree:
    """A file with overrides, its paths absolute, not checked yet."""
    file = Path(path)
    tree = read_toml(file)
    anchor(tree, file.resolve().parent)
    of_file = {k: dict(part) for k, part in tree.items() if isinstance(part, dict)}
    changed = [_override(tree, assignment) for assignment in overrides]
    for key, name in drop_strangers(of_file, tree, changed):
        warn(f"{key} of the file is left out: {name} has none")
    anchor(tree, Path.cwd())  # what is still relative came from an override
    return tree


def _override(tree: Tree, assignment: str) -> list[str]:
    """Put one "a.b=value" into the tree; a value that is no TOML is text. Returns the path."""
    path, equals, text = assignment.partition("=")
    names = [name.strip() for name in path.split(".")]
    whole = names[0] in ("name", "sweep", *SECTIONS)
    if not equals or not all(names) or (len(names) == 1 and not whole):
        raise FedsaddleError(f"--set {assignment}: must be section.key=value, such as algorithm.lr=0.05")
    try:
        parsed = from_toml(f"value = {text}")
        value = parsed["value"] if len(parsed) == 1 else text.strip()
    except ValueError:
        value = text.strip()
    put(tree, names, value, f"--set {assignment}")
    return names


def drop_strangers(
    of_file: Mapping[str, Any], tree: Tree, changed: Sequence[Sequence[str]]
) -> list[tuple[str, str]]:
    """Where changes give a section another name, leave out the file's keys that the new one has not.

    Args:
        of_file: the sections before the changes.
        tree: after them.
        changed: the paths that they set.

    Returns:
        the keys that are left out, such as "algorithm.weights", each with the new name.
    """
    dropped = []
    for section, before in of_file.items():
        part = tree.get(section)
        if not (isinstance(before, dict) and isinstance(part, dict)) or [section] in changed:
            continue
        for way, other in (("name", "module"), ("module", "name")):
            if [section, way] in changed and [section, other] not in changed and other in before:
                part.pop(other, None)  # one takes the other's place
        name = part.get("name")
        was = before.get("name", None if "module" in before else name)
        if [section, "name"] not in changed or name == was or not isinstance(name, str):
            continue
        if name not in NAMED.get(section, {}):
            continue
        known, own = {"name", *keys(section, name)}, [path[:2] for path in changed]
        for key in [k for k in before if k in part and k not in known and [section, k] not in own]:
            del part[key]
            dropped.append((f"{section}.{key}", name))
    return dropped


def put(tree: Tree, names: Sequence[str], value: Any, source: str) -> None:
    """Set the value at a path, whose sections are made where they are missing.

    Args:
        names: the path; a number counts the tables of a list such as [[transform]].
        source: who asks for it, for messages.
    """
    place: Any = tree
    for depth, name in enumerate(names):
        where = ".".join(names[:depth])
        at: Any = name
        if isinstance(place, dict):
            place.setdefault(name, {})
        elif not isinstance(place, list):
            raise FedsaddleError(f"{source}: {where} is a value, not a section")
        elif not name.isdecimal() or int(name) >= len(place):
            raise FedsaddleError(f"{source}: {where} has {len(place)} entries, 0 is the first")
        else:
            at = int(name)
        if depth == len(names) - 1:
            place[at] = value
        place = place[at]


def anchor(tree: Tree, folder: Path) -> None:
    """Make the paths of a tree absolute."""
    with_paths(tree, lambda path: str(folder / Path(path).expanduser()))


def with_paths(tree: Tree, change: Callable[[str], str]) -> None:
    """Replace the paths of a tree, which need not be checked yet."""

    def tables(section: str) -> list[Tree]:
        found = tree.get(section)
        return [part for part in (found if isinstance(found, list) else [found]) if isinstance(part, dict)]

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(v) for v in value]
        return change(value) if isinstance(value, str) and value else value

    for section, key in _PATHS:
        for part in tables(section):
            if key in part:
                part[key] = changed(part[key])
    for change_of_data in tables("transform"):
        if isinstance(first := change_of_data.get("first"), dict):
            with_paths(first, change)
