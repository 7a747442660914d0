"""Writing TOML, which Python's tomllib only reads."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fedsaddle.errors import FedsaddleError


def to_toml(tree: Mapping[str, Any]) -> str:
    """A nested dict as TOML: values first, then [tables] and [[arrays of tables]].

    Example:
        >>> print(to_toml({"model": {"name": "mlp", "hidden": [8, 4]}, "seed": 1}), end="")
        seed = 1
        <BLANKLINE>
        [model]
        name = "mlp"
        hidden = [8, 4]
    """
    return "\n".join(_lines(tree, "")).strip() + "\n"


def to_key(name: str) -> str:
    """A key, in quotes where TOML wants them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else to_value(name)


def to_value(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):  # Python writes no decimal number of thousands of digits
        return hex(value) if isinstance(value, int) and value.bit_length() > 10_000 else repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{to_key(k)} = {to_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise FedsaddleError(f"TOML has no {type(value).__name__}, got {value!r}")


def quoted(value: Any) -> str:
    """A value for messages, as a file has it, cut to 60 characters."""
    text = to_value(value)
    return text if len(text) <= 60 else text[:57] + "..."


def in_line(point: Mapping[str, Any]) -> str:
    """Keys and values in one line."""
    return ", ".join(f"{k} = {quoted(v)}" for k, v in point.items())


def _lines(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    def is_tables(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)

    for key, value in table.items():
        if not isinstance(value, dict) and not is_tables(value):
            yield f"{to_key(key)} = {to_value(value)}"
    for key, value in table.items():
        header = prefix + to_key(key)
        if isinstance(value, dict):
            yield from ("", f"[{header}]", *_lines(value, f"{header}."))
        elif is_tables(value):
            for entry in value:
                yield from ("", f"[[{header}]]", *_lines(entry, f"{header}."))
