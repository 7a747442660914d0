"""A run in one TOML file: checked in full before any work, then built.

    name = "my-run"             # optional; the file's name unless given

    [data]                      # one of:
    name = "breast_cancer"      #   a data set of fedsaddle.data, or "quadratic", with its options
    # files = "sites/*.csv"     #   one file a client, with label, positive, ...
    # file = "all.csv"          #   one table with a column of client names: group, label, positive, ...
    test = 0.25                 # each client holds out this share; "pooled" or "matching": the set's own test part

    [partition]                 # of a named data set over clients; `fedsaddle list partitions`
    name = "dirichlet"
    clients = 10

    [[transform]]               # optional, any number: changes to the training data
    name = "remove_positives"
    share = 0.5

    [model]                     # `fedsaddle list models`, or module = "my_models:factory" for your own
    name = "mlp"

    [problem]                   # what is learned
    name = "auc"

    [algorithm]                 # how
    name = "codasca"
    lr = 0.1

    [participation]             # optional: who takes part; everybody unless given
    name = "full"

    [train]                     # the arguments of fedsaddle.train
    rounds = 100

The keys of a section are the arguments of the thing that it names: there is no other list of them. Where an argument may
be None, "none" says so (`batch_size = "none"`: all local samples).

Seeds: `train.seed` draws minibatches, participants and the model's initial parameters. `data.seed`, `partition.seed` and
each transform's seed are 0 unless given, so that runs with different `train.seed` have the same clients.

Paths in a file are relative to the folder of the file, in `--set` to the current folder.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import functools
import importlib
import inspect
import itertools
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import nn

from fedsaddle import models
from fedsaddle.algorithms import ALGORITHMS, Algorithm, LocalSGDA
from fedsaddle.data import DATASETS, SCALES, Dataset, DatasetInfo
from fedsaddle.data import load as load_dataset
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.ingest import file_format
from fedsaddle.models import MODELS
from fedsaddle.participation import PARTICIPATION, Participation
from fedsaddle.partitions import PARTITIONS, TRANSFORMS
from fedsaddle.problem import ModelProblem, Problem
from fedsaddle.problems import PROBLEMS, QuadraticSaddle, quadratic_federation
from fedsaddle.train import Run, train

Tree = dict[str, Any]  # what a TOML file holds

GENERATED: dict[str, Callable[..., Federation]] = {"quadratic": quadratic_federation}
SECTIONS = ("data", "partition", "transform", "model", "problem", "algorithm", "participation", "train")
RUN_FILES = ("config.toml", "history.jsonl", "result.json", "model.safetensors", "report.html")
_PATHS = (("data", "files"), ("data", "file"), ("data", "data_dir"), ("participation", "rounds"))


# ---------------------------------------------------------------------------------------------- the config


class Setup(NamedTuple):
    """What a config describes, ready for `fedsaddle.train`."""

    problem: Problem
    algorithm: Algorithm
    federation: Federation
    participation: Participation
    train: dict[str, Any]  # the other arguments

    def start(self, out: Path | None = None, progress: bool | None = None) -> Run:
        """The run, before its first round."""
        return train(
            self.problem,
            self.algorithm,
            self.federation,
            participation=self.participation,
            out=out,
            progress=progress,
            **self.train,
        )


@dataclass(frozen=True)
class Config:
    """A whole run, checked, with every default filled in.

    Args:
        tree: the file's sections as nested dicts.

    Example:
        >>> config = resolve({
        ...     "data": {"name": "quadratic", "clients": 4},
        ...     "problem": {"name": "quadratic"},
        ...     "algorithm": {"name": "codasca", "lr": 0.05, "local_steps": 10},
        ...     "train": {"rounds": 200, "dtype": "float64"},
        ... })
        >>> config.run().metrics["distance"] < 1e-6
        True
    """

    tree: Tree

    @property
    def name(self) -> str:
        """What the run is called."""
        name: str = self.tree["name"]
        return name

    def build(self) -> Setup:
        """Load the data and make the problem, the algorithm and the federation."""
        tree, seed = self.tree, self.tree["train"]["seed"]
        federation = _federation(tree)
        options = _arguments("problem", tree)
        kind = PROBLEMS[tree["problem"]["name"]]
        if "model" in tree:
            with _blamed("model"), torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                options["model"] = _model(tree, federation)
        problem = kind(**options)
        problem.check(federation)
        algorithm = ALGORITHMS[tree["algorithm"]["name"]](**_arguments("algorithm", tree))
        participation = PARTICIPATION[tree["participation"]["name"]](**_arguments("participation", tree))
        return Setup(problem, algorithm, federation, participation, _arguments("train", tree))

    def run(
        self,
        out: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        *,
        numbered: bool = False,
    ) -> Run:
        """Build and train to the end.

        Args:
            out: a new or empty folder for config.toml, history.jsonl, result.json and model.safetensors.
            progress: a progress bar on stderr; by default when that is a terminal.
            numbered: where `out` is taken, use `out`-2, `out`-3, ...; the run says which (`run.out`).
        """
        setup = self.build()
        if out is None:
            return setup.start(None, progress).finish()
        with _new_folder(Path(out), numbered) as folder:
            run = setup.start(folder, progress)
            (folder / "config.toml").write_text(dump(self), encoding="utf-8")
            return run.finish()


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Read and check a file.

    Args:
        path: the TOML file.
        overrides: assignments such as "algorithm.lr=0.05", which win over the file.
    """
    file = Path(path)
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedsaddleError(f"{file}: is not valid TOML: {error}") from None
    _anchor(tree, file.resolve().parent)
    for assignment in overrides:
        _override(tree, assignment)
    _anchor(tree, Path.cwd())  # what is still relative came from an override
    return resolve(tree, file.stem)


def resolve(tree: Mapping[str, Any], name: str = "run") -> Config:
    """Check a parsed file and fill in its defaults; raises a FedsaddleError of one line.

    Args:
        tree: sections as nested dicts.
        name: of the run, unless the tree gives one.
    """
    known = ("name", *SECTIONS)
    for section, value in tree.items():
        if section not in known:
            _unknown_key("", section, "section", known, "a config has")
        if section != "name" and not isinstance(value, list if section == "transform" else dict):
            form = "[[transform]] tables" if section == "transform" else f"a table [{section}]"
            raise FedsaddleError(f"{section}: must be {form}, got {_quoted(value)}")
    filled: Tree = {"name": tree.get("name", name)}
    if not isinstance(filled["name"], str) or not re.fullmatch(r"[^\s./\\][^/\\\x00-\x1f]*", filled["name"]):
        raise FedsaddleError(
            f"name: must be text without slashes, to name a folder, got {_quoted(filled['name'])}"
        )
    for section in _needed(tree):
        given = tree.get(section, {"name": "full"} if section == "participation" else {})
        if section == "transform":
            filled[section] = [
                _filled("transform", t, filled, f"transform[{i}]") for i, t in enumerate(given)
            ]
        else:
            filled[section] = _filled(section, given, filled, section)
    _rehearse(filled)
    return Config(filled)


def _needed(tree: Mapping[str, Any]) -> list[str]:
    """The sections that this config has, in order; refuses one that is missing or has no use."""
    data, problem = tree.get("data", {}), tree.get("problem", {})
    kind = PROBLEMS.get(str(problem.get("name")))
    models_data = kind is None or issubclass(kind, ModelProblem)
    generated = str(data.get("name")) in GENERATED
    example = {
        "data": 'name = "breast_cancer"',
        "partition": 'name = "dirichlet" and clients = 10',
        "model": 'name = "linear"',
        "problem": 'name = "auc"',
        "algorithm": 'name = "codasca"',
        "train": "rounds = 100",
    }
    unused = {}
    if generated:
        unused["partition"] = "generated data has clients"
    elif "name" not in data and ("files" in data or "file" in data):
        unused["partition"] = "each file or group is a client"
    if not models_data:
        unused["model"] = f"problem {problem['name']!r} has none"
    for section, reason in unused.items():
        if section in tree:
            raise FedsaddleError(f"{section}: has no use here, {reason}: remove the section")
    for section, text in example.items():
        if section not in tree and section not in unused:
            raise FedsaddleError(f"{section}: section is missing; for example [{section}] with {text}")
    if kind is not None and models_data == generated:
        want = "a data set or files" if models_data else f"data.name = {problem['name']!r}"
        got = _quoted(data.get("name", "files"))
        raise FedsaddleError(f"problem.name: {problem['name']!r} needs {want}, got {got}")
    optional = {"transform": "transform" in tree, "participation": True}
    return [s for s in SECTIONS if optional.get(s, s not in unused)]


def _rehearse(tree: Tree) -> None:
    """Let every part that needs no data check its own values: nothing is loaded, nothing is computed."""
    algorithm = ALGORITHMS[tree["algorithm"]["name"]](**_arguments("algorithm", tree))
    PARTICIPATION[tree["participation"]["name"]](**_arguments("participation", tree))
    kind = PROBLEMS[tree["problem"]["name"]]
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        stand_in = {"model": nn.Linear(1, 1)} if issubclass(kind, ModelProblem) else {}
    problem: Problem = kind(**stand_in, **_arguments("problem", tree))
    algorithm.check(problem)
    try:
        tiny = quadratic_federation(clients=2, dim_x=1, dim_y=1)
        train(QuadraticSaddle(1, 1), LocalSGDA(), tiny, **_arguments("train", tree))
    except FedsaddleError:
        raise
    except (RuntimeError, AssertionError) as error:  # what torch says of a device that is not there
        device, reason = tree["train"]["device"], _first_line(error)
        raise FedsaddleError(f"train.device: {device!r} cannot be used: {reason}") from error


# --------------------------------------------------------------------------------- keys, from the signatures


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


def keys_of(thing: Callable[..., Any], *skip: str) -> Keys:
    """The arguments of a function, a dataclass or another class, as keys."""
    source: Any = thing.func if isinstance(thing, functools.partial) else thing
    if inspect.isclass(source) and not dataclasses.is_dataclass(source):
        source = source.__init__
    hints = get_type_hints(source, localns={"Federation": Federation})
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: Key(hints.get(name, Any), p.default)
        for name, p in inspect.signature(thing).parameters.items()
        if name not in skip and p.kind not in variable
    }


def keys(section: str, name: str, data: Mapping[str, Any] | None = None) -> Keys:
    """The keys that a section takes beside `name`.

    Args:
        section: for example "algorithm".
        name: for example "codasca".
        data: the resolved [data] section, from which [problem] has some defaults.
    """
    if section == "data":
        if name in GENERATED:
            return keys_of(GENERATED[name])
        test = {"test": Key(float | Literal["pooled", "matching"] | None, None)}
        return (
            keys_of(load_dataset, "name")
            | _dataset_options(DATASETS[name])
            | keys_of(_held_out, "federation")
            | test
        )
    if section == "partition":
        own = keys_of(PARTITIONS[name], "labels", "groups")  # groups are the data set's own
        return own | {"by": keys_of(Dataset.federation)["by"]}
    if section == "transform":
        return keys_of(TRANSFORMS[name], "federation")
    if section == "model":
        arguments = inspect.signature(MODELS[name]).parameters
        shape = models._derived(name, (1, 64, 64), arguments)  # what follows from the data is no key
        return keys_of(MODELS[name], *shape, "outputs") | {"outputs": Key(int | None, None)}
    if section == "problem":
        own = keys_of(PROBLEMS[name], "model")
        # a generated problem has the dimensions of its data
        same = data if data and data.get("name") in GENERATED else {}
        return {k: key._replace(default=same.get(k, key.default)) for k, key in own.items()}
    if section == "train":
        return keys_of(train, "problem", "algorithm", "federation", "participation", "out", "progress")
    return keys_of(ALGORITHMS[name] if section == "algorithm" else PARTICIPATION[name])


def _dataset_options(info: DatasetInfo) -> Keys:
    reader = info.generate or info.layouts[-1].read
    return keys_of(reader, "seed", "paths", "n_features", "label_names")  # what `load` fills in


def _known(section: str) -> Collection[str]:
    """The names that a section may have."""
    if section == "data":
        return [*DATASETS, *GENERATED]
    named: dict[str, Mapping[str, Any]] = {
        "partition": PARTITIONS,
        "transform": TRANSFORMS,
        "model": MODELS,
        "problem": PROBLEMS,
        "algorithm": ALGORITHMS,
        "participation": PARTICIPATION,
    }
    return named[section]


def _schema(section: str, given: Mapping[str, Any], tree: Tree, path: str) -> tuple[str, Keys]:
    """What a section is about, for messages, and all its keys."""
    if section == "train":
        return "train", keys("train", "")
    ways: dict[str, Callable[[], Keys]] = {"name": lambda: keys(section, given["name"], tree.get("data"))}
    if section == "data":
        rest = {"scale": Key(Literal.__getitem__(SCALES), "standard")} | keys_of(_held_out, "federation")
        ways["files"] = lambda: (
            {"files": Key(str | list[str])} | keys_of(Federation.from_files, "paths", "dtype") | rest
        )
        ways["file"] = lambda: {"file": Key(str)} | keys_of(Federation.from_frame, "frame", "dtype") | rest
    if section == "model":
        ways["module"] = lambda: {"module": Key(str)} | _factory_keys(given["module"])
    found = [way for way in ways if way in given]
    if len(found) != 1:
        for key in given if not found else ():
            if near := difflib.get_close_matches(key, ways, n=1):
                raise FedsaddleError(f"{path}.{_key(key)}: unknown key, did you mean {near[0]!r}?")
        rule = f"one of {', '.join(ways)}" if len(ways) > 1 else "a name"
        names = f"; names are {', '.join(_known(section))}" if not found else ""
        raise FedsaddleError(f"{path}: needs {rule}; got {' and '.join(found) or 'none'}{names}")
    (way,) = found
    if way == "name":
        name, known = given["name"], _known(section)
        if not isinstance(name, str) or name not in known:
            near = difflib.get_close_matches(str(name).lower(), known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise FedsaddleError(
                f"{path}.name: {_quoted(name)} is unknown; {hint}known are {', '.join(known)}"
            )
        return name, {"name": Key(str)} | ways["name"]()
    return f"{path} with {way}", ways[way]()


def _filled(section: str, given: Any, tree: Tree, path: str) -> Tree:
    """A section with its values checked and its defaults filled in, in the order of the signature."""
    if not isinstance(given, dict):
        raise FedsaddleError(f"{path}: must be a table, got {_quoted(given)}")
    owner, own = _schema(section, given, tree, path)
    for key in given:
        if key not in own:
            takes = [k for k in own if k not in ("name", "module")]
            _unknown_key(f"{path}.", key, "key", takes, f"{owner} takes")
    out: Tree = {}
    for name, key in own.items():
        if name in given:
            try:
                key.python(given[name])
            except ValidationError:
                got = _quoted(given[name])
                raise FedsaddleError(f"{path}.{name}: must be {in_words(key.type)}, got {got}") from None
            out[name] = given[name]
        elif key.required:
            raise FedsaddleError(f"{path}.{name}: is missing; {owner} needs it: {in_words(key.type)}")
        elif key.default is not None:
            out[name] = list(key.default) if isinstance(key.default, tuple) else key.default
    return out


def _arguments(section: str, tree: Tree, part: Tree | None = None) -> dict[str, Any]:
    """A checked section as keyword arguments, without its name."""
    part = tree[section] if part is None else part
    _, own = _schema(section, part, tree, section)
    return {k: own[k].python(v) for k, v in part.items() if k not in ("name", "module", "files", "file")}


def _unknown_key(path: str, key: str, what: str, known: Collection[str], takes: str) -> NoReturn:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    raise FedsaddleError(
        f"{path}{_key(key)}: unknown {what}{hint} {takes} {', '.join(known) or 'no other key'}"
    )


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))


_ONE = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "text",
    NoneType: '"none"',
}


def in_words(kind: Any) -> str:
    """A type for people: `float | None` is 'a number or "none"'."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return "any value"
    if origin in (Union, UnionType):
        spoken = [a for a in args if a is not NoneType or str not in args]  # where text goes, "none" is text
        return " or ".join(dict.fromkeys(words for a in spoken if (words := in_words(a))))
    if origin is Literal:
        return " or ".join(map(_quoted, args))
    if origin is os.PathLike:
        return "text"
    if inspect.isclass(origin) and args:  # Sequence, Iterable
        return f"a list [{in_words(args[0])}, ...]"
    return _ONE.get(kind, "")  # "" for what a TOML file cannot hold, such as torch.dtype


# ----------------------------------------------------------------------------------------------- building


def _federation(tree: Tree) -> Federation:
    part = tree["data"]
    with _blamed("data"):
        options = _arguments("data", tree)
        if part.get("name") in GENERATED:
            federation = GENERATED[part["name"]](**options)
        elif "name" in part:
            test, valid = options.pop("test", None), options.pop("valid", None)
            dataset = load_dataset(part["name"], **options)
            with _blamed("partition"):
                federation = dataset.federation(
                    tree["partition"]["name"],
                    test="matching" if test == "matching" else "pooled",
                    **_arguments("partition", tree),
                )
            share = None if isinstance(test, str) else test
            federation = _held_out(federation, share, valid, options["seed"])
        else:
            split = {k: options.pop(k, None) for k in keys_of(_held_out, "federation")}
            scale = options.pop("scale")
            if "files" in part:
                federation = Federation.from_files(part["files"], **options)
            else:
                federation = Federation.from_frame(_table(Path(part["file"])), **options)
            federation = _scaled(_held_out(federation, **split), scale)
    for i, change in enumerate(tree.get("transform", ())):
        with _blamed(f"transform[{i}]"):
            federation = TRANSFORMS[change["name"]](federation, **_arguments("transform", tree, change))
    return federation


def _table(file: Path) -> Any:
    import pandas

    readers = {"csv": pandas.read_csv, "parquet": pandas.read_parquet}
    if not file.is_file():
        raise FedsaddleError(f"data.file: {file} is not there, or not a file")
    if file_format(file) not in readers:
        raise FedsaddleError(f"data.file: must be a .csv or .parquet file, got {file.name}")
    try:
        return readers[file_format(file)](file)
    except Exception as error:  # each reader has its own zoo of exceptions
        raise FedsaddleError(f"{file} cannot be read as {file_format(file)}: {_first_line(error)}") from error


def _held_out(
    federation: Federation, test: float | None = None, valid: float | None = None, seed: int = 0
) -> Federation:
    """Every client's own test and validation samples, in place of what the data set brings."""
    if test is not None:
        federation = dataclasses.replace(federation, test=None).holdout(test, seed, "test")
    if valid is not None:
        federation = dataclasses.replace(federation, valid=None).holdout(valid, seed, "valid")
    return federation


def _scaled(federation: Federation, how: str) -> Federation:
    """All columns of x (channels of images) shifted and scaled by statistics of all clients' training samples."""
    if how == "none":
        return federation
    x = federation.data["x"].double()
    axes = [i for i in range(x.ndim) if i != 1]
    if how == "standard":
        shift, width = x.mean(axes, keepdim=True), x.std(axes, correction=0, keepdim=True)
    else:
        shift, width = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True) - x.amin(axes, keepdim=True)
        if how == "symmetric":
            shift, width = shift + width / 2, width / 2
    width = torch.where(width > 0, width, torch.ones_like(width))  # a constant column becomes 0

    def apply(part: Federation | None) -> Federation | None:
        if part is None:
            return None
        x = part.data["x"]
        return dataclasses.replace(part, data={**part.data, "x": ((x.double() - shift) / width).to(x.dtype)})

    scaled = apply(federation)
    assert scaled is not None
    return dataclasses.replace(scaled, test=apply(federation.test), valid=apply(federation.valid))


def _model(tree: Tree, federation: Federation) -> nn.Module:
    part, options = tree["model"], _arguments("model", tree)
    shape = tuple(federation.data["x"].shape[1:])
    if "module" in part:
        factory = _factory(part["module"])
        given = {"sample_shape": shape} if "sample_shape" in inspect.signature(factory).parameters else {}
        module: nn.Module = factory(**given, **options)
        return module
    outputs = options.pop("outputs", None)
    if outputs is None:
        outputs = max(1, len(federation.classes)) if tree["problem"].get("loss") == "cross_entropy" else 1
    return models.build(part["name"], shape, outputs, **options)


def _factory(spec: str) -> Callable[..., Any]:
    """The user's own function or class behind "package.module:name"."""
    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise FedsaddleError(f'model.module: must be "module:factory", got {_quoted(spec)}')
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # as `python -m` does, but behind everything that is installed
    try:
        factory = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's module may raise anything
        raise FedsaddleError(
            f"model.module: cannot import {spec} ({type(error).__name__}: {_first_line(error)}); "
            "it must be importable from the current folder"
        ) from error
    if not callable(factory):
        raise FedsaddleError(f"model.module: {spec} must be a function or class that returns a module")
    return factory  # type: ignore[no-any-return]


def _factory_keys(spec: Any) -> Keys:
    if not isinstance(spec, str):
        raise FedsaddleError(f'model.module: must be text such as "module:factory", got {_quoted(spec)}')
    return keys_of(_factory(spec), "sample_shape")


@contextmanager
def _blamed(section: str) -> Iterator[None]:
    """Whatever a section's values make other code raise becomes one line that names the section."""
    try:
        yield
    except FedsaddleError:
        raise
    except Exception as error:
        raise FedsaddleError(f"{section}: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]


@contextmanager
def _new_folder(out: Path, numbered: bool) -> Iterator[Path]:
    """A folder for a run, gone again if the run fails before its first record."""
    folder, made = out, not out.exists()
    if numbered:
        out.parent.mkdir(parents=True, exist_ok=True)
        for n in itertools.count(2):
            try:
                folder.mkdir()  # fails if it is there, also if another process made it just now
                made = True
                break
            except FileExistsError:
                folder = out.with_name(f"{out.name}-{n}")
    else:
        for file in RUN_FILES:
            if (folder / file).exists():
                raise FedsaddleError(f"{out}: already holds a run ({file}); choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException as error:
        if (folder / "history.jsonl").exists():
            error.add_note(f"the rounds before that are in {folder}")
        else:
            with suppress(OSError):
                (folder / "config.toml").unlink(missing_ok=True)
                if made:
                    folder.rmdir()
        raise


# -------------------------------------------------------------------------------------- overrides and paths


def _override(tree: Tree, assignment: str) -> None:
    """Put one "a.b=value" into the tree; a value that is no TOML is text."""
    path, equals, text = assignment.partition("=")
    names = [name.strip() for name in path.split(".")]
    if not equals or not all(names):
        raise FedsaddleError(f"--set {assignment}: must be section.key=value, such as algorithm.lr=0.05")
    try:
        parsed = tomllib.loads(f"value = {text}")
        value = parsed["value"] if len(parsed) == 1 else text.strip()
    except tomllib.TOMLDecodeError:
        value = text.strip()
    place: Any = tree
    for depth, name in enumerate(names):
        at: Any = name
        if isinstance(place, list):
            if not name.isdecimal() or int(name) >= len(place):
                where = ".".join(names[:depth])
                raise FedsaddleError(f"--set {assignment}: {where} has {len(place)} entries, 0 is the first")
            at = int(name)
        elif not isinstance(place, dict):
            where = ".".join(names[:depth])
            raise FedsaddleError(f"--set {assignment}: {where} is a value, not a section")
        if depth == len(names) - 1:
            place[at] = value
        elif isinstance(place, dict):
            place = place.setdefault(at, {})
        else:
            place = place[at]


def _anchor(tree: Tree, folder: Path) -> None:
    """Make the paths of a tree absolute."""

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(v) for v in value]
        return str(folder / Path(value).expanduser()) if isinstance(value, str) and value else value

    for section, key in _PATHS:
        part = tree.get(section)
        if isinstance(part, dict) and key in part:
            part[key] = absolute(part[key])


# -------------------------------------------------------------------------------------------- writing TOML


def dump(config: Config) -> str:
    """The config as TOML, which loads as the same config."""
    return to_toml(config.tree)


def to_toml(tree: Mapping[str, Any]) -> str:
    """A nested dict as TOML: values first, then [tables], then [[arrays of tables]]."""
    return "\n".join(_lines(tree, ())).strip() + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    def is_tables(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)

    for key, value in table.items():
        if not isinstance(value, dict) and not is_tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        inner = (*path, key)
        header = ".".join(map(_key, inner))
        if isinstance(value, dict):
            yield from ("", f"[{header}]")
            yield from _lines(value, inner)
        elif is_tables(value):
            for entry in value:
                yield from ("", f"[[{header}]]")
                yield from _lines(entry, inner)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, datetime.date | datetime.time | datetime.datetime):
        return value.isoformat()
    raise FedsaddleError(f"TOML has no {type(value).__name__}, got {value!r}")


def _quoted(value: Any) -> str:
    """A value for messages, as the file has it."""
    text = _value(value)
    return text if len(text) <= 60 else text[:57] + "..."
