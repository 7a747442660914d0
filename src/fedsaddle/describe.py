"""What can be named in a config, in words: its summary and its parameters, from docstrings and signatures."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from fedsaddle.data import DatasetInfo, fetch, load
from fedsaddle.engines import ENGINES
from fedsaddle.keys import in_words
from fedsaddle.kinds import SECTION, Kind
from fedsaddle.reproduce import experiments
from fedsaddle.schema import NAMED, keys
from fedsaddle.sweep_plan import grids
from fedsaddle.toml import quoted, to_toml


def things(kind: Kind) -> Mapping[str, Any]:
    """Name -> class, function, DatasetInfo, Grid or a description."""
    if kind is Kind.experiments:
        return experiments()
    if kind is Kind.grids:
        return grids()
    return ENGINES if kind is Kind.engines else NAMED[SECTION[kind]]


def summary(thing: Any) -> str:
    """One line: the first sentence of a docstring, or the description that a table has."""
    for attribute in ("description", "about"):
        if hasattr(thing, attribute):
            return str(getattr(thing, attribute))
    text = thing if isinstance(thing, str) else inspect.getdoc(thing) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", first)[0].rstrip(".")


def where(thing: Any) -> str:
    """Whether a data set is at hand: one with files lies in the data folder, or not; the others need none."""
    if not isinstance(thing, DatasetInfo) or thing.bundled:
        return "bundled"
    return "found" if fetch.locate(thing, None) is not None else "not found"


def parameters(kind: Kind, name: str) -> dict[str, dict[str, Any]]:
    """Type, default and description of everything that the thing's section of a config takes."""
    if kind not in SECTION:
        return {}
    own = keys(SECTION[kind], name)
    texts = _argument_texts(things(kind)[name], own)
    out: dict[str, dict[str, Any]] = {}
    for argument, key in own.items():
        about = {"type": in_words(key.type), "required": key.required, "description": texts.get(argument, "")}
        out[argument] = about if key.required else about | {"default": key.default}
    return out


def described(kind: Kind, name: str) -> str:
    """A named thing at length."""
    thing, own = things(kind)[name], parameters(kind, name)
    width = min(shutil.get_terminal_size().columns, 110)
    doc = summary(thing)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        stop = "|".join(["Args:", "Example:", "Reference:", *(f"{key}: " for key in own)])
        doc = re.split(rf"\n\s*(?:{stop})", inspect.getdoc(thing) or "")[0].strip()
    section = f", [{SECTION[kind]}] in a config" if kind in SECTION else ""
    blocks = [f"{name} ({kind.value.removesuffix('s')}{section})\n\n{doc}"]
    lines = []
    for key, about in own.items():
        head = f"  {key} = {quoted(about['default'])}" if about.get("default") is not None else f"  {key}"
        text = ("required: " if about["required"] else "") + (about["description"] or about["type"])
        lines.append(textwrap.fill(text, width, initial_indent=f"{head:<32} ", subsequent_indent=" " * 33))
    if lines:
        blocks.append("\n".join(lines))
    if hasattr(thing, "points"):
        blocks.append(f"For {', '.join(thing.algorithms)}; in a sweep:\n\n{to_toml(thing.points).rstrip()}")
    if hasattr(thing, "source"):
        blocks.append(f"Source: {thing.source}")
    if hasattr(thing, "cites"):
        paper = thing.cites
        blocks.append(textwrap.fill(f"{paper.authors}. {paper.title}. {paper.venue} {paper.year}.", width))
    return "\n\n".join(blocks)


def _argument_texts(thing: Any, names: Iterable[str]) -> dict[str, str]:
    """What docstrings say of arguments: lines "name, name: text" and the deeper ones that follow."""
    sources: list[Any] = [thing]
    if isinstance(thing, DatasetInfo):
        sources = [load, thing.generate]
    elif inspect.isclass(thing):
        sources = list(reversed(thing.__mro__[:-1]))
    known = set(names)
    out: dict[str, str] = {}
    for source in sources:
        lines = inspect.cleandoc(getattr(source, "__doc__", None) or "").split("\n")
        for i, line in enumerate(lines):
            match = re.match(r"( *)(\w+(?:, \w+)*): +(.*)", line)
            if not match or not known & set(match[2].split(", ")):
                continue
            text = [match[3]]
            for more in lines[i + 1 :]:
                if not more.startswith(match[1] + "  "):
                    break
                text.append(more.strip())
            out |= dict.fromkeys(known & set(match[2].split(", ")), " ".join(text))
    return out
