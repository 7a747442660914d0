"""What sites say of their data when a federation is set up, and what the server makes of it.

One exchange: each site sends `Site.summary()`, statistics and names; the server answers all with `agree(summaries)`, so that
features have the same columns, scale and classes everywhere. Both messages are dicts of tensors; texts are one tensor of
bytes, "head" (UTF-8 JSON). Beside its summary a site says which fedsaddle and torch it has, and sends a keyed checksum of
its rows (`Site.digest`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsaddle import ingest
from fedsaddle.errors import FedsaddleError, short
from fedsaddle.federation import Federation
from fedsaddle.keys import Key, Tree, keys_of, mistakes
from fedsaddle.parse import from_json
from fedsaddle.scaling import Filling, Scaling, exponential, logarithm, shift_and_width
from fedsaddle.toml import quoted

Array = npt.NDArray[Any]
Message = dict[str, Tensor]

_NUMBERS_AT_ONCE = 1 << 23
MAX_ROWS, MAX_NUMBERS = 10**8, 10**8  # of a site, and in a sample, that a server believes
BY_RANGE = ("unit", "symmetric")  # scalings that need the smallest and the largest number

_HEAD = {
    "site": Key(str),
    "kind": Key(str),
    "shape": Key(list[int]),
    "columns": Key(list[str]),
    "categories": Key(dict[str, list[str]]),
    "labels": Key(list[str] | None),
    "positive": Key(list[str] | None),
    "classes": Key(list[str] | None),
    "scale": keys_of(Federation.scaled)["how"],
    "impute": Key(Literal["none", "mean"]),
}  # fmt: skip; of a summary


# ------------------------------------------------------------------------------------------------- the server


def agree(summaries: Sequence[Mapping[str, Tensor]]) -> Message:
    """What all sites are told, from what each of them sent; refuses sites that do not fit together.

    Returns:
        "n", training rows of all; "shift" and "width" [C], by which numeric columns are scaled; with `impute` "fill" [C],
        their means, for missing numbers; with `scale = "log"` all of these are of logarithms; "labels", rows of each class;
        "head": scale, columns, categories, label values and class names.
    """
    if not summaries:
        raise FedsaddleError("no site has sent its summary: start at least one")
    heads = [unpacked(s["head"]) for s in summaries]
    names = [head["site"] for head in heads]
    if twins := [name for i, name in enumerate(names) if name in names[:i]]:
        raise FedsaddleError(f"two sites are called {twins[0]!r}: rename one of them")
    first = heads[0]
    for head in heads[1:]:
        _same(first, head)
    categories = {
        c: sorted({v for head in heads for v in head["categories"][c]}) for c in first["categories"]
    }
    for c, values in categories.items():
        if not values:
            raise FedsaddleError(
                f"column {c!r} has no value that enough rows of a site share: add it to drop at all sites"
            )
    labels, classes = _agreed_labels(heads)
    # LIBSVM text that never uses the last features is narrower
    shape: list[int] = max(head["shape"] for head in heads)
    moments: list[_Moments] = []
    for head, s in zip(heads, summaries, strict=True):
        # a range that nobody needs is not sent
        own = _Moments(*(s.get(k, s["mean"]) for k in _Moments._fields))
        if any(len(v) != head["shape"][0] or not v.isfinite().all() for v in own[1:]):
            raise FedsaddleError(
                f"site {head['site']!r} sent statistics that are too few or not finite: check its data"
            )
        order = [head["columns"].index(c) for c in first["columns"]] or list(range(len(own.mean)))
        blank = shape[0] - len(own.mean) if head["kind"] == "libsvm" else 0
        size = own.size if len(own.size) == 1 else own.size[order]
        own = _Moments(size, *(torch.nn.functional.pad(v[order], (0, blank)) for v in own[1:]))
        moments.append(own)
    total = moments[0]
    for own in moments[1:]:
        total = total.merged(own)
    n = torch.stack([s["n"] for s in summaries]).sum(0)
    mean = total.mean + total.rest
    size = total.size
    fill = {}
    if first["impute"] != "none":
        for c, values in zip(first["columns"], total.size.tolist(), strict=True):
            if values == 0:
                raise FedsaddleError(
                    f"column {c!r} has no number that a site may speak of: add it to drop at all sites"
                )
        size = n  # what is filled in has no deviation
        fill = {"fill": mean}
    shift, width = torch.zeros_like(mean), torch.ones_like(mean)
    if first["scale"] != "none":
        shift, width = shift_and_width(first["scale"], mean, (total.m2 / size).sqrt(), total.min, total.max)
    counts = torch.zeros(len(classes), dtype=torch.float64)
    for head, s in zip(heads, summaries, strict=True):
        sides = [classes.index(t) for t in head["labels"] or ()] if first["positive"] is None else [0, 1]
        counts[sides] += s["labels"]
    agreed = {
        "kind": first["kind"],
        "scale": first["scale"],
        "shape": shape,
        "columns": first["columns"],
        "categories": categories,
        "labels": None if first["labels"] is None else labels,
        "classes": classes,
    }
    return {
        "head": packed(agreed),
        "n": n,
        "shift": shift,
        "width": width,
        "labels": counts,
    } | fill


def accepted(tree: Any) -> Message:
    """A summary as a site has sent it, if it is one: whatever else is in it can do no harm."""
    try:
        summary: Message = dict(tree)
        head = unpacked(summary["head"])
        for mistake in mistakes(head, _HEAD, "head.", "a summary"):
            raise ValueError(mistake)
        shape, columns, labels = head["shape"], head["columns"], head["labels"]
        if not shape or min(shape) < 0 or math.prod(shape) > MAX_NUMBERS:
            raise ValueError(f"samples of shape {shape}")
        sides = 2 if head["positive"] is not None else len(labels or ())
        lengths = dict.fromkeys(("mean", "rest", "m2", "min", "max"), shape[0])
        gaps = head["impute"] != "none"
        if gaps and len(columns) != shape[0]:
            raise ValueError("gaps in columns without names")
        lengths |= {"n": 1, "size": shape[0] if gaps else 1, "labels": sides}
        optional = () if head["scale"] in BY_RANGE else ("min", "max")
        for name, length in lengths.items():
            if name in optional and name not in summary:
                continue
            v = summary[name]
            if v.dtype != torch.float64 or list(v.shape) != [length] or not v.isfinite().all():
                raise ValueError(f"{name} must be {length} finite numbers")
        rows = [*summary["n"].tolist(), *summary["labels"].tolist()]
        if (
            not 1 <= rows[0] <= MAX_ROWS
            or (summary["size"] < (0 if gaps else 1)).any()
            or (gaps and (summary["size"] > rows[0]).any())
            or min(rows) < 0
            or sum(rows[1:]) not in (0, rows[0])
        ):
            raise ValueError(f"{rows[0]:g} rows, of its labels {rows[1:]}")
        if columns and (len(columns) != shape[0] or len(set(columns)) < len(columns)):
            raise ValueError(f"{len(columns)} names of {shape[0]} columns")
        if labels is not None and (
            len(set(labels)) < len(labels) or not set(labels) <= set(head["classes"] or labels)
        ):
            raise ValueError("labels that are not among its classes, or twice")
        return summary
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise FedsaddleError(f"its summary is refused: {type(error).__name__}: {error}") from error


def _same(first: Tree, head: Tree) -> None:
    """Refuse a site whose columns or settings are not those of the first one."""
    here, there = f"site {head['site']!r}", f"site {first['site']!r}"
    words = {"columns": "numbers", "categories": "text"}
    for key, other in (("columns", "categories"), ("categories", "columns")):
        own, known = head[key], first[key]
        for c in known:
            if c in head[other]:
                raise FedsaddleError(
                    f"{here} has {words[other]} in column {c!r}, {there} has {words[key]}: correct the file, "
                    "or name the column in data.categories at all sites"
                )
            if c not in own:
                raise FedsaddleError(
                    f"{here} has no column {c!r}, which {there} has: give all the same columns"
                )
        if surplus := [c for c in own if c not in known and c not in first[other]]:
            raise FedsaddleError(
                f"{here} has column {surplus[0]!r}, which {there} has not: give all the same columns, or drop it"
            )
    if head["shape"] != first["shape"] and not head["kind"] == first["kind"] == "libsvm":
        raise FedsaddleError(
            f"{here} has samples of shape {head['shape']}, {there} of {first['shape']}: give the same features"
        )
    for key in ("scale", "impute", "positive", "classes"):
        if head[key] != first[key]:
            got, want = (quoted(v[key]) if v[key] is not None else "none" for v in (head, first))
            raise FedsaddleError(f"{here} has data.{key} = {got}, {there} {want}: agree on one")
    if (head["labels"] is None) != (first["labels"] is None):
        who = here if head["labels"] is None else there
        raise FedsaddleError(
            f"{who} has a label of real numbers, others have classes: set data.task at all sites"
        )


def _agreed_labels(heads: Sequence[Tree]) -> tuple[list[str], list[str]]:
    """All label values, and the names of the classes."""
    first = heads[0]
    if first["labels"] is None:
        return [], []
    if first["classes"] is not None:
        return first["classes"], first["classes"]
    labels = sorted({text for head in heads for text in head["labels"]}, key=_by_number)
    for i, head in enumerate(heads):
        own, others = set(head["labels"]), {t for h in [*heads[:i], *heads[i + 1 :]] for t in h["labels"]}
        if first["positive"] is None and (lacks := sorted(others - own, key=_by_number)):
            raise FedsaddleError(
                f"site {head['site']!r} has no label {lacks[0]!r}, which other sites have: "
                "set data.positive or data.classes at all sites"
            )
        if own and others and not own & others:
            raise FedsaddleError(
                f"site {head['site']!r} has labels {short(sorted(own))}, which no other site has: spell them alike"
            )
    if first["positive"] is None:
        return labels, labels
    _, names = ingest.binary(tuple(labels), np.arange(len(labels)), first["positive"])
    return labels, list(names)


def _by_number(text: str) -> tuple[float, str]:
    """Numbers in their order, then texts."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


def outline(
    names: Sequence[str], summaries: Sequence[Mapping[str, Tensor]], constants: Mapping[str, Tensor]
) -> Federation:
    """What the server knows of the sites' data, as a federation: how many samples of which class, and features that are 0.

    The features take no memory: they are one sample, seen many times.
    """
    head = unpacked(constants["head"])
    categories = sum(len(values) for values in head["categories"].values())
    shape = [len(head["columns"]) + categories] if head["columns"] or categories else head["shape"]
    y = []
    for summary in summaries:
        own = unpacked(summary["head"])
        if head["labels"] is None:
            y.append(torch.zeros(int(summary["n"])))
            continue
        index = range(2) if own["positive"] is not None else [head["labels"].index(v) for v in own["labels"]]
        y.append(torch.repeat_interleave(torch.tensor(index), summary["labels"].long()))
    offsets = torch.tensor([0, *(len(part) for part in y)]).cumsum(0)
    x = torch.zeros(1, *shape).expand(int(offsets[-1]), *shape)
    ends = [1, -1, *[1] * (len(shape) - 1)]
    log = head.get("scale") == "log"
    one = (
        float(logarithm(torch.ones((), dtype=torch.float64))) if log else 1.0
    )  # sites leave 0 and 1 as they are
    scaling = Scaling(
        torch.nn.functional.pad(constants["shift"], (0, categories)).view(ends),
        torch.nn.functional.pad(constants["width"], (0, categories), value=one).view(ends),
        log=log,
    )
    fill, filling = fill_of(constants, head), None
    if fill is not None:
        filling = Filling("mean", torch.nn.functional.pad(fill, (0, categories)).view(ends), None)
    return Federation(
        {"x": x, "y": torch.cat(y)},
        offsets,
        tuple(names),
        tuple(head["classes"]),
        tuple(feature_names(head)),
        scaling=scaling,
        filling=filling,
    )


def feature_names(head: Tree) -> list[str]:
    """The columns of x, from the head of what was agreed: numbers, then one for each category."""
    return [*head["columns"], *(f"{c}={v}" for c, values in head["categories"].items() for v in values)]


def fill_of(constants: Mapping[str, Tensor], head: Tree) -> Tensor | None:
    """What stands in for missing numbers [C], as they are in the file; None where sites have none."""
    if "fill" not in constants:
        return None
    return exponential(constants["fill"]) if head.get("scale") == "log" else constants["fill"]


# ------------------------------------------------------------------------------------------------- statistics


class _Moments(NamedTuple):
    """Statistics of columns [C]."""

    size: Tensor  # [1], numbers in a column; [C] where they have gaps
    mean: Tensor
    rest: Tensor  # what rounding took from the mean; without it, 1e8 + u loses the eighth digit of u's deviation
    m2: Tensor
    min: Tensor
    max: Tensor

    def merged(self, other: _Moments) -> _Moments:
        """Those of both together, without cancellation (Chan, Golub and LeVeque 1979); the mean has twice the digits."""
        n = (self.size + other.size).clamp(min=1)
        delta = (other.mean - self.mean) + (other.rest - self.rest)
        step = delta * (other.size / n)
        mean = self.mean + step
        back = mean - self.mean
        lost = (self.mean - (mean - back)) + (step - back)  # exact, whichever is larger (Knuth)
        both = _Moments(
            self.size + other.size,
            mean,
            self.rest + lost,
            self.m2 + other.m2 + delta**2 * (self.size * other.size / n),
            torch.minimum(self.min, other.min),
            torch.maximum(self.max, other.max),
        )
        mine, theirs = other.size == 0, self.size == 0  # of no numbers there are no statistics
        return _Moments(
            *(
                torch.where(mine, a, torch.where(theirs, b, c))
                for a, b, c in zip(self, other, both, strict=True)
            )
        )


def pieces(x: Array) -> Iterator[slice]:
    """Rows of x that are computed with at once."""
    length = max(1, _NUMBERS_AT_ONCE // max(1, x[:1].size))
    return (slice(start, start + length) for start in range(0, len(x), length))


def moments_of(x: Array, log: bool = False) -> _Moments:
    """Statistics of the columns of x [n, C], or of the channels of images [n, C, ...]; with `log` of logarithms."""
    total: _Moments | None = None
    for rows in pieces(x):
        v = torch.from_numpy(x[rows].astype(np.float64)).transpose(0, 1).flatten(1)  # [C, n ...]
        v = logarithm(v) if log else v
        mean = v.mean(1)
        deviation = v - mean.unsqueeze(1)
        n = torch.tensor([v.shape[1]], dtype=torch.float64)
        rest = deviation.mean(1)
        m2 = ((deviation - rest.unsqueeze(1)) ** 2).sum(1)  # of equal numbers exactly 0
        own = _Moments(n, mean, rest, m2, v.amin(1), v.amax(1))
        total = own if total is None else total.merged(own)
    assert total is not None
    return total


def moments_by_column(x: Array, least: int, log: bool) -> _Moments:
    """Statistics of the numbers that there are in each column of x [n, C]; zeros where there are fewer than `least`."""
    found = [_Moments(*torch.zeros(len(_Moments._fields), 0, dtype=torch.float64))]
    for column in x.T:
        own = column[~np.isnan(column)]
        few = len(own) < least
        found.append(
            _Moments(*torch.zeros(len(_Moments._fields), 1).double())
            if few
            else moments_of(own[:, None], log)
        )
    return _Moments(*map(torch.cat, zip(*found, strict=True)))


# ----------------------------------------------------------------------------------------- heads, and in words


def packed(tree: Mapping[str, Any]) -> Tensor:
    """A head as it is sent."""
    return torch.frombuffer(bytearray(json.dumps(tree).encode()), dtype=torch.uint8)


def unpacked(head: Tensor) -> Tree:
    """A head that was sent; raises ValueError where it is none."""
    tree = from_json(bytes(head.cpu().numpy()))
    if not isinstance(tree, dict):
        raise ValueError("a head is a table")
    return tree


def in_words(summary: Mapping[str, Tensor]) -> list[str]:
    """A summary for the people whose data it is about: every number and name that leaves the site."""
    head = unpacked(summary["head"])
    lines = [f"site {head['site']!r}: {int(summary['n'])} training rows"]
    names = head["columns"] or [
        f"channel {i}" if head["kind"] == "image" else str(i) for i in range(len(summary["mean"]))
    ]
    size = summary["size"].expand(len(names))
    deviation = (summary["m2"] / size).sqrt()
    for i, name in enumerate(names):
        if size[i] == 0:
            lines.append(f"column {name!r}: nothing, too few rows have a number")
            continue
        what = "mean of the logarithm" if head["scale"] == "log" else "mean"
        line = f"column {name!r}: {what} {float(summary['mean'][i]):.6g}, deviation {float(deviation[i]):.6g}"
        if "min" in summary:
            line += f", from {float(summary['min'][i]):.6g} to {float(summary['max'][i]):.6g}"
        if head["impute"] != "none":
            line += f", of {int(size[i])} rows"
        lines.append(line)
    lines += [f"column {c!r}: categories {short(values, 1000)}" for c, values in head["categories"].items()]
    if head["positive"] is not None:
        lines.append(f"label values {short(head['labels'], 1000)}")
    sides = head["labels"] or [] if head["positive"] is None else ["all others", "positive"]
    lines += [
        f"label {text!r}: {int(k)} rows" for text, k in zip(sides, summary["labels"].tolist(), strict=True)
    ]
    return lines
