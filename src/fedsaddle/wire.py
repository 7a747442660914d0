"""Messages, replies, memory and states as bytes: safetensors, with the shape of the tree as JSON beside the tensors.

A tree consists of tensors, None, plain Python values, tuples and NamedTuples, and of what `messages` marks:

    tensor          {"tensor": name}
    tuple           {"tuple": [...]}
    NamedTuple      {"named": "module:class", "parts": [...]}
    Each            {"each": part, "bits": ...}      one row of it, the addressee's
    Once            {"once": key, "version": v}      the value itself is a tensor of that name, where it is sent at all
    anything else   as JSON

Nothing is ever unpickled. A NamedTuple is restored only if it is one of the classes that the receiver names, which are those
of the modules of its own algorithm and problem: bytes from the network cannot make it import or call anything else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Control, Each, Once

Classes = Mapping[str, type[tuple[Any, ...]]]
Held = Callable[[str, int], Tensor]  # (key, version) of a Once -> its value
Keep = Callable[[str, int, Tensor], None]
_TREE = "tree"


class Garbled(FedsaddleError):
    """Bytes that are no tree, or none that the receiver accepts."""


def classes_of(*things: object) -> Classes:
    """The NamedTuples that the modules of these objects' classes, and of their bases, define or import."""
    modules = dict.fromkeys(kind.__module__ for thing in things for kind in type(thing).__mro__)
    return {
        _name(kind): kind
        for module in modules
        for kind in vars(sys.modules[module]).values()
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    }


def pack(tree: Any, once: Callable[[Once, int], tuple[str, bool]] | None = None) -> bytes:
    """A tree as bytes.

    Args:
        once: for a Once and its place among the tree's, by which key the receiver holds it, and whether to send it.
    """
    tensors: dict[str, Tensor] = {}
    places = iter(range(sys.maxsize))

    def put(tensor: Tensor, name: str | None = None) -> str:
        name = name or str(len(tensors))
        tensors[name] = tensor.detach().cpu().contiguous().clone()  # safetensors refuses shared memory
        return name

    def shape(part: Any) -> Any:
        if isinstance(part, Tensor):
            return {"tensor": put(part)}
        if isinstance(part, Once):
            assert once is not None
            key, sent = once(part, next(places))
            if sent:
                put(part.value, f"once {key}")
            return {"once": key, "version": part.version}
        if isinstance(part, Each):
            return {"each": shape(part.value), "bits": part.bits}
        if isinstance(part, tuple):
            parts = [shape(p) for p in part]
            return (
                {"named": _name(type(part)), "parts": parts} if hasattr(part, "_fields") else {"tuple": parts}
            )
        if part is None or isinstance(part, bool | int | float | str):
            return part
        raise FedsaddleError(
            f"wire: a message must consist of tensors, None, numbers, text and tuples, got {type(part).__name__}"
        )

    structure = json.dumps(shape(tree))
    data = save(tensors, {_TREE: structure})
    tensors.clear()  # `shape` refers to itself, so the copies would stay until the next collection of cycles
    return data


def unpack(data: bytes, classes: Classes, held: Held | None = None, keep: Keep | None = None) -> Any:
    """The tree that the bytes stand for; raises `Garbled`.

    Args:
        classes: the NamedTuples that it may consist of, by name.
        held: where to look up a Once that was not sent along.
        keep: told of each Once that was.
    """
    structure, tensors = _opened(data)

    def made(part: Any) -> Any:
        if not isinstance(part, dict):
            if isinstance(part, list):
                raise Garbled("wire: a list is no part of a message")
            return part
        if "tensor" in part:
            return tensors[part["tensor"]]
        if "once" in part:
            key, version = str(part["once"]), int(part["version"])
            if (sent := tensors.get(f"once {key}")) is not None:
                if keep is not None:
                    keep(key, version, sent)
                return sent
            if held is None:
                raise Garbled(f"wire: {key!r} was not sent")
            return held(key, version)
        if "each" in part:
            if not 0 < float(part["bits"]) <= 64:
                raise Garbled("wire: bits must be above 0 and at most 64")
            return Each(made(part["each"]), float(part["bits"]))
        if "tuple" in part:
            return tuple(made(p) for p in part["tuple"])
        kind = classes.get(part["named"])
        if kind is None:
            raise Garbled(f"wire: {part['named']!r} is none of the classes that are accepted")
        named = kind(*(made(p) for p in part["parts"]))
        for field, hint in _hints(kind).items():
            if not _fits(getattr(named, field), hint):
                raise Garbled(f"wire: {kind.__name__}.{field} is a {type(getattr(named, field)).__name__}")
        return named

    try:
        return made(structure)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, FedsaddleError):
            raise
        raise Garbled(f"wire: not a message ({type(error).__name__}: {error})") from error
    finally:
        tensors.clear()  # as in pack


def signature(tree: Any) -> Any:
    """What two replies to one message must have in common: classes, shapes and precisions."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape), tree.dtype
    if isinstance(tree, Each):
        return "each", signature(tree.value)
    if isinstance(tree, tuple):
        return type(tree).__name__, *(signature(part) for part in tree)
    return type(tree).__name__


def tensors_of(tree: Any, marked: bool = True) -> Iterable[tuple[str, Tensor]]:
    """Every tensor of a tree with its path, such as ("z", ...); those marked Each only if `marked`."""
    if isinstance(tree, Tensor):
        yield "", tree
    elif isinstance(tree, Each):
        if marked:
            yield from tensors_of(tree.value)
    elif isinstance(tree, tuple):
        for name, part in zip(getattr(tree, "_fields", map(str, range(len(tree)))), tree, strict=True):
            for path, tensor in tensors_of(part, marked):
                yield f"{name}.{path}" if path else name, tensor


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """Of which type the fields of the package's own NamedTuples are; annotations of others are their authors' affair."""
    return get_type_hints(kind) if kind.__module__.partition(".")[0] == __package__ else {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a part of a tree is what an annotation promises; annotations of other kinds promise nothing."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if not isinstance(value, tuple) or inner[-1] is Ellipsis:
            return isinstance(value, tuple)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if hint in (Tensor, Control):  # a Control travels as its value
        return isinstance(value, Tensor | Each)
    if hint is float:
        return isinstance(value, int | float)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def _opened(data: bytes) -> tuple[Any, dict[str, Tensor]]:
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        return json.loads(header["__metadata__"][_TREE]), load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Garbled(f"wire: not a message ({type(error).__name__}: {error})") from error


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
