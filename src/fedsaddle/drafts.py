"""The draft of a run, as `fedsaddle new` writes it: a config, and a Python script that does the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.data import DATASETS
from fedsaddle.files import file_format
from fedsaddle.toml import to_value

CONFIG, SCRIPT = "run.toml", "run.py"
MODELS = {"linear": "a weighted sum of the features", "mlp": "a small network"}
OPTIONS: dict[str, dict[str, Any]] = {"linear": {"zero": True}, "mlp": {"hidden": [16]}}


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


class Source(NamedTuple):
    """Where the samples come from, as [data] and [partition], in Python, and in words."""

    data: list[tuple[str, Any, str]]  # key, value, comment
    partition: list[tuple[str, Any, str]]
    python: str  # lines that make `federation`
    words: list[str]
    texts: Sequence[str] = ()  # columns of text that are features


class Found(NamedTuple):
    """What a look at tables has found."""

    files: int
    sep: str
    decimal: str
    encoding: str
    label: str
    guess: str  # said of the label, where it is one
    others: Sequence[str]  # what else may be the label, in words
    positive: Any
    negatives: str  # what is said where several values are
    common: bool  # most rows are positive
    group: str | None  # the column of sites; None: a file each
    guessed: bool  # the group
    dropped: dict[str, str]  # columns that are no features, and why
    filled: dict[str, str]  # columns with gaps, and how they are filled
    texts: Sequence[str]  # columns of text that are features
    tails: dict[str, str]  # columns of numbers with long tails, and how long
    tellers: dict[str, float]  # columns that tell positives from negatives alone, and their AUC


def of_data_set(name: str, sites: int, positive: str, usual: str) -> Source:
    """A data set as a config and a script have it, dealt to sites, and what is said of it.

    Args:
        name: the data set.
        sites: how many.
        positive: the positive class.
        usual: the one that is positive where nothing is said.
    """
    info = DATASETS[name]
    own_test = info.bundled == "generated" or "test" in info.facts
    data: list[tuple[str, Any, str]] = [("name", name, info.description)]
    options = {}
    if len(info.classes) > 2 or positive != usual:
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


def of_table(path: Path, folder: Path, found: Found) -> Source:
    """A table as a config and a script have it, and what is said of it."""
    label, group, positive, sep, decimal = found.label, found.group, found.positive, found.sep, found.decimal
    encoding, dropped, filled, tails = found.encoding, found.dropped, found.filled, found.tails
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
    if encoding != "utf-8":
        data.append(("encoding", encoding, "of text: Excel's own"))
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
    between = {"sep": (sep, ","), "decimal": (decimal, "."), "encoding": (encoding, "utf-8")}
    form = {key: value for key, (value, usual) in between.items() if value != usual}
    if group:
        read = "read_parquet" if file_format(path) == "parquet" else "read_csv"
        python = f"frame = {_called_with(f'pd.{read}', [f'HERE / {_python(place)}'], form)}\n"
        made = _called_with("fs.Federation.from_frame", ["frame"], {"group": group} | columns)
    else:
        python = ""
        made = _called_with("fs.Federation.from_files", [f"str(HERE / {_python(place)})"], columns | form)
    python += f'federation = {made}\nfederation = federation.holdout(0.25).scaled("{scale}")'
    who = f"sites by {group!r}" if group else f"{found.files} files, each a site"
    who += " (a guess; --site COLUMN chooses)" if found.guessed else ""
    often = " (most rows have it)" if found.common else ""
    words = [f"{path}: {who}; predicts {label!r}{found.guess}, positive is {positive!r}{often}"]
    words += [f"  {found.negatives}; correct or drop rows where that is not meant"] if found.negatives else []
    words += [f"  {line}" for line in found.others]
    words += [f"  numbers have a decimal {decimal!r}"] if decimal != "." else []
    words += [f"  text is read as {encoding}, since it is not UTF-8"] if encoding != "utf-8" else []
    words += [f"  {name!r} is dropped: {why}" for name, why in dropped.items()]
    words += [f"  {name!r} is kept: {how}" for name, how in filled.items()]
    words += [
        f"  {name!r} alone separates {positive!r} from the rest (AUC {auc:.3f}): add it to drop if it is not known when the "
        "model is used"
        for name, auc in found.tellers.items()
    ]
    words += [f'  {name!r} has a long tail, {how}: scale = "log"' for name, how in tails.items()]
    return Source(data, [], python, words, found.texts)


def _relative(path: Path, folder: Path) -> str:
    """A path as a config in that folder names it."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # on another drive
        return str(path.resolve())


def config_text(name: str, folder: Path, source: Source, aim: Aim, model: str, rounds: int) -> str:
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


def script_text(source: Source, aim: Aim, model: str, rounds: int) -> str:
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
