"""A run's checkpoint: the server's State, what was agreed and what was counted, in one file that is whole or not there.

The file is safetensors with the shape of the State as JSON (`wire`), never a pickle. What clients remember is not in it: in
a deployment it is at the sites.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.algorithms.base import Algorithm
from fedsaddle.errors import FedsaddleError
from fedsaddle.problem import Problem
from fedsaddle.wire import Garbled, classes_of, pack, unpack

CHECKPOINT = "checkpoint.safetensors"


class Checkpoint(NamedTuple):
    """Where a run stands after a round."""

    round: int  # how many are done
    state: Any  # of the algorithm
    constants: tuple[tuple[str, Any], ...]  # of the problem, as the set-up found them
    accounts: dict[str, Any]  # what the clients have counted


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in place of the one before."""
    write_whole(path, pack((*checkpoint[:3], json.dumps(checkpoint.accounts))))


def load(path: Path, algorithm: Algorithm, problem: Problem) -> Checkpoint:
    """Read a checkpoint of this algorithm on this problem."""
    try:
        round, state, found, accounts = unpack(path.read_bytes(), classes_of(algorithm, problem))
        return Checkpoint(round, state, found, json.loads(accounts))
    except FileNotFoundError:
        raise FedsaddleError(
            f"{path.parent}: has no checkpoint; a run can be resumed after its set-up"
        ) from None
    except (Garbled, ValueError, TypeError) as error:
        raise FedsaddleError(f"{path}: is not a checkpoint of this run ({error})") from error


def constants(problem: Problem, posed: Problem) -> tuple[tuple[str, Any], ...]:
    """What a set-up has found: the fields in which a prepared problem differs from the one that was posed."""
    pairs = ((f.name, getattr(problem, f.name), getattr(posed, f.name)) for f in fields(problem))
    return tuple((name, new) for name, new, old in pairs if new is not old)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, and a crash at any moment, finds the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
