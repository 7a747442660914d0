"""Text from outside as trees. Whatever is wrong with it is a ValueError: also numbers of too many digits, and nesting that
is too deep for a parser.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedsaddle.errors import FedsaddleError

T = TypeVar("T")


def from_json(data: str | bytes) -> Any:
    """The value that JSON text stands for."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def from_toml(text: str) -> dict[str, Any]:
    """The table that TOML text stands for."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return from_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        table = path.suffix in (".csv", ".parquet")
        remedy = f"; for a config of this table: fedsaddle new --data {path}" if table else ""
        raise FedsaddleError(f"{path}: is not valid TOML: {error}{remedy}") from None


def called(spec: str, table: Mapping[str, Callable[..., T]], remedy: str, what: str = "prox") -> T:
    """The thing that a text such as "l1(0.001)" names in a table, made with its numbers."""
    name, _, arguments = spec.strip().partition("(")
    if name not in table:
        raise FedsaddleError(f"{what}: unknown name {name!r}; known are {', '.join(table)}, {remedy}")
    try:
        if arguments and not arguments.endswith(")"):
            raise ValueError
        numbers = [float(a) for a in arguments[:-1].split(",") if a.strip()]
        return table[name](*numbers)
    except (TypeError, ValueError) as error:
        if isinstance(error, FedsaddleError):
            raise
        raise FedsaddleError(
            f"{what}: {spec!r} is not a valid call of {name}, whose arguments are numbers"
        ) from None
