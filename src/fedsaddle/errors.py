"""The one exception that a user's mistake raises: one line that names the thing, the rule, the value and the remedy."""

import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class FedsaddleError(ValueError):
    """Bad input or a run that cannot go on; the command line prints its one line and exits with code 2."""

    def __init__(self, message: object = "") -> None:
        super().__init__(" ".join(str(message).split()))  # one line, whatever a value that it shows has in it


class Diverged(FedsaddleError):
    """The iterate of a run is no longer finite."""


class ClientWorkError(FedsaddleError):
    """Client work failed, for instance in the user's own loss; says in which round, phase and client."""


class NobodyAnswered(FedsaddleError):
    """No client answered a phase; the run leaves the state and the clients' memory of that round as they were."""


def require(name: str, ok: bool, rule: str, value: Any) -> None:
    """Refuse an argument of `train` that breaks a rule."""
    if not ok:
        raise FedsaddleError(f"train: {name} must be {rule}, got {value}")


def optional_import(module: str, purpose: str, extra: str = "", package: str = "") -> Any:
    """Import a module where it is needed, with a remedy when it is missing.

    Args:
        module: for example "PIL.Image".
        purpose: what needs it.
        extra: the extra of fedsaddle that brings it.
        package: the package that brings it, where that has another name.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        package = f"fedsaddle[{extra}]" if extra else package or name
        raise FedsaddleError(f"{purpose} needs {name}: pip install '{package}'") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known name, in whatever case; "" when none is near."""
    there = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), list(there), n=1)
    return f"did you mean {there[near[0]]!r}?" if near else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known name, else all of them."""
    names = list(known)
    return did_you_mean(name, names) or f"known are {', '.join(names) or 'none'}"


def similar_file(path: str | os.PathLike[str]) -> str:
    """A hint at the path that was meant: the only .toml file of a folder, else the nearest name; "" when none is near.

    A file that is there is no hint at itself.
    """
    there = Path(path)
    try:
        if there.is_dir():
            inside = [str(file) for file in there.glob("*.toml")]
            return f"did you mean {inside[0]!r}?" if len(inside) == 1 else ""
        if there.exists():
            return ""
        rest: list[str] = []
        while not there.parent.is_dir():
            rest, there = [there.name, *rest], there.parent
        near = difflib.get_close_matches(there.name, os.listdir(there.parent), n=1, cutoff=0.75)
    except OSError:  # a folder that may not be read
        return ""
    return f"did you mean {str(there.with_name(near[0]).joinpath(*rest))!r}?" if near else ""


def warn(message: str) -> None:
    """Warn at the line outside of this package that led here, from whatever depth."""
    level, frame = 1, sys._getframe()
    # by module: the __init__ of a dataclass has no file
    while frame.f_globals.get("__name__", "").partition(".")[0] == "fedsaddle" and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]


IMPUTE = "drop or impute it before building the federation"


class BadRow(FedsaddleError):
    """A row that cannot be used.

    Args:
        what: is wrong with it, for example "x has NaN at row 4".
        row: its number, from 0.
        remedy: what to do.
    """

    def __init__(self, what: str, row: int, remedy: str = IMPUTE) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.row, self.remedy = what, row, remedy


class BadArgument(FedsaddleError):
    """An argument that the data do not fit; the message begins with its name, before which a config puts its section."""


def short(values: Iterable[Any], most: int = 8) -> str:
    """`'a', 'b', 'c', ... (12 in all)` for messages."""
    items = [repr(v) for v in values]
    return ", ".join(items) if len(items) <= most else f"{', '.join(items[:most])}, ... ({len(items)} in all)"
