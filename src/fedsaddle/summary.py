"""What a run writes of itself: its config as it was resolved, and what result.json holds."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

from fedsaddle.algorithms.base import Algorithm
from fedsaddle.cohort import Batching
from fedsaddle.engines.machine import Machine
from fedsaddle.federation import Federation
from fedsaddle.flat import FlatModel
from fedsaddle.measures import Of, names
from fedsaddle.messages import BYTES_PER_NUMBER, PhaseTraffic
from fedsaddle.participation import Participation
from fedsaddle.problem import Problem

if TYPE_CHECKING:
    from fedsaddle.train import Record, Run

MAX_LISTED = 1000  # clients named or weighed
LISTS = names(Of.parts)  # what a record says of single clients and variables
_LATE = 10  # evaluations at the end, which say whether a run has settled


def run_config(
    problem: Problem,
    algorithm: Algorithm,
    participation: Participation,
    federation: Federation,
    rounds: int,
    batching: Batching,
    machine: Machine,
    seed: int,
    eval_every: int,
) -> Record:
    """What a run is, as JSON: by it a resumed run is known, and a result found again."""
    return {
        "problem": describe(problem),
        "algorithm": describe(algorithm),
        "participation": describe(participation),
        "train": {
            "rounds": rounds,
            "batch_size": batching.size,
            "sampling": batching.sampling,
            "engine": machine.name,
            "seed": seed,
            "eval_every": eval_every,
            "device": str(machine.device),
            "dtype": str(machine.dtype).removeprefix("torch."),
            "precision": machine.precision,
            "compile": machine.compile,
            "chunk": machine.chunk,
            "offload": machine.offload,
            "aggregation": machine.aggregation,
        },
        "federation": {
            "clients": federation.n_clients,
            "samples": federation.n_samples,
            "fingerprint": federation.fingerprint(),
        },
    }


def result(run: Run, records: Sequence[Record], by_client: Mapping[str, Sequence[float]]) -> Record:
    """What result.json holds: config, final metrics, communication, versions.

    Args:
        records: of the rounds that are done.
        by_client: the last evaluation client by client.
    """
    federation, clients = run.federation, run.clients
    traffic = clients.traffic
    return {
        # with the constants agreed on, and step sizes as a guard has left them
        "config": run.config | {"problem": describe(run.problem), "algorithm": describe(run.algorithm)},
        "metrics": {k: v for k, v in records[-1].items() if k not in LISTS},
        **run.began,
        "course": _course(records, run.evaluated),
        "auc_interval": run.auc_interval("test"),
        "clients_evaluated_on": run.evaluated_on,
        "communication": {
            "setup": _in_bytes(traffic.setup),
            "phases": {name: _in_bytes(t) for name, t in traffic.by_phase.items()},
        },
        "per_client": {
            k: [None if v != v else v for v in values[:MAX_LISTED]] for k, values in by_client.items()
        },
        "client_names": list(federation.names[:MAX_LISTED]),
        "class_counts": _class_counts(federation),
        # one row where test data are pooled
        "test_class_counts": clients.test_class_counts or _class_counts(federation.test),
        "classes": list(federation.classes),
        "dataset": federation.dataset,
        "sample": _sample(federation),
        "versions": versions(),
    } | ({"seconds": clients.spent} if clients.spent else {})  # fmt: skip


def versions() -> dict[str, str]:
    """What a result depends on beside the config."""
    import numpy

    from fedsaddle import __version__

    packages = {"fedsaddle": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    return packages | {"python": platform.python_version()}


def describe(thing: Any) -> Record:
    """A frozen dataclass as its name and hyper-parameters, for result.json and reports."""
    assert is_dataclass(thing)
    out: Record = {"name": type(thing).__name__}
    for f in fields(thing):
        value = getattr(thing, f.name)
        if isinstance(value, FlatModel):
            value = f"{type(value.module).__name__}, {value.n} parameters"
        elif not isinstance(value, (str, int, float, bool, list, tuple, type(None))):
            value = getattr(value, "__name__", type(value).__name__)
        out[f.name] = value
    return out


def _course(records: Sequence[Record], evaluated: Callable[[int], bool]) -> Record | None:
    """The last evaluations of what is looked at first; None where there were few."""
    name = next((k for k in ("auc", "accuracy") if k in records[-1]), None)
    seen = [r for r in records if name in r and evaluated(r["round"])]
    if name is None or len(seen) < 2 * _LATE or any(r[name] is None for r in seen[-_LATE:]):
        return None
    late, before = seen[-_LATE:], max(r[name] or 0.0 for r in seen[:-_LATE])
    values = [r[name] for r in late]
    return {"metric": name, "rounds": [r["round"] for r in late], "values": values, "before": before}


def _in_bytes(t: PhaseTraffic) -> Record:
    return {"phases": t.phases, "bytes_down": t.down * BYTES_PER_NUMBER, "bytes_up": t.up * BYTES_PER_NUMBER}


def _class_counts(federation: Federation | None) -> list[list[int]] | None:
    if (
        federation is None
        or "y" not in federation.data
        or federation.data["y"].is_floating_point()
        or federation.n_clients > MAX_LISTED
    ):
        return None
    counts: list[list[int]] = federation.class_counts().tolist()
    return counts


def _sample(federation: Federation) -> Record | None:
    """Shape and names of the features, what fills gaps, and how they were scaled: what a model needs to be used."""
    if "x" not in federation.data:
        return None
    scaling, filling = federation.scaling, federation.filling
    return {
        "shape": list(federation.data["x"].shape[1:]),
        "features": list(federation.feature_names),
        "shift": None if scaling is None else scaling.shift.flatten().tolist(),
        "width": None if scaling is None else scaling.width.flatten().tolist(),
        "log": scaling is not None and scaling.log,
        "fill": None if filling is None else filling.values.flatten().tolist(),
        "tangent": federation.tangent is not None,
    }
