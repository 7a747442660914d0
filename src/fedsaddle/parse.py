"""Text from outside as trees. Whatever is wrong with it is a ValueError: also numbers of too many digits, and nesting that
is too deep for a parser.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from fedsaddle.errors import FedsaddleError


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
