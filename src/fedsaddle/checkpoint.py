"""A checkpoint: all that a run needs to go on as if nothing had happened.

The server's State, what the set-up agreed on, what clients remember and hold, what was counted, and what the run was: a file
of safetensors with its shape as JSON (`wire`), never a pickle. Reading one makes nothing but tensors, plain values and the
NamedTuples of the run's own algorithm. Where clients keep their memory themselves, as sites do, it is not in it.

Minibatches, participants and every other random number are functions of seed and round, so there is no generator to save.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, NamedTuple

from fedsaddle.algorithms.base import Algorithm
from fedsaddle.errors import FedsaddleError
from fedsaddle.flat import FlatModel
from fedsaddle.parse import from_json
from fedsaddle.problem import Problem
from fedsaddle.wire import Garbled, classes_of, pack, unpack


def _form(problem: Problem) -> int:
    """Of the tree; 2 where parameters do not lie in the module's own order, as those of a ResNet-18 once did."""
    parts = (getattr(problem, f.name) for f in fields(problem))
    return 2 if any(isinstance(part, FlatModel) and part.places is not None for part in parts) else 1


class Checkpoint(NamedTuple):
    """Where a run stands after some rounds."""

    round: int  # how many are done
    state: Any  # of the algorithm
    constants: tuple[tuple[str, Any], ...]  # of the problem, as the set-up found them
    clients: Any  # Clients.snapshot()
    accounts: dict[str, Any]  # what the clients have counted
    config: dict[str, Any]  # the run, as result.json has it
    versions: dict[str, str]

    def packed(self, problem: Problem) -> bytes:
        return pack((_form(problem), *self[:4], *(json.dumps(part) for part in self[4:])))

    @staticmethod
    def unpacked(data: bytes, algorithm: Algorithm, problem: Problem) -> Checkpoint:
        """A checkpoint of this algorithm on this problem."""
        try:
            form, *parts = unpack(data, classes_of(algorithm, problem))
            if form != _form(problem):
                raise ValueError(f"of form {form}, this version reads {_form(problem)}; begin the run anew")
            saved = Checkpoint(*parts[:4], *map(from_json, parts[4:]))
            if type(saved.round) is not int or saved.round < 0:
                raise ValueError(f"of round {saved.round}")
            return saved
        except (Garbled, ValueError, TypeError) as error:
            raise FedsaddleError(f"checkpoint: is none of this run ({error})") from error


def constants(problem: Problem, posed: Problem) -> tuple[tuple[str, Any], ...]:
    """What a set-up has found: the fields in which a prepared problem differs from the one that was posed."""
    pairs = ((f.name, getattr(problem, f.name), getattr(posed, f.name)) for f in fields(problem))
    return tuple((name, new) for name, new, old in pairs if new is not old)
