"""new: a project's first config, from a look at the data.

What the user does not say is proposed: the label is a column with two values, if possible one with the name of a label;
sites are a column of a few repeated names, the rarer label is positive, columns that cannot be features are dropped, gaps
are filled. On a terminal the proposals are questions. The config is built on the data before anything is written, so that
it runs as it stands.
"""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle import guesses
from fedsaddle.client_files import expand, same_columns
from fedsaddle.config import resolve
from fedsaddle.data import DATASETS
from fedsaddle.drafts import (
    AIMS,
    CONFIG,
    MODELS,
    SCRIPT,
    Aim,
    Found,
    Source,
    config_text,
    of_data_set,
    of_table,
    script_text,
)
from fedsaddle.errors import FedsaddleError, did_you_mean, short, similar_file
from fedsaddle.files import file_format, located
from fedsaddle.frames import MISSING, no_column, text_columns
from fedsaddle.ingest import NEGATIVE, check_present, column, counted, levels, negatives
from fedsaddle.overrides import anchor
from fedsaddle.parse import from_toml
from fedsaddle.progress import spinner

BUNDLED = tuple(name for name, info in DATASETS.items() if info.bundled and info.classes)
MOST_COUNTED = 5  # values of a label
_TRIED = 10  # rounds, to find a step size


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
    text = config_text(name, folder, source, AIMS[aim], model, rounds)
    setup = _rehearsed(text, folder, name)
    federation, suited, said = setup.federation, *_suited(AIMS[aim], setup)
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        config_text(name, folder, source, suited, model, rounds),
        script_text(source, suited, model, rounds),
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
    anchor(tree, folder.resolve())
    for key in ("file", "files"):
        if key in tree["data"]:  # "folder/../file" is not there while the folder is not
            tree["data"][key] = os.path.normpath(tree["data"][key])
    config = resolve(tree, name)
    with spinner("building the federation"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NEGATIVE}")  # as the draft says
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
    return of_data_set(name, sites, positive, proposed)


def _table(path: Path, folder: Path, wanted: Wanted, ask: Ask) -> Source:
    """A table with a column of sites, or a table a site."""
    if wanted.sites is not None:
        raise FedsaddleError("new: --sites has no use, the data have sites of their own; leave it out")
    single = path.is_file()
    files = [path] if single else expand(path)
    encoding = guesses.encoding(files)
    sep = guesses.separator(files[0], encoding)
    with spinner(f"reading {path}"):
        decimal, frames, frame = guesses.read(files, sep, encoding)
    same_columns(files, [list(own.columns) for own in frames])
    names = list(frame.columns)
    labels = guesses.labels(frame)
    why = guesses.no_label(frame, labels)
    proposed = None if why else next(iter(labels), None)
    label = ask(
        "--label", f"Which column is predicted ({guesses.choice(names, labels)})", wanted.label, proposed,
        _column("--label", path, names), why or f"no column of {path} has two values",
    )  # fmt: skip
    guess = " (a guess; --label COLUMN chooses)" if wanted.label is None and not ask.terminal else ""
    for file, own in zip(files, frames, strict=True):
        with located(file, sep):
            remedy = "drop that row, or choose another column"
            check_present(column(own[label], label), f"label {label!r}{guess}", remedy)
    values = levels(column(frame[label], label), label, "")[0]
    if len(values) < 2:
        raise FedsaddleError(f"new: column {label!r} has one value, {values[0]}; choose another --label")
    beside = guesses.beside(frame[label])
    if beside and wanted.positive is None and not ask.terminal:
        guesses.refuse_strays(files, frames, label, f"column {label!r}{guess} has {beside}", sep)
    positive = ask(
        "--positive", f"Which value of {label} is positive ({f'it has {beside}' if beside else short(values)})",
        wanted.positive, guesses.positive(frame[label]), _one_of("--positive", values),
        f"column {label!r}{guess} has {len(values)} values, {counted(guesses.tally(frame[label]), MOST_COUNTED)}",
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
    tails = guesses.tails(left[[name for name in left.columns if name not in texts]])
    found = Found(
        files=len(files),
        sep=sep,
        decimal=decimal,
        encoding=encoding,
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
        negatives=negatives(guesses.tally(frame[label]), stored),
        tellers=guesses.tellers(left, frame[label] == stored),
    )
    return of_table(path, folder, found)


# -------------------------------------------------------------------------------------------------- answers


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
