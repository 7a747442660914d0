"""What a section of a config may hold: the arguments of the thing that it names, from its signature.

A section names its thing by `name`, in one of the tables `NAMED`. Instead, [data] may have `files` or `file`, and [model]
and [algorithm] may have `module`, the user's own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from fedsaddle.algorithms import ALGORITHMS, Algorithm
from fedsaddle.convexify import convexify
from fedsaddle.data import DATASETS, DatasetInfo
from fedsaddle.data import load as load_dataset
from fedsaddle.errors import FedsaddleError, did_you_mean, first_line, nearest_or_all
from fedsaddle.federation import Federation
from fedsaddle.keys import Key, Keys, Tree, checked, keys_of
from fedsaddle.models import FROM_SHAPE, MODELS
from fedsaddle.participation import PARTICIPATION
from fedsaddle.partitions import PARTITIONS
from fedsaddle.problems import (
    PROBLEMS,
    nonconvex_pl_federation,
    quadratic_federation,
    robust_regression_federation,
)
from fedsaddle.toml import quoted, to_key
from fedsaddle.train import train
from fedsaddle.transforms import TRANSFORMS

SECTIONS = {  # in their order, each with an example unless it may be left out
    "data": 'name = "breast_cancer"',
    "partition": 'name = "dirichlet" and clients = 10',
    "transform": "",
    "model": 'name = "linear"',
    "problem": 'name = "auc"',
    "algorithm": 'name = "codasca"',
    "participation": "",
    "train": "rounds = 100",
}
GENERATED: dict[str, Callable[..., Federation]] = {
    "quadratic": quadratic_federation,
    "nonconvex_pl": nonconvex_pl_federation,
    "robust_regression": robust_regression_federation,
}
NAMED: dict[str, Mapping[str, Any]] = {  # section -> name -> class, function or DatasetInfo
    "data": {**DATASETS, **GENERATED},
    "partition": PARTITIONS,
    "transform": {**TRANSFORMS, "convexify": convexify},
    "model": MODELS,
    "problem": PROBLEMS,
    "algorithm": ALGORITHMS,
    "participation": PARTICIPATION,
}
_WAYS = {
    "data": ("name", "files", "file", "sites"),
    "model": ("name", "module"),
    "algorithm": ("name", "module"),
}  # to say what a section is; else by name
_FILLED_IN = {  # arguments that are no keys: they come from other sections or from the data
    "partition": ("labels", "groups"),
    "transform": ("federation", "progress"),
    "model": (*FROM_SHAPE, "outputs"),
    "problem": ("model", "owners"),
}


HELD_OUT: Keys = {"test": Key(float | None, None), "valid": Key(float | None, None), "seed": Key(int, 0)}


def keys(section: str, name: str = "", data: Mapping[str, Any] | None = None) -> Keys:
    """The keys that a section takes beside `name`.

    Args:
        section: for example "algorithm".
        name: for example "codasca"; [train] has none.
        data: the resolved [data] section, from which [problem] has some defaults.
    """
    if section == "train":
        return keys_of(
            train, "problem", "algorithm", "federation", "participation", "out", "progress", "resume", "allow"
        )
    thing = NAMED[section][name]
    if isinstance(thing, DatasetInfo):
        reader = thing.generate or thing.layouts[-1].read
        options = keys_of(reader, "seed", "paths", "n_features", "label_names")  # what `load` fills in
        test = Key(float | Literal["pooled", "matching"] | None, None)
        return keys_of(load_dataset, "name") | options | HELD_OUT | {"test": test}
    own = keys_of(thing, *_FILLED_IN.get(section, ()))
    if section == "partition":
        own["by"] = Key(str, "y")  # of Dataset.federation
    if thing is convexify:
        own["first"] = Key(dict[str, Any])  # sections of the run that trains the network
    if section == "model":
        own["outputs"] = Key(int | None, None)  # what the problem needs
    if section == "problem" and data and data.get("name") in GENERATED:  # it has the dimensions of its data
        own = {k: key._replace(default=data.get(k, key.default)) for k, key in own.items()}
    return own


def filled(section: str, given: Any, path: str, data: Mapping[str, Any] | None = None) -> Tree:
    """A section with its values checked and its defaults filled in, in the order of the signature.

    Args:
        section: for example "transform".
        given: what the file has.
        path: of the section, for messages: "transform[0]".
        data: the resolved [data] section.
    """
    if not isinstance(given, dict):
        raise FedsaddleError(f"{path}: must be a table, got {quoted(given)}")
    owner, own = _owner_and_keys(section, given, path, data)
    return checked(given, own, f"{path}.", owner, ("name", "module"))


def arguments(section: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """A filled section as keyword arguments, without what names its thing."""
    _, own = _owner_and_keys(section, part, section)
    ways = _WAYS.get(section, ("name",))
    return {k: own[k].python(v) for k, v in part.items() if k not in ways}


def _owner_and_keys(
    section: str, given: Mapping[str, Any], path: str, data: Mapping[str, Any] | None = None
) -> tuple[str, Keys]:
    """What a section is about, for messages, and all its keys."""
    if section == "train":
        return "train", keys("train")
    ways = _WAYS.get(section, ("name",))
    found = [way for way in ways if way in given]
    if len(found) != 1:
        for key in () if found else given:
            if hint := did_you_mean(key, ways):
                raise FedsaddleError(f"{path}.{to_key(key)}: unknown key, {hint}")
        rule = f"one of {', '.join(ways)}" if len(ways) > 1 else "a name"
        names = "" if found else f"; names are {', '.join(NAMED[section])}"
        raise FedsaddleError(f"{path}: needs {rule}; got {' and '.join(found) or 'none'}{names}")
    (way,) = found
    if way == "name":
        name, known = given["name"], NAMED[section]
        if not isinstance(name, str) or name not in known:
            raise FedsaddleError(
                f"{path}.name: {quoted(name)} is unknown; {nearest_or_all(str(name), known)}"
            )
        return name, {"name": Key(str)} | keys(section, name, data)
    if way == "module":
        own = {"module": Key(str)} | _keys_of_own(section, given["module"])
    elif way == "sites":
        own = {"sites": Key(str), "quorum": Key(float, 0.5), "timeout": Key(float, 600.0)}
    else:
        own = {"scale": keys_of(Federation.scaled)["how"]} | HELD_OUT
        if way == "files":
            own = {"files": Key(str | list[str])} | keys_of(Federation.from_files, "paths", "dtype") | own
        else:
            table, of_files = keys_of(Federation.from_frame, "frame", "dtype"), keys_of(Federation.from_files)
            own = {"file": Key(str)} | table | {k: of_files[k] for k in ("sep", "decimal", "encoding")} | own
    return f"{path} with {way}", own


def named(section: str, part: Mapping[str, Any]) -> Any:
    """The class or function that a section names."""
    return factory(part["module"], section) if "module" in part else NAMED[section][part["name"]]


def title(part: Mapping[str, Any]) -> str:
    """What a section's thing is called in it."""
    text: str = part.get("name") or part["module"]
    return text


def _keys_of_own(section: str, spec: Any) -> Keys:
    try:
        return keys_of(factory(spec, section), "sample_shape")
    except (NameError, TypeError) as error:  # annotations that nobody can resolve
        raise FedsaddleError(
            f"{section}.module: arguments of {spec} cannot be read ({type(error).__name__}: {first_line(error)})"
        ) from error


def factory(spec: Any, section: str = "model") -> Callable[..., Any]:
    """The user's own function or class behind "package.module:name".

    Args:
        spec: as the file has it.
        section: "model", or "algorithm", where it is a subclass of Algorithm.
    """
    where, wanted = f"{section}.module", "factory" if section == "model" else "Algorithm"
    if not isinstance(spec, str):
        raise FedsaddleError(f'{where}: must be text such as "module:{wanted}", got {quoted(spec)}')
    module, _, name = spec.partition(":")
    if not (module and name):
        raise FedsaddleError(f'{where}: must be "module:{wanted}", got {quoted(spec)}')
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # as `python -m` does, but behind everything that is installed
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's module may raise anything
        raise FedsaddleError(
            f"{where}: cannot import {spec} ({type(error).__name__}: {first_line(error)}); "
            "it must be importable from the current folder"
        ) from error
    if section == "model" and not callable(found):
        raise FedsaddleError(f"{where}: {spec} must be a function or class that returns a module")
    if section == "algorithm" and not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise FedsaddleError(
            f"{where}: {spec} must be a class of algorithms, derived from fedsaddle.Algorithm"
        )
    return found  # type: ignore[no-any-return]
