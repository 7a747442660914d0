"""What tables may hold, as `fedsaddle new` proposes it: label, sites, positive value, what is no feature, what has a tail.

Before that, how text is encoded, what is between the columns, and whether numbers have decimal commas. Of columns, names
count first, then values. What cannot be meant, such as a text among numbers, is refused with its row.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsaddle.errors import BadRow, FedsaddleError, first_line, short
from fedsaddle.files import file_format, located, odd_byte, read_frame, reading, refuse_utf16
from fedsaddle.frames import MOST_VALUES, are_dates, numeric_frame, text_columns
from fedsaddle.ingest import text_of

_LABELS = (
    "label", "target", "y", "outcome", "class", "event", "died", "death", "dead", "mortality", "survived", "readmitted",
    "readmission", "deceased", "disease", "diagnosis", "positive", "default", "defaulted", "fraud", "fraudulent", "churn",
    "churned", "claim", "response", "income",
)  # fmt: skip
_PAST = ("previous", "prev", "prior", "past", "last", "former", "history", "family")  # of a feature
_SITES = (
    "site", "hospital", "clinic", "center", "centre", "ward", "institution", "bank", "branch", "insurer", "company",
    "client", "group", "region", "country", "state", "city", "source", "provider", "facility",
)  # fmt: skip
_YES = ("1", "True", "true", "yes", "Yes", "YES", "y", "Y", "positive", "Positive")
_MOST_SITES = 1000
_FEW_ROWS = 10  # a site is proposed to have at least so many, on average
_MOST_GAPS = 0.5  # of a column's rows: one with so many, or more, is dropped
_MOST_STRAYS = 0.05  # of a column's values: with no more texts among them, they are meant to be numbers
_FEW_VALUES = 20  # of a label, where its name says that it is one
_FEW_STRAYS = 3  # values beside two others: with no more, in a tenth of the rarer's rows, two are meant
_TELLS = 0.98  # of an AUC: a column that has it alone is said
_FEW_OF_A_CLASS = 10  # rows; with fewer a column may have it by chance
_MOST_ASKED = 20  # columns that a question names
_MOST_TOLD = 4  # other columns with two values


def encoding(files: Sequence[Path]) -> str:
    """UTF-8, or that of Excel in western Europe if a .csv file is no UTF-8."""
    kinds: dict[str, Path] = {}
    for file in files:
        if file_format(file) == "csv":
            with reading(file, "csv"):
                refuse_utf16(file)
                kind = next((kind for kind in ("ascii", "utf-8") if odd_byte(file, kind) is None), "cp1252")
            kinds.setdefault(kind, file)
    if {"utf-8", "cp1252"} <= kinds.keys():
        raise FedsaddleError(
            f"{kinds['cp1252']} is not UTF-8, {kinds['utf-8'].name} is: save both as 'CSV UTF-8'"
        )
    return "cp1252" if "cp1252" in kinds else "utf-8"


def separator(file: Path, encoding: str) -> str:
    """What stands between the columns of a .csv file: what gives its first line most columns."""
    if file_format(file) != "csv":
        return ","
    import pandas

    try:
        lines = pandas.read_csv(
            file, sep="\0", header=None, nrows=1, dtype=str, quoting=csv.QUOTE_NONE, encoding=encoding
        )
        first = str(lines.iloc[0, 0])
    except Exception as error:  # pandas has its own zoo of exceptions
        raise FedsaddleError(f"{file} cannot be read as csv: {first_line(error)}") from error
    return max((",", ";", "\t", "|"), key=lambda sep: len(next(csv.reader([first], delimiter=sep))))


def read(files: Sequence[Path], sep: str, encoding: str) -> tuple[str, list[Any], Any]:
    """The decimal mark of the files' numbers, a table a file, and all rows together."""
    import pandas

    def tables(decimal: str) -> tuple[list[Any], Any]:
        frames = [read_frame(file, sep, decimal, encoding) for file in files]
        for own in frames:
            own.columns = [str(c) for c in own.columns]
        return frames, frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)

    frames, frame = tables(".")
    commas = next((c for c in text_columns(frame) if _have_commas(frame[c], sep)), None)
    if commas is None:
        return ".", frames, frame
    points = set(frame.columns) - set(text_columns(frame))
    frames, frame = tables(",")
    if lost := [c for c in text_columns(frame) if c in points]:
        raise FedsaddleError(
            f"{files[0].name}: column {commas!r} has decimal commas, {lost[0]!r} decimal points; write them alike"
        )
    return ",", frames, frame


def _have_commas(values: Any, sep: str) -> bool:
    """Whether most texts of a column are numbers such as 1,5; in a file with commas between columns 1,234 may be 1234."""
    present = values.dropna().astype(str)
    parts = present[present.str.fullmatch(r"-?\d+,\d+")]
    if sep == "," and parts.str.fullmatch(r"-?[1-9]\d{0,2},\d{3}").all():
        return False
    return len(parts) > 0 and bool(present.str.fullmatch(r"-?\d+(,\d+)?").mean() > 0.5)


def _words(name: str) -> list[str]:
    """The words of a column's name: "HospitalId" has hospital and id."""
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)]


def _called(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Names with one of these words, the best known first."""
    ranked = [(known.index(w), name) for name in names for w in _words(name) if w in known]
    return [name for _, name in sorted(ranked, key=lambda pair: pair[0])]


def choice(names: Sequence[str], likely: Sequence[str]) -> str:
    """Columns to choose from: all, or of many the likeliest."""
    if len(names) <= _MOST_ASKED:
        return short(names, _MOST_ASKED)
    first = list(dict.fromkeys([*likely, *names]))[:_MOST_ASKED]
    return f"{short(first, _MOST_ASKED)}, ... ({len(names)} in all)"


def labels(frame: Any) -> list[str]:
    """Columns that may be the label, the likeliest first: by name, then the last column, then by the share of positives."""
    few = [c for c in frame.columns if 2 <= frame[c].nunique() <= _FEW_VALUES]
    two = [c for c in few if frame[c].nunique() == 2]
    sites = _called(two, _SITES)

    def rank(c: str) -> tuple[bool, bool, float]:
        counts = tally(frame[c])
        share = counts[str(positive(frame[c]))] / counts.total()
        return c in sites or bool(frame[c].isna().any()), c != frame.columns[-1], share

    now = [c for c in few if not set(_words(c)) & set(_PAST)]
    nearly = [c for c in now if beside(frame[c])]
    kinds = ([c for c in now if c in two], nearly, now)
    named = next((found for names in kinds if (found := _called(names, _LABELS))), [])
    return list(dict.fromkeys([*named, *sorted(two, key=rank)]))


def no_label(frame: Any, labels: Sequence[str]) -> str:
    """Why none of these is to be guessed: the name of a label has a column of one value; "" where that is not so."""

    def named(names: Iterable[str]) -> list[str]:
        return [c for c in _called(names, _LABELS) if not set(_words(c)) & set(_PAST)]

    if named(labels):
        return ""
    for c in named(c for c in frame.columns if frame[c].nunique() == 1):
        gaps = " and gaps" if frame[c].isna().any() else ""
        return f"column {c!r} has one value, {next(iter(tally(frame[c])))!r}{gaps}, and no other has the name of a label"
    return ""


def others(frame: Any, labels: Sequence[str], used: Sequence[str]) -> list[str]:
    """What is said of columns that might have been the label."""
    two = [c for c in labels if c not in used and frame[c].nunique() == 2]
    said = [f"also two-valued: {short(two, _MOST_TOLD)}"] if two else []
    texts = [c for c in text_columns(frame) if c not in used]
    return said + [f"{c!r} has {values}" for c in texts if (values := beside(frame[c]))]


def tally(values: Any) -> Counter[str]:
    """How often each value is there."""
    counts: Counter[str] = Counter()
    for value, n in values.value_counts().items():
        counts[text_of(value)] += int(n)
    return +counts  # without the unused values of a categorical column


def _strays(values: Any) -> Counter[str]:
    """Values in a few rows of a column that has two others."""
    counts = tally(values) if values.nunique() <= _FEW_VALUES else Counter()
    if not 2 < len(counts) <= 2 + _FEW_STRAYS:
        return Counter()
    usual = counts.most_common(2)
    rest = counts - Counter(dict(usual))
    return rest if 10 * rest.total() <= usual[1][1] else Counter()


def beside(values: Any) -> str:
    """Two values and the few others in words: 0, 1 and in 1 row 'unknown'; nothing for other columns."""
    if not (strays := _strays(values)):
        return ""
    usual, n = sorted(tally(values) - strays), strays.total()
    return f"{', '.join(usual)} and in {n} row{'s' * (n > 1)} {short(strays)}"


def refuse_strays(files: Sequence[Path], frames: Sequence[Any], label: str, what: str, sep: str) -> None:
    """Refuse a label with a few other values, naming the first row of one."""
    import pandas

    strays = _strays(pandas.concat([own[label] for own in frames]))
    for file, own in zip(files, frames, strict=True):
        here = [text_of(value) in strays for value in own[label]]
        if any(here):
            with located(file, sep):
                where = f"{', the first' if strays.total() > 1 else ''} at row {here.index(True)}"
                remedy = "correct it or drop the row; with --positive VALUE all other values are negative"
                raise BadRow(what + where, here.index(True), remedy)


def sites(frame: Any, label: str) -> list[str]:
    """Columns that may name the site, the likeliest first."""
    texts = set(text_columns(frame))

    def suits(c: str, most: int) -> bool:
        n = int(frame[c].nunique(dropna=True))
        return c != label and 2 <= n <= most and n * _FEW_ROWS <= len(frame)

    known = _called([c for c in frame.columns if suits(c, _MOST_SITES)], _SITES)
    other = [c for c in frame.columns if c in texts and suits(c, _MOST_SITES) and frame[c].nunique() > 2]
    return [*known, *other]


def positive(values: Any) -> str | None:
    """The value that says yes, else the rarer of two."""
    counts = tally(values)
    if len(counts) != 2:
        return None
    said = [
        yes for yes in _YES if yes in counts and not (yes == "1" and "2" in counts)
    ]  # 1 and 2 are mere codes
    return said[0] if said else min(counts, key=lambda k: counts[k])


def as_stored(values: Any, text: str) -> Any:
    """A label's value as a config has it: a number where the column has numbers."""
    for value in values.unique().tolist():
        if text_of(value) == text:
            if isinstance(value, bool | np.bool_):
                return bool(value)
            return int(value) if isinstance(value, float) and value.is_integer() else value
    return text


def no_features(frame: Any, used: Sequence[str]) -> dict[str, str]:
    """Columns that cannot be features, and why."""
    texts, out = set(text_columns(frame)), {}
    for name in frame.columns:
        if name in used:
            continue
        values, present = frame[name], frame[name].dropna()
        share = 1 - len(present) / len(values)
        if values.dtype.kind in "mM" or (
            name in texts and values.nunique() > MOST_VALUES and are_dates(values)
        ):
            out[name] = "dates; make them numbers to use it, such as days since the first"
        elif share >= _MOST_GAPS:
            out[name] = f"{share:.0%} of its values are missing"
        elif present.nunique() == 1 and (
            name not in texts or share == 0
        ):  # gaps in a text are a value of their own
            out[name] = "one value in all rows" + (" that have one" if share else "")
        elif name in texts and present.nunique() == len(present):
            out[name] = "a text for each row"
        elif name in texts and values.nunique() > MOST_VALUES:
            out[name] = f"text with {values.nunique()} distinct values; group them to use it"
        elif "id" in _words(name) and _are_whole(present):
            n = present.nunique()
            if n == len(present):
                out[name] = "a number for each row"
            elif n > MOST_VALUES:
                out[name] = f"{n} numbers that are names, not amounts"
    return out


def no_strays(files: Sequence[Path], frames: Sequence[Any], features: Any, sep: str, decimal: str) -> None:
    """Refuse a text in a column of numbers, which would cost the column."""
    import pandas

    def are_texts(values: Any) -> Any:
        texts = values.reset_index(drop=True).dropna().astype(str).str.replace(decimal, ".", regex=False)
        return pandas.to_numeric(texts, errors="coerce").isna()

    for name in text_columns(features):
        odd = are_texts(features[name])
        gaps = 1 - len(odd) / len(features)
        if gaps >= _MOST_GAPS or "id" in _words(name) or not 0 < odd.mean() <= _MOST_STRAYS:
            continue
        for file, own in zip(files, frames, strict=True):
            if name in own.columns and (here := are_texts(own[name])).any():
                row = int(here.idxmax())
                what = f"column {name!r} has numbers, but {own[name].iloc[row]!r} at row {row}"
                more = f" ({int(odd.sum())} such values in all)" if odd.sum() > 1 else ""
                with located(file, sep):
                    raise BadRow(
                        what + more,
                        row,
                        "correct it or drop the row; if these are codes, take the column out",
                    )


def tails(frame: Any) -> dict[str, str]:
    """Columns of numbers with a long tail, and how long."""
    import torch

    from fedsaddle.scaling import long_tails

    if frame.shape[1] == 0:
        return {}
    x = torch.from_numpy(numeric_frame(frame))
    found = long_tails(torch.where(x.isnan(), x.nanmedian(0).values, x))
    return {
        frame.columns[i]: f"values up to {far:.0f} times its usual spread from the median" for i, far in found
    }


def tellers(frame: Any, positive: Any) -> dict[str, float]:
    """Columns that tell positives from negatives alone, as one written down afterwards does, and their AUC.

    Args:
        frame: features, with gaps perhaps.
        positive: which rows are [n].
    """
    import torch

    from fedsaddle.metrics import auc

    yes = np.asarray(positive, dtype=bool)
    if min(yes.sum(), (~yes).sum()) < _FEW_OF_A_CLASS:
        return {}
    half = np.empty(len(yes), dtype=bool)  # of either class
    for side in (yes, ~yes):
        half[side] = np.arange(side.sum()) % 2 == 0

    def of(scores: Any, rows: Any) -> float:
        return auc(torch.tensor(scores[rows]), torch.tensor(yes[rows]))

    def of_means(values: Any) -> float:
        """That of the share of positives among the other half's rows with this value."""
        codes, texts = values.factorize(use_na_sentinel=False)
        found = []
        for rows in (half, ~half):
            n, hits = (np.bincount(codes[~rows], w, len(texts)) for w in (None, yes[~rows]))
            found.append(of(np.where(n > 0, hits / np.maximum(n, 1), yes.mean())[codes], rows))
        return sum(found) / 2

    out, texts = {}, set(text_columns(frame))
    for name in frame.columns:
        found = [of_means(frame[name])] if frame[name].nunique() <= MOST_VALUES else []
        if name not in texts:
            x = numeric_frame(frame[[name]])[:, 0]
            ranked = of(np.where(np.isnan(x), np.nanmedian(x), x), slice(None))
            found += [ranked, 1 - ranked]
        if found and max(found) >= _TELLS:
            out[name] = max(found)
    return out


def _are_whole(values: Any) -> bool:
    """Whether a column has whole numbers; pandas reads them as fractions where there are gaps."""
    return values.dtype.kind in "iu" or (values.dtype.kind == "f" and bool((values % 1 == 0).all()))
