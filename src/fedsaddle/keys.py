"""Keys of a TOML table: what values they take, from a signature's annotations, and what is wrong with a table, in words."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedsaddle.errors import FedsaddleError, did_you_mean
from fedsaddle.toml import quoted, to_key

Tree = dict[str, Any]  # what a TOML file, or a section of it, holds


class Key(NamedTuple):
    """What a key of a section may be."""

    type: Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def python(self, value: Any) -> Any:
        """The argument that a TOML value stands for; raises ValidationError."""
        try:
            _adapter(self.type).validate_python(value, strict=True)
        except ValidationError:
            if value == "none" and NoneType in get_args(self.type):
                return None
            raise
        return value


Keys = dict[str, Key]


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))


def keys_of(thing: Callable[..., Any], *skip: str) -> Keys:
    """The arguments of a function, a dataclass or another class, as keys."""
    source: Any = thing.func if isinstance(thing, functools.partial) else thing
    if inspect.isclass(source) and not dataclasses.is_dataclass(source):
        source = source.__init__
    hints = get_type_hints(source)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: Key(hints.get(name, Any), p.default)
        for name, p in inspect.signature(thing).parameters.items()
        if name not in skip and p.kind not in variable
    }


def mistakes(
    given: Mapping[str, Any], own: Keys, path: str, owner: str, unnamed: Collection[str] = ()
) -> Iterator[str]:
    """What is wrong with a table: unknown keys, values of another type, keys that are missing.

    Args:
        given: what the file has.
        own: the keys that it may have.
        path: in front of a key, for messages: "data.".
        owner: what takes these keys, for messages.
        unnamed: keys that go without saying.
    """
    takes = [k for k in own if k not in unnamed]
    for name in given:
        if name not in own:
            yield _unknown(path, name, "key", takes, f"{owner} takes")
    for name, key in own.items():
        if name in given:
            try:
                key.python(given[name])
            except ValidationError:
                yield f"{path}{name}: must be {in_words(key.type)}, got {quoted(given[name])}"
        elif key.required:
            yield f"{path}{name}: is missing; {owner} needs it: {in_words(key.type)}"


def checked(
    given: Mapping[str, Any], own: Keys, path: str, owner: str, unnamed: Collection[str] = ()
) -> Tree:
    """A table without mistakes, its defaults filled in, in the order of the keys; arguments as of `mistakes`."""
    for mistake in mistakes(given, own, path, owner, unnamed):
        raise FedsaddleError(mistake)
    out: Tree = {}
    for name, key in own.items():
        value = given.get(name, key.default)
        if value is not None:
            out[name] = list(value) if isinstance(value, tuple) else value
    return out


def wrong_name(name: Any) -> str | None:
    """What is wrong with the name of a run or a site, in words; None where it can name a folder."""
    if isinstance(name, str) and re.fullmatch(r"[^\s./\\][^/\\\x00-\x1f]*", name):
        return None
    return f"name: must be text without slashes, to name a folder, got {quoted(name)}"


# ------------------------------------------------------------------------------------------------ in words

_WORDS = {
    Any: "any value",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "text",
    os.PathLike: "text",
    NoneType: '"none"',
    dict: "a table",
}


def in_words(kind: Any) -> str:
    """A type for people.

    Example:
        >>> in_words(float | None)
        'a number or "none"'
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        spoken = [a for a in args if a is not NoneType or str not in args]  # where text goes, "none" is text
        return " or ".join(dict.fromkeys(words for a in spoken if (words := in_words(a))))
    if origin is Literal:
        return " or ".join(map(quoted, args))
    if args and origin not in _WORDS:  # Sequence, Iterable
        return f"a list [{in_words(args[0])}, ...]"
    return _WORDS.get(origin or kind, "")  # "" for what a TOML file cannot hold, such as torch.dtype


def unknown_key(path: str, key: str, what: str, known: Collection[str], takes: str) -> NoReturn:
    """Refuse a key or section, with the nearest that there is and all."""
    raise FedsaddleError(_unknown(path, key, what, known, takes))


def _unknown(path: str, key: str, what: str, known: Collection[str], takes: str) -> str:
    hint = did_you_mean(key, known)
    hint = f", {hint}" if hint else ";"
    return f"{path}{to_key(key)}: unknown {what}{hint} {takes} {', '.join(known) or 'no other key'}"
