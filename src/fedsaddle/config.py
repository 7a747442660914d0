"""A run in one TOML file: checked in full before any work, then built.

    name = "my-run"             # optional; the file's name unless given

    [data]                      # one of:
    name = "breast_cancer"      #   a data set of fedsaddle.data, or "quadratic", with its options
    # files = "sites/*.csv"     #   one file a client, with label, positive, impute, ...
    # file = "all.csv"          #   one table with a column of client names: group, label, positive, impute, ...
    # sites = "federation.toml" #   a deployment, for `fedsaddle deploy run`: quorum, timeout
    test = 0.25                 # each client holds out this share; "pooled" or "matching": the set's own test part

    [partition]                 # of a named data set over clients; `fedsaddle list partitions`
    name = "dirichlet"
    clients = 10

    [[transform]]               # optional, any number: changes to the training data
    name = "remove_positives"
    share = 0.5

    [[transform]]               # Train-Convexify-Train: samples become features of a network that is trained first
    name = "convexify"
    first.model = { name = "mlp" }
    first.problem = { name = "erm", loss = "cross_entropy" }
    first.algorithm = { name = "fedavg", lr = 0.05 }
    first.train = { rounds = 30 }

    [model]                     # `fedsaddle list models`, or module = "my_models:factory" for your own
    name = "mlp"

    [problem]                   # what is learned
    name = "auc"

    [algorithm]                 # how; or module = "my_methods:Mine" for your own
    name = "codasca"
    lr = 0.1

    [participation]             # optional: who takes part; everybody unless given
    name = "full"

    [train]                     # the arguments of fedsaddle.train
    rounds = 100
    track = ["tensorboard"]     # optional: also "mlflow", "wandb" (trackers.py)

The keys of a section are the arguments of the thing that it names: there is no other list of them. Where an argument may
be None, "none" says so (`batch_size = "none"`: all local samples).

Seeds: `train.seed` draws minibatches, participants and the model's initial parameters. `data.seed`, `partition.seed` and
each transform's seed are 0 unless given, so that runs with different `train.seed` have the same clients.

Paths in a file are relative to the folder of the file, in `--set` to the current folder.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedsaddle import models
from fedsaddle.algorithms import Algorithm, LocalSGDA
from fedsaddle.convexify import convexify, coordinates_of
from fedsaddle.data import load as load_dataset
from fedsaddle.errors import BadArgument, FedsaddleError, first_line, similar_file
from fedsaddle.federation import Federation
from fedsaddle.files import file_format, read_frame
from fedsaddle.flat import FlatModel
from fedsaddle.folder import new_folder
from fedsaddle.frames import in_file
from fedsaddle.keys import Tree, unknown_key, wrong_name
from fedsaddle.kinds import OF_CLASSES
from fedsaddle.networks import Networks
from fedsaddle.overrides import read, with_paths
from fedsaddle.participation import Participation
from fedsaddle.problem import ModelProblem, Problem
from fedsaddle.problems import PROBLEMS, QuadraticSaddle, quadratic_federation
from fedsaddle.schema import GENERATED, HELD_OUT, SECTIONS, arguments, factory, filled, named
from fedsaddle.toml import quoted, to_toml
from fedsaddle.trackers import Track
from fedsaddle.train import Run, train

_OF_DATA = ("data", "partition", "transform", "model")  # what a run's own description lacks
_OF_FIRST = ("model", "problem", "algorithm", "participation", "train")  # sections of a first stage


Hear = Callable[[str], Any]  # is told what goes on


class Setup(NamedTuple):
    """What a config describes, ready for `fedsaddle.train`."""

    problem: Problem
    algorithm: Algorithm
    federation: Federation
    participation: Participation
    train: dict[str, Any]  # the other arguments
    track: Track  # who is told of the rounds


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

    def build(
        self,
        federation: Federation | None = None,
        progress: bool | None = False,
        networks: Networks | None = None,
        hear: Hear | None = None,
    ) -> Setup:
        """Load the data and make the problem, the algorithm and the federation.

        Args:
            federation: what [data], [partition] and [transform] describe, where it is loaded already.
            progress: a progress bar on stderr, where a transform trains a network first.
            networks: those that transforms have trained before; gets those that are new.
            hear: is told how far their training has come.
        """
        tree = self.tree
        if federation is None:
            federation, networks = _loaded(tree), networks or Networks()
            for i in range(len(tree.get("transform", ()))):
                federation = _transformed(tree, i, federation, networks, progress, hear)
        model = {}
        if "model" in tree:
            model["model"] = self.module(tuple(federation.data["x"].shape[1:]), federation.classes)
        problem: Problem = _made("problem", tree["problem"], **model)
        problem.check(federation)
        algorithm = _made("algorithm", tree["algorithm"])
        participation = _made("participation", tree["participation"])
        options = arguments("train", tree["train"])
        track = options.pop("track", None)
        return Setup(problem, algorithm, federation, participation, options, track)

    def train_first(self, networks: Networks, hear: Hear | None = None) -> None:
        """Train the network that a transform needs, if there is such a transform, and keep it.

        Args:
            networks: gets it.
            hear: is told how far the training has come.
        """
        places = [i for i, change in enumerate(self.tree.get("transform", ())) if "first" in change]
        if not places:
            return
        federation = _loaded(self.tree)
        for i in range(places[0]):  # a second such transform is refused when the data are built
            federation = _transformed(self.tree, i, federation, networks)
        _network(self.tree, places[0], federation, networks, False, hear)

    def start(self, setup: Setup, **options: Any) -> Run:
        """The run of what was built, tracked as the config says, not computed yet.

        Args:
            options: arguments of `train` beside those in the config, or in place of them.
        """
        settings = setup.train | {"track": setup.track} | options
        run = train(*setup[:3], participation=setup.participation, **settings)
        sections = copy.deepcopy({k: self.tree[k] for k in _OF_DATA if k in self.tree})
        with_paths(sections, lambda path: Path(path).name)  # where files lie is nobody else's business
        run.tracking.sections = sections
        if run.out is None:
            run.tracking.name = self.name
        return run

    def module(self, shape: tuple[int, ...], classes: Sequence[str]) -> nn.Module:
        """The model as training starts from it.

        Args:
            shape: of a sample.
            classes: of the labels, one output for each where the problem needs that.
        """
        with _blamed("model"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.tree["train"]["seed"])
            return _model(self.tree, shape, classes)

    def run(
        self,
        out: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        *,
        numbered: bool = False,
        resume: bool = False,
        allow: bool = False,
    ) -> Run:
        """Build and train to the end.

        Args:
            out: a new or empty folder for config.toml, history.jsonl, result.json and model.safetensors.
            progress: a progress bar on stderr; by default when that is a terminal.
            numbered: where `out` is taken, use `out`-2, `out`-3, ...; the run says which (`run.out`).
            resume, allow: go on with the run that `out` holds, as for `train`.
        """
        setup = self.build(progress=progress)
        place: AbstractContextManager[Path | None] = nullcontext()
        if out is not None:
            place = nullcontext(Path(out)) if resume else new_folder(Path(out), numbered)
        with place as folder:
            run = self.start(setup, out=folder, progress=progress, resume=resume, allow=allow)
            if folder is not None and not resume:
                (folder / "config.toml").write_text(dump(self), encoding="utf-8")
            return run.finish()


def dump(config: Config) -> str:
    """The config as TOML, which loads as the same config."""
    return to_toml(config.tree)


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Read and check a file.

    Args:
        path: the TOML file.
        overrides: assignments such as "algorithm.lr=0.05", which win over the file.
    """
    tree = read(path, overrides)
    if tree.pop("sweep", None) is not None:
        warnings.warn(
            f"{path}: [sweep] is ignored in a single run; fedsaddle sweep computes it", stacklevel=2
        )
    return resolve(tree, Path(path).stem)


def resolve(tree: Mapping[str, Any], name: str = "run", rehearse: bool = True) -> Config:
    """Check a parsed file and fill in its defaults; raises a FedsaddleError of one line.

    Args:
        tree: sections as nested dicts.
        name: of the run, unless the tree gives one.
        rehearse: also build what it describes, on a small scale; else only names and types are checked.
    """
    known = ("name", *SECTIONS)
    for section, value in tree.items():
        if section not in known:
            unknown_key("", section, "section", known, "a config has")
        if section != "name" and not isinstance(value, list if section == "transform" else dict):
            form = "[[transform]] tables" if section == "transform" else f"a table [{section}]"
            raise FedsaddleError(f"{section}: must be {form}, got {quoted(value)}")
    name = tree.get("name", name)
    if wrong := wrong_name(name):
        raise FedsaddleError(wrong)
    out: Tree = {"name": name}
    for section in _needed(tree):
        given = tree.get(section, {"name": "full"})
        if section == "transform":
            out[section] = []
            for i, change in enumerate(given):
                out[section].append(filled(section, change, f"transform[{i}]"))
                if "first" in out[section][i]:
                    first = _first_stage(out, i, rehearse).tree
                    out[section][i]["first"] = {k: first[k] for k in _OF_FIRST if k in first}
        else:
            out[section] = filled(section, given, section, out.get("data"))
        if section == "data":
            _check_shares(out[section])
    if rehearse:
        _rehearse(out)
    return Config(out)


def _check_shares(data: Tree) -> None:
    """Refuse shares of samples to hold out that are none; 0 is as if the key were not there."""
    for key in ("test", "valid"):
        share = data.get(key)
        if isinstance(share, int | float) and share == 0:
            del data[key]
        elif isinstance(share, int | float) and not 0 < share < 1:
            remedy = f"{share:g} % is {share / 100:g}" if share in range(2, 100) else "a quarter is 0.25"
            raise FedsaddleError(f"data.{key}: must be a share in (0, 1), got {share:g}; {remedy}")


def _first_stage(tree: Tree, i: int, rehearse: bool = True) -> Config:
    """The run that trains the network of transform i: its own sections, to be built on the data as they are there."""
    sections, path = tree["transform"][i]["first"], f"transform[{i}].first"
    for section in sections:
        if section not in _OF_FIRST:
            unknown_key(f"{path}.", section, "section", _OF_FIRST, "a first stage has")
    data: Tree = {k: tree[k] for k in ("data", "partition") if k in tree}
    try:
        return resolve({**data, **sections}, rehearse=rehearse)
    except FedsaddleError as error:
        raise FedsaddleError(f"{path}: {error}") from error


def _needed(tree: Mapping[str, Any]) -> list[str]:
    """The sections that this config has, in order; refuses one that is missing or has no use."""
    data, problem = tree.get("data", {}), tree.get("problem", {})
    of_data, of_problem = (given.get("name") for given in (data, problem))  # of any type still
    kind = PROBLEMS.get(of_problem) if isinstance(of_problem, str) else None
    has_model = kind is None or issubclass(kind, ModelProblem)
    generated = isinstance(of_data, str) and of_data in GENERATED
    unused = {}
    if generated:
        unused["partition"] = "generated data has clients"
    elif "name" not in data and ("files" in data or "file" in data):
        unused["partition"] = "each file or group is a client"
    elif "sites" in data:
        unused |= {"partition": "each site is a client", "transform": "the data are at the sites"}
    if not has_model:
        unused["model"] = f"problem {problem['name']!r} has none"
    for section, reason in unused.items():
        if section in tree:
            raise FedsaddleError(f"{section}: has no use here, {reason}: remove the section")
    for section, example in SECTIONS.items():
        if example and section not in tree and section not in unused:
            raise FedsaddleError(f"{section}: section is missing; for example [{section}] with {example}")
    if kind is not None and has_model == generated:
        want = "a data set or files" if has_model else f"data.name = {problem['name']!r}"
        got = quoted(data.get("name", "files"))
        raise FedsaddleError(f"problem.name: {problem['name']!r} needs {want}, got {got}")
    return [s for s in SECTIONS if s not in unused and (s != "transform" or s in tree)]


def _rehearse(tree: Tree) -> None:
    """Let every part that needs no data check its own values: nothing is loaded, nothing is computed."""
    with _blamed("algorithm"):  # one's own may raise anything
        algorithm: Algorithm = _made("algorithm", tree["algorithm"])
    _made("participation", tree["participation"])
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        stand_in = {"model": nn.Linear(1, 1)} if "model" in tree else {}
    algorithm.check(_made("problem", tree["problem"], **stand_in))
    try:
        tiny = quadratic_federation(clients=2, dim_x=1, dim_y=1)
        train(QuadraticSaddle(1, 1), LocalSGDA(), tiny, **arguments("train", tree["train"]))
    except FedsaddleError:
        raise
    except (RuntimeError, AssertionError) as error:  # what torch says of a device that is not there
        device, reason = tree["train"]["device"], first_line(error)
        raise FedsaddleError(f"train.device: {device!r} cannot be used: {reason}") from error


# ----------------------------------------------------------------------------------------------- building


def _made(section: str, part: Tree, **more: Any) -> Any:
    """The thing that a section names, made with its keys."""
    return named(section, part)(**more, **arguments(section, part))


def _loaded(tree: Tree) -> Federation:
    """What [data] and [partition] describe."""
    part = tree["data"]
    with _blamed("data"):
        if part.get("name") in GENERATED:
            federation: Federation = _made("data", part)
        elif "sites" in part:
            raise FedsaddleError("data.sites: the data are at the sites; try: fedsaddle deploy run")
        elif "name" in part:
            federation = _partitioned(part, tree["partition"])
        else:
            options = arguments("data", part)
            split, scale = {k: options.pop(k, None) for k in HELD_OUT}, options.pop("scale")
            if "files" in part:
                federation = Federation.from_files(part["files"], **options)
            else:
                file, sep = Path(part["file"]), options.pop("sep")
                table = _table(file, sep, options.pop("decimal"), options.pop("encoding"))
                with in_file(file, sep):
                    federation = Federation.from_frame(table, **options)
            federation = _held_out(federation, **split).scaled(scale)
    return federation


def _transformed(
    tree: Tree,
    i: int,
    federation: Federation,
    networks: Networks,
    progress: bool | None = False,
    hear: Hear | None = None,
) -> Federation:
    """The federation after transform i."""
    change = tree["transform"][i]
    with _blamed(f"transform[{i}]"):
        if "first" not in change:
            made: Federation = _made("transform", change, federation=federation)
            return made
        network = _network(tree, i, federation, networks, progress, hear)
        options = arguments("transform", change) | {"first": network, "progress": progress}
        return convexify(federation=federation, **options)


def _network(
    tree: Tree,
    i: int,
    federation: Federation,
    networks: Networks,
    progress: bool | None,
    hear: Hear | None,
) -> nn.Module:
    """The network of transform i, trained on the data as they are there."""
    first, change = _first_stage(tree, i), tree["transform"][i]
    key = to_toml({**first.tree, "transform": tree["transform"][:i]}) + federation.fingerprint()

    def build() -> nn.Module:
        return first.module(tuple(federation.data["x"].shape[1:]), federation.classes)

    def trained() -> nn.Module:
        k = arguments("transform", change)["coordinates"]
        coordinates_of(FlatModel(build()).n, 1, k)  # too many are refused before the training, not after it
        run = first.start(first.build(federation), progress=progress)

        def told(record: dict[str, Any]) -> None:
            if hear is not None:
                hear(f"first stage, round {record['round']} of {run.rounds}")

        return run.finish(told).model

    with _blamed(f"transform[{i}]"):
        return networks.get(key, build, trained)


def _partitioned(data: Tree, partition: Tree) -> Federation:
    """A named data set, dealt to clients."""
    options = arguments("data", data)
    test, valid = options.pop("test", None), options.pop("valid", None)
    dataset = load_dataset(data["name"], **options)
    with _blamed("partition"):
        federation = dataset.federation(
            partition["name"],
            test="matching" if test == "matching" else "pooled",
            **arguments("partition", partition),
        )
    return _held_out(federation, None if isinstance(test, str) else test, valid, options["seed"])


def _held_out(federation: Federation, test: float | None, valid: float | None, seed: int) -> Federation:
    """Every client's own test and validation samples, in place of what the data set brings."""
    if test is not None:
        federation = dataclasses.replace(federation, test=None).holdout(test, seed, "test")
    if valid is not None:
        federation = dataclasses.replace(federation, valid=None).holdout(valid, seed, "valid")
    return federation


def _table(file: Path, sep: str, decimal: str, encoding: str) -> Any:
    if file.is_dir():
        raise FedsaddleError(
            f"data.file: {file} is a folder; name one table in it, or, if each of its files is a site, give data.files in "
            "place of data.file and data.group"
        )
    if not file.is_file():
        hint = similar_file(file) or "correct it"
        raise FedsaddleError(
            f"data.file: there is no {file.name} in {file.parent} (paths are relative to the config's folder, "
            f"with --set to the current one); {hint}"
        )
    if file_format(file) not in ("csv", "parquet"):
        raise FedsaddleError(f"data.file: must be a .csv or .parquet file, got {file.name}")
    return read_frame(file, sep, decimal, encoding)


def _model(tree: Tree, shape: tuple[int, ...], classes: Sequence[str]) -> nn.Module:
    part, options = tree["model"], arguments("model", tree["model"])
    if "module" in part:
        own = factory(part["module"])
        if "sample_shape" in inspect.signature(own).parameters:
            options["sample_shape"] = shape
        module: nn.Module = own(**options)
        return module
    outputs = options.pop("outputs", None)
    if outputs is None:
        outputs = max(1, len(classes)) if tree["problem"].get("loss") in OF_CLASSES else 1
    return models.build(part["name"], shape, outputs, **options)


@contextmanager
def _blamed(section: str) -> Iterator[None]:
    """Whatever a section's values make other code raise becomes one line that names the section."""
    try:
        yield
    except BadArgument as error:
        raise FedsaddleError(f"{section}.{error}") from None
    except FedsaddleError:
        raise
    except Exception as error:
        raise FedsaddleError(f"{section}: {type(error).__name__}: {first_line(error)}") from error
