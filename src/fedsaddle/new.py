"""new: a project's first config, from a look at the data.

What the user does not say is proposed: the label is a column with two values, if possible one with the name of a label;
sites are a column of a few repeated names, the rarer label is positive, columns that cannot be features are dropped, gaps
are filled. On a terminal the proposals are questions. The config is built on the data before anything is written, so that
it runs as it stands.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle import config as configs
from fedsaddle import guesses
from fedsaddle.client_files import expand
from fedsaddle.data import DATASETS
from fedsaddle.errors import FedsaddleError, did_you_mean, first_line, short, similar_file
from fedsaddle.files import file_format, located, read_frame
from fedsaddle.frames import MISSING, no_column, numeric_frame, text_columns
from fedsaddle.ingest import check_present, column, levels
from fedsaddle.parse import from_toml
from fedsaddle.progress import spinner
from fedsaddle.toml import to_value

CONFIG, SCRIPT = "run.toml", "run.py"
MODELS = {"linear": "a weighted sum of the features", "mlp": "a small network"}
OPTIONS: dict[str, dict[str, Any]] = {"linear": {"zero": True}, "mlp": {"hidden": [16]}}
BUNDLED = tuple(name for name, info in DATASETS.items() if info.bundled and info.classes)
_TRIED = 10  # rounds, to find a step size


class Aim(NamedTuple):
    """What matters to the user, as sections of a config and as Python."""

    about: str
    problem: dict[str, Any]
    why: str  # the problem
    algorithm: dict[str, Any]
    how: str  # the algorithm
    classes: tuple[str, str]  # of problem and algorithm in Python


AIMS = {
    "auc": Aim(
        "the highest AUC over all sites, also where positives are rare",
        {"name": "auc", "p": "pooled"},
        "the AUC as a min-max problem",
        {"name": "codasca", "lr": 0.1, "local_steps": 10, "weights": "samples"},
        "local steps with drift correction",
        ("AUC", "CODASCA"),
    ),
    "fair": Aim(
        "a model that is good on the worst-off sites too",
        {"name": "erm"},
        "the logistic loss of each site",
        {"name": "scaff_pd", "ambiguity": "cvar(0.2)", "tau": 0.1, "sigma": 0.05, "local_steps": 10},
        "sites with a high loss count more: the worst fifth",
        ("ERM", "ScaffPD"),
    ),
    "pairs": Aim(
        "pairs ranked rightly across sites, by a loss of score differences",
        {"name": "pairwise_auc", "loss": "squared_hinge"},
        "a loss of each positive against each negative, wherever they lie",
        {"name": "rs_pairwise", "lr": 0.1, "local_steps": 10},
        "sites share scores, not samples",
        ("PairwiseAUC", "RSPairwise"),
    ),
}


class Wanted(NamedTuple):
    """What the user has said; None: not yet."""

    data: str | None = None
    label: str | None = None
    site: str | None = None
    positive: str | None = None
    aim: str | None = None
    model: str | None = None
    rounds: int | None = None
    sites: int | None = None  # of a data set that comes without


class Ask:
    """Answers: what the user has said, else what they answer on a terminal, else what is proposed."""

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal

    def __call__(
        self,
        flag: str,
        question: str,
        said: Any,
        proposed: Any,
        check: Callable[[Any], Any],
        why: str = "",
    ) -> Any:
        """The checked answer.

        Args:
            flag: the option that gives it.
            question: on a terminal.
            said: by the option, or None.
            proposed: taken if nothing is said, or None where there is no guess.
            check: raises a FedsaddleError, or returns the answer as it is used.
            why: there is no guess.
        """
        if said is not None:
            return check(said)
        if not self.terminal:
            if proposed is None:
                raise FedsaddleError(f"new: {why or f'{flag} is missing'}; give {flag}")
            return check(proposed)
        import typer

        while True:
            try:
                shown = None if proposed is None else str(proposed)  # a number is checked below, in our words
                answer = typer.prompt(question, default=shown, err=True)
            except typer.Abort:  # Ctrl-C, or the end of what is typed
                raise KeyboardInterrupt from None
            try:
                return check(answer)
            except FedsaddleError as error:
                print(f"  {error}", file=sys.stderr)


class Source(NamedTuple):
    """Where the samples come from, as [data] and [partition], in Python, and in words."""

    data: list[tuple[str, Any, str]]  # key, value, comment
    partition: list[tuple[str, Any, str]]
    python: str  # lines that make `federation`
    words: list[str]
    texts: Sequence[str] = ()  # columns of text that are features


def project(folder: Path, wanted: Wanted, script: bool = False, terminal: bool | None = None) -> list[str]:
    """Write a config, and a script if it is wanted, into a folder; what was done, line by line.

    Args:
        folder: made if it is not there.
        wanted: what the user has said.
        script: also a Python program that does the same.
        terminal: whether questions can be asked; by default whether stdin is one.
    """
    files = [folder / CONFIG, *([folder / SCRIPT] if script else [])]
    for file in files:
        if file.exists():
            raise FedsaddleError(f"{file}: is there already, and is never overwritten; choose another folder")
    ask = Ask(sys.stdin.isatty() if terminal is None else terminal)
    data = ask(
        "--data", f"Data: a .csv or .parquet file, a folder with a file a site, or one of {', '.join(BUNDLED)}",
        wanted.data, None, _known_data,
    )  # fmt: skip
    source = _named(data, wanted, ask) if data in DATASETS else _table(Path(data), folder, wanted, ask)
    aims = "; ".join(f"{name}: {aim.about}" for name, aim in AIMS.items())
    aim = ask("--aim", f"What matters ({aims})", wanted.aim, "auc", _one_of("--aim", AIMS))
    model = ask("--model", "Model (linear or mlp)", wanted.model, "linear", _one_of("--model", MODELS))
    rounds = ask("--rounds", "Rounds of communication", wanted.rounds, 50, _whole("--rounds"))
    name = re.sub(r"[^\w-]+", "-", folder.resolve().name).strip("-") or "run"
    text = _config_text(name, folder, source, AIMS[aim], aim, model, rounds)
    setup = _rehearsed(text, folder, name)
    federation, suited, said = setup.federation, *_suited(AIMS[aim], setup)
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        _config_text(name, folder, source, suited, aim, model, rounds),
        _script_text(source, suited, model, rounds),
    ]
    for file, content in zip(files, written, strict=False):
        with open(file, "x", encoding="utf-8") as stream:  # fails if somebody made it just now
            stream.write(content)
    lines = [*source.words, *_encoded(federation, source.texts), f"{federation!r}"]
    lines += [*_alike(federation, suited), *said, ""]
    lines += [f"{folder / CONFIG}: fedsaddle run {folder / CONFIG}"]
    return lines + ([f"{folder / SCRIPT}: python {folder / SCRIPT}"] if script else [])


def _encoded(federation: Any, texts: Sequence[str]) -> list[str]:
    """A word on columns of text, which are features of 0 and 1."""
    features = [name for name in federation.feature_names if name.startswith(tuple(f"{c}=" for c in texts))]
    said = [f"  {short(texts)}: {len(features)} features of 0 and 1, one for each text"] if features else []
    for c in texts:
        values = [name[len(c) + 1 :] for name in features if name.startswith(f"{c}=")]
        alike: dict[str, list[str]] = {}
        for value in values:
            alike.setdefault(" ".join(value.casefold().split()), []).append(value)
        said += [
            f"  {c!r}: {short(same)} differ in case or blanks alone, and are features of their own; write them alike"
            for same in alike.values()
            if len(same) > 1
        ]
    return said


def _alike(federation: Any, aim: Aim) -> list[str]:
    """A word on sites whose training samples are all of one class."""
    of_one = (federation.class_counts() > 0).sum(axis=1) < 2
    names = [name for name, alone in zip(federation.names, of_one, strict=True) if alone]
    if not names:
        return []
    what = "has" if len(names) == 1 else "have"
    counts = 'a site counts by its rows (weights = "samples")'
    if aim.algorithm.get("weights") != "samples":
        counts = (
            "however few its rows, a site counts as one; "
            "leave its rows out, or join it to another site, if that is not meant"
        )
    return [f"  {short(names)} {what} one class only: no AUC there, and {counts}"]


def _suited(aim: Aim, setup: Any) -> tuple[Aim, list[str]]:
    """An aim with the largest step size, up to its own, that gets about as far as the best does in a few rounds."""
    from fedsaddle.steps import largest_near_best, tried

    key = "lr" if "lr" in aim.algorithm else "tau"
    steps = [float(f"{aim.algorithm[key] * k:.2g}") for k in (1, 0.3, 0.1, 0.03, 0.01, 0.003)]
    settings = setup.train | {"rounds": min(_TRIED, setup.train["rounds"])}
    with spinner("choosing the step size"):
        start, left = tried(
            setup.problem, setup.algorithm, setup.federation, key, steps,
            participation=setup.participation, **settings,
        )  # fmt: skip
    step = steps[0] if math.isnan(start) else largest_near_best(steps, left, start)
    if step == steps[0]:
        return aim, []
    why = f"with larger steps, up to {steps[0]:g}, {settings['rounds']} rounds got less far"
    if wild := [s for s, value in zip(steps, left, strict=True) if not value <= start]:
        why = f"{min(wild):g} raised the objective in {settings['rounds']} rounds; this is well below it"
    return aim._replace(algorithm=aim.algorithm | {key: step}), [f"  {key} = {step:g}: {why}"]


def _rehearsed(text: str, folder: Path, name: str) -> Any:
    """The setup of a config that is not written yet, which runs."""
    tree = from_toml(text)
    configs.anchor(tree, folder.resolve())
    for key in ("file", "files"):
        if key in tree["data"]:  # "folder/../file" is not there while the folder is not
            tree["data"][key] = os.path.normpath(tree["data"][key])
    config = configs.resolve(tree, name)
    with spinner("building the federation"):
        setup = config.build()
    config.start(setup, progress=False)  # checks the algorithm against the data, computes nothing
    return setup


# ------------------------------------------------------------------------------------------------- the data


def _named(name: str, wanted: Wanted, ask: Ask) -> Source:
    """A data set by its name, dealt to sites."""
    for flag, said in (("--label", wanted.label), ("--site", wanted.site)):
        if said is not None:
            raise FedsaddleError(
                f"new: {flag} has no use, {name} has no columns to choose from; leave it out"
            )
    info = DATASETS[name]
    if not info.classes:
        raise FedsaddleError(f"new: {name} is a regression set, and has no AUC; choose another")
    fixed = info.positive if isinstance(info.positive, str) else None
    proposed = fixed or info.classes[-1]
    positive = ask(
        "--positive", f"Which class is positive ({', '.join(info.classes)})", wanted.positive, proposed,
        _one_of("--positive", info.classes),
    )  # fmt: skip
    sites = ask("--sites", "Over how many sites", wanted.sites, 10, _whole("--sites", 2))
    own_test = info.bundled == "generated" or "test" in info.facts
    data: list[tuple[str, Any, str]] = [("name", name, info.description)]
    options = {}
    if len(info.classes) > 2 or positive != proposed:
        data.append(("positive", positive, "against all others"))
        options["positive"] = positive
    if not own_test:
        data.append(("test", 0.25, "each site holds out a quarter of its samples"))
        data.append(("seed", 0, "which samples these are; train.seed below is that of training"))
    partition: list[tuple[str, Any, str]] = [
        ("name", "dirichlet", "how samples are dealt to sites; fedsaddle list partitions"),
        ("clients", sites, ""),
        ("alpha", 0.5, "small: sites differ much"),
        ("min_per_class", 4, "but each has a few of both classes"),
    ]
    dealt = _called_with(
        "dataset.federation", ['"dirichlet"'], {"clients": sites, "alpha": 0.5, "min_per_class": 4}
    )
    python = f"dataset = {_called_with('fs.data.load', [_python(name)], options)}\nfederation = {dealt}"
    python += "" if own_test else "\nfederation = federation.holdout(0.25)"
    return Source(data, partition, python, [f"{name}: {info.description}; {positive!r} is positive"])


def _table(path: Path, folder: Path, wanted: Wanted, ask: Ask) -> Source:
    """A table with a column of sites, or a table a site."""
    if wanted.sites is not None:
        raise FedsaddleError("new: --sites has no use, the data have sites of their own; leave it out")
    single = path.is_file()
    files = [path] if single else expand(path)
    sep = _separator(files[0])
    with spinner(f"reading {path}"):
        decimal, frames, frame = _read(files, sep)
    names = list(frame.columns)
    labels = guesses.labels(frame)
    label = ask(
        "--label", f"Which column is predicted ({guesses.choice(names, labels)})", wanted.label, next(iter(labels), None),
        _column("--label", path, names), f"no column of {path} has two values",
    )  # fmt: skip
    guess = " (a guess; --label COLUMN chooses)" if wanted.label is None and not ask.terminal else ""
    for file, own in zip(files, frames, strict=True):
        if label not in own.columns:
            raise FedsaddleError(no_column(file.name, label, own.columns))
        with located(file, sep):
            check_present(column(own[label], label), label, "drop that row, or choose another column")
    values = levels(column(frame[label], label), label, "")[0]
    if len(values) < 2:
        raise FedsaddleError(f"new: column {label!r} has one value, {values[0]}; choose another --label")
    beside = guesses.beside(frame[label])
    if beside and wanted.positive is None and not ask.terminal:
        guesses.refuse_strays(files, frames, label, f"column {label!r}{guess} has {beside}", sep)
    positive = ask(
        "--positive", f"Which value of {label} is positive ({f'it has {beside}' if beside else short(values)})",
        wanted.positive, guesses.positive(frame[label]), _one_of("--positive", values),
        f"column {label!r}{guess} has {len(values)} values",
    )  # fmt: skip
    group = None
    if single:
        others, likely = [n for n in names if n != label], guesses.sites(frame, label)
        group = ask(
            "--site", f"Which column names the site ({guesses.choice(others, likely)})", wanted.site,
            next(iter(likely), None), _column("--site", path, others),
            f"no column of {path} looks like the name of a site",
        )  # fmt: skip
    elif wanted.site is not None:
        raise FedsaddleError("new: --site has no use, each file is a site; leave it out")
    used = [label, *([group] if group else [])]
    guesses.no_strays(files, frames, frame.drop(columns=used), sep, decimal)
    dropped = guesses.no_features(frame, used)
    if len(dropped) + len(used) >= len(names):
        raise FedsaddleError(
            f"{files[0]}: no column is left as a feature; numbers or text of a few values are needed"
        )
    left = frame.drop(columns=[*used, *dropped])
    texts, gaps = set(text_columns(left)), left.isna().sum()
    filled = {
        name: f"{n} of {len(left)} values are missing; {repr(MISSING) if name in texts else 'the median'} stands in"
        for name, n in gaps.items()
        if n
    }
    stored = guesses.as_stored(frame[label], positive)
    kept = [name for name in left.columns if name in texts]
    guessed = group is not None and wanted.site is None and not ask.terminal
    tails = _tails(left[[name for name in left.columns if name not in texts]])
    found = Found(
        files=len(files),
        sep=sep,
        decimal=decimal,
        label=label,
        guess=guess,
        others=guesses.others(frame, labels, used) if guess else [],
        positive=stored,
        common=bool((frame[label] == stored).mean() > 0.5),
        group=group,
        guessed=guessed,
        dropped=dropped,
        filled=filled,
        texts=kept,
        tails=tails,
    )
    return _source(path, folder, found)


def _tails(frame: Any) -> dict[str, str]:
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


class Found(NamedTuple):
    """What a look at tables has found."""

    files: int
    sep: str
    decimal: str
    label: str
    guess: str  # said of the label, where it is one
    others: Sequence[str]  # what else may be the label, in words
    positive: Any
    common: bool  # most rows are positive
    group: str | None  # the column of sites; None: a file each
    guessed: bool  # the group
    dropped: dict[str, str]  # columns that are no features, and why
    filled: dict[str, str]  # columns with gaps, and how they are filled
    texts: Sequence[str]  # columns of text that are features
    tails: dict[str, str]  # columns of numbers with long tails, and how long


def _source(path: Path, folder: Path, found: Found) -> Source:
    """A table as a config and a script have it, and what is said of it."""
    label, group, positive, sep, decimal = found.label, found.group, found.positive, found.sep, found.decimal
    dropped, filled, tails = found.dropped, found.filled, found.tails
    place = _relative(path, folder)
    data: list[tuple[str, Any, str]] = [
        (
            "file" if group else "files",
            place,
            "relative to this file" if group else "each file is a site; relative to this file",
        )
    ]
    if group:
        data.append(("group", group, "the column that names the site"))
    data += [
        ("label", label, "what is predicted"),
        ("positive", positive, "its value that counts as positive"),
    ]
    if dropped:
        data.append(("drop", dropped, "not features:"))
    if sep != ",":
        data.append(("sep", sep, "between columns"))
    if decimal != ".":
        data.append(("decimal", decimal, "of numbers such as 1,5"))
    if filled:
        told = [f"{to_value(name)}: {how}" for name, how in filled.items()]
        data.append(("impute", "median", "\n".join(["of the training rows:", *told])))
    scale = "log" if tails else "standard"
    told = [f"{to_value(name)}: {how}" for name, how in tails.items()]
    log = "mean 0 and deviation 1, of sign(x) log(1 + |x|) in every column:"
    data.append(
        ("scale", scale, "\n".join([log, *told]) if tails else "mean 0 and deviation 1 in every column")
    )
    data.append(("test", 0.25, "each site holds out a quarter of its samples"))
    data.append(("seed", 0, "which samples these are; train.seed below is that of training"))
    columns = {"label": label, "positive": positive} | ({"drop": list(dropped)} if dropped else {})
    columns |= {"impute": "median"} if filled else {}
    between = ({"sep": sep} if sep != "," else {}) | ({"decimal": decimal} if decimal != "." else {})
    if group:
        read = "read_parquet" if file_format(path) == "parquet" else "read_csv"
        python = f"frame = {_called_with(f'pd.{read}', [f'HERE / {_python(place)}'], between)}\n"
        made = _called_with("fs.Federation.from_frame", ["frame"], {"group": group} | columns)
    else:
        python = ""
        made = _called_with("fs.Federation.from_files", [f"str(HERE / {_python(place)})"], columns | between)
    python += f'federation = {made}\nfederation = federation.holdout(0.25).scaled("{scale}")'
    who = f"sites by {group!r}" if group else f"{found.files} files, each a site"
    who += " (a guess; --site COLUMN chooses)" if found.guessed else ""
    often = " (most rows have it)" if found.common else ""
    words = [f"{path}: {who}; predicts {label!r}{found.guess}, positive is {positive!r}{often}"]
    words += [f"  {line}" for line in found.others]
    words += [f"  numbers have a decimal {decimal!r}"] if decimal != "." else []
    words += [f"  {name!r} is dropped: {why}" for name, why in dropped.items()]
    words += [f"  {name!r} is kept: {how}" for name, how in filled.items()]
    words += [f'  {name!r} has a long tail, {how}: scale = "log"' for name, how in tails.items()]
    return Source(data, [], python, words, found.texts)


def _known_data(said: str) -> str:
    if said in DATASETS:
        return said
    path = Path(said).expanduser()
    if path.is_file() and file_format(path) not in ("csv", "parquet"):
        raise FedsaddleError(f"--data: must be a .csv or .parquet file, got {said}; convert it")
    if not path.exists() and not any(c in said for c in "*?["):
        hint = did_you_mean(said, DATASETS) if os.sep not in said and "." not in said else similar_file(path)
        raise FedsaddleError(
            f"--data: {said} is no file, no folder and no data set; {hint or 'check the path'}"
        )
    if not path.is_file():
        for file in expand(path):
            if file_format(file) not in ("csv", "parquet"):
                raise FedsaddleError(f"--data: sites must be .csv or .parquet files, got {file}; convert it")
    return str(path)


def _separator(file: Path) -> str:
    """What stands between the columns of a .csv file: what gives its first line most columns."""
    if file_format(file) != "csv":
        return ","
    import pandas

    try:
        lines = pandas.read_csv(file, sep="\0", header=None, nrows=1, dtype=str, quoting=csv.QUOTE_NONE)
        first = str(lines.iloc[0, 0])
    except Exception as error:  # pandas has its own zoo of exceptions
        raise FedsaddleError(f"{file} cannot be read as csv: {first_line(error)}") from error
    return max((",", ";", "\t", "|"), key=lambda sep: len(next(csv.reader([first], delimiter=sep))))


def _read(files: Sequence[Path], sep: str) -> tuple[str, list[Any], Any]:
    """The decimal mark of the files' numbers, a table a file, and all rows together."""
    import pandas

    def tables(decimal: str) -> tuple[list[Any], Any]:
        frames = [read_frame(file, sep, decimal) for file in files]
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


def _relative(path: Path, folder: Path) -> str:
    """A path as a config in that folder names it."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # on another drive
        return str(path.resolve())


# -------------------------------------------------------------------------------------------------- answers


def _one_of(flag: str, known: Iterable[str]) -> Callable[[str], str]:
    names = list(known)

    def check(said: str) -> str:
        if said not in names:
            raise FedsaddleError(
                f"{flag}: must be one of {short(names)}, got {said!r}; {did_you_mean(said, names)}".rstrip(
                    "; "
                )
            )
        return said

    return check


def _column(flag: str, path: Path, names: Sequence[str]) -> Callable[[str], str]:
    def check(said: str) -> str:
        if said not in names:
            raise FedsaddleError(f"{flag}: " + no_column(str(path), said, names))
        return said

    return check


def _whole(flag: str, least: int = 1) -> Callable[[Any], int]:
    def check(said: Any) -> int:
        if not str(said).isdecimal() or int(said) < least:
            raise FedsaddleError(f"{flag}: must be a whole number >= {least}, got {said}")
        return int(said)

    return check


# -------------------------------------------------------------------------------------------------- writing


def _section(name: str, entries: Iterable[tuple[str, Any, str]]) -> str:
    lines: list[tuple[str, str]] = []
    for key, value, comment in entries:
        if isinstance(value, dict):  # a list, with a comment on each
            lines += [
                (f"{key} = [", comment),
                *((f"  {to_value(k)},", v) for k, v in value.items()),
                ("]", ""),
            ]
        else:
            first, *more = comment.split("\n")
            lines += [(f"{key} = {to_value(value)}", first), *(("", line) for line in more)]
    width = min(max(len(line) for line, _ in lines), 40) + 2
    told = [f"{line:<{width}}# {comment}" if comment else line for line, comment in lines]
    return "\n".join([f"[{name}]", *told])


def _config_text(name: str, folder: Path, source: Source, aim: Aim, key: str, model: str, rounds: int) -> str:
    file = folder / CONFIG
    head = (
        f"# {aim.about[0].upper()}{aim.about[1:]}.\n#\n"
        f"#     fedsaddle show {file}     # every default, and who has what; nothing is trained\n"
        f"#     fedsaddle run {file}\n"
        f"#     fedsaddle probe {file}    # step sizes that suit the data"
    )
    about = {"name": aim.why, "p": "share of positives, of all sites' samples together"}
    problem = [(k, v, about.get(k, "")) for k, v in aim.problem.items()]
    comments = {"name": f"{aim.how}; fedsaddle show {aim.algorithm['name']}"}
    comments |= {
        "lr": "step size: halve it if a run diverges, or its curves jump",
        "tau": "step size: halve it if a run diverges, or its curves jump",
    }
    comments |= {"local_steps": "of each site between two rounds"}
    comments |= {"weights": 'sites count by their samples; "clients" (and p = "client_mean"): each as one'}
    algorithm = [(k, v, comments.get(k, "")) for k, v in aim.algorithm.items()]
    train = [
        ("rounds", rounds, "rounds of communication; more while the curves in the report still rise"),
        ("batch_size", 32, '"none": all samples of a site in every step'),
        ("seed", 0, "of all that training draws at random"),
    ]
    network: list[tuple[str, Any, str]] = [("name", model, f"{MODELS[model]}; fedsaddle list models")]
    means = {
        "zero": "start at 0; a random start would stay in the weights of text columns",
        "hidden": "units of its layers",
    }
    network += [(k, v, means[k]) for k, v in OPTIONS[model].items()]
    parts = [
        head,
        f"name = {to_value(name)}  # of the run, in runs/; for a variant: --set name=local --set algorithm.name=local_sgda",
        _section("data", source.data),
    ]
    parts += [_section("partition", source.partition)] if source.partition else []
    parts += [_section("model", network), _section("problem", problem), _section("algorithm", algorithm)]
    return "\n\n".join([*parts, _section("train", train)]) + "\n"


def _python(value: Any) -> str:
    """A value as Python code has it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f")
    return f"[{', '.join(map(_python, value))}]" if isinstance(value, list) else repr(value)


def _called_with(function: str, first: Sequence[str], options: dict[str, Any]) -> str:
    """A call as Python code; a line an argument where one line is too long."""
    arguments = [*first, *(f"{k}={_python(v)}" for k, v in options.items())]
    line = f"{function}({', '.join(arguments)})"
    return line if len(line) < 75 else "\n".join([f"{function}(", *(f"    {a}," for a in arguments), ")"])


def _script_text(source: Source, aim: Aim, model: str, rounds: int) -> str:
    problem, algorithm = ({k: v for k, v in d.items() if k != "name"} for d in (aim.problem, aim.algorithm))
    built = _called_with("models.build", [_python(model), 'federation.data["x"].shape[1:]'], OPTIONS[model])
    settings = {"rounds": rounds, "batch_size": 32, "seed": 0}
    imports = (["from pathlib import Path", ""] if "HERE" in source.python else []) + (
        ["import pandas as pd"] if "pd." in source.python else []
    )
    here = ["HERE = Path(__file__).resolve().parent", ""] if "HERE" in source.python else []
    return "\n".join([
        f'"""{aim.about[0].upper()}{aim.about[1:]}: the same run as {CONFIG}, in Python."""',
        "",
        *imports,
        "import torch",
        "",
        "import fedsaddle as fs",
        "from fedsaddle import models",
        "",
        *here,
        source.python,
        "print(federation)",
        "",
        "torch.manual_seed(0)  # of a model with a random start; any nn.Module with one output will do",
        f"model = {built}",
        f"# {aim.why}",
        f"problem = {_called_with(f'fs.{aim.classes[0]}', ['model'], problem)}",
        f"# {aim.how}",
        f"algorithm = {_called_with(f'fs.{aim.classes[1]}', [], algorithm)}",
        f"run = {_called_with('fs.train', ['problem', 'algorithm', 'federation'], settings)}",
        "",
        "for name, value in run.metrics.items():",
        '    print(f"{name:24} {value}")',
        "",
    ])  # fmt: skip
