"""What travels between the server and its clients, and what that costs.

Messages, replies and memory are tensors [1, k] on the server's side and [S, k] on the clients', alone or in (Named)tuples;
None and plain Python values may stand beside them in a message and are not counted. What differs from client to client is
marked: an `Each` in a message or a reply has one row a client, a `Once` in a message goes to a client that does not hold it
yet; a `Control` is not counted. Replicas (runs that differ in seed or step sizes, computed together) put one more axis in
front of all of them: [R, 1, k] and [R, S, k].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle.errors import ClientWorkError, FedsaddleError, first_line
from fedsaddle.problem import tree_map

BYTES_PER_NUMBER = 4  # messages are counted as float32, whatever the simulation computes in


class Once(NamedTuple):
    """A part of a message that a client is sent only when it does not hold it yet, such as a stage's prox centre."""

    value: Tensor
    version: int  # what the client holds is outdated when this changes
    name: str | None = None  # phases that send it by one name share what the client holds


class Control(NamedTuple):
    """A number in a message that is control information, such as the round's step size, and is not counted.

    A plain Python value may change a few times in a run, since a recorded or compiled work is made for its value (with
    `Cohort.number` only a recorded one); what changes every round goes in a tensor.
    """

    value: Any  # on the clients' side the tensor itself: [1, 1], or one a replica [R, 1, 1]

    @staticmethod
    def of(value: float | Tensor, like: Tensor) -> Control:
        return Control(value.to(like) if isinstance(value, Tensor) else like.new_full((1, 1), value))


class Each(NamedTuple):
    """A part of a message or of a reply with one row a client, such as samples from a pool that the server holds.

    In a message the rows [M, k] are the participants', in their order. In a reply it is what `mean` does not average: the
    server gets the rows [S, k] of those who answered, in order.
    """

    value: Any
    bits: float = 32  # of a number on the wire, on average


class PhaseTraffic(NamedTuple):
    """What one kind of phase has cost so far, over all clients."""

    phases: int = 0
    down: Any = 0  # numbers sent to clients (one a replica, where replicas differ)
    up: int = 0  # numbers sent by clients

    def plus(self, down: Any, up: int) -> PhaseTraffic:
        return PhaseTraffic(self.phases + 1, self.down + down, self.up + up)


@dataclass
class Traffic:
    """Communication counted by phase and direction."""

    by_phase: dict[str, PhaseTraffic] = field(default_factory=dict)
    setup: PhaseTraffic = PhaseTraffic()  # before the first round, reported apart

    def add(self, phase: str, down: Any, up: int, setup: bool) -> None:
        if setup:
            self.setup = self.setup.plus(down, up)
        else:
            self.by_phase[phase] = self.by_phase.get(phase, PhaseTraffic()).plus(down, up)

    def of(self, replica: int) -> Traffic:
        """The traffic of one replica."""
        down = {
            k: t.down[replica] if isinstance(t.down, np.ndarray) else t.down for k, t in self.by_phase.items()
        }
        return Traffic({k: t._replace(down=int(down[k])) for k, t in self.by_phase.items()}, self.setup)

    @property
    def total(self) -> PhaseTraffic:
        parts = self.by_phase.values()
        return PhaseTraffic(
            sum(t.phases for t in parts), sum(t.down for t in parts), sum(t.up for t in parts)
        )


# ---- what is read of them --------------------------------------------------------------------------------


def unwrapped(message: Any) -> Any:
    """The message as a client reads it, but for what differs: every Once and Control replaced by its value."""
    return tree_map(lambda part: part.value, message, of=(Once, Control))


def addressed(message: Any, at: np.ndarray) -> Any:
    """The message to the participants at these places: of every Each their rows."""

    def rows(each: Each) -> Tensor:
        value: Tensor = each.value[..., torch.as_tensor(at, device=each.value.device), :]
        return value

    return tree_map(rows, message, of=(Each,))


def opened(replies: Any) -> Any:
    """Replies with every Each replaced by its rows."""
    return tree_map(lambda each: each.value, replies, of=(Each,))


def onces(message: Any) -> Iterator[Once]:
    """What a message has of them, in order."""
    if isinstance(message, Once):
        yield message
    elif isinstance(message, tuple):
        for part in message:
            yield from onces(part)


def key(once: Once, work: str, place: int) -> tuple[str, int]:
    """By what a client holds a Once: its name, else the work that it is sent to and its place among the message's."""
    return (once.name, 0) if once.name is not None else (work, place)


def key_on_wire(once: Once, work: str, place: int) -> str:
    """The same as a site is told it."""
    return once.name if once.name is not None else f"{work} {place}"


# ---- what they cost --------------------------------------------------------------------------------------


def numbers(tree: Any, receivers: int = 1) -> int:
    """How many 32-bit numbers travel with a message to so many clients, or with replies, without what is marked Once.

    Of an Each every row is one client's, rounded up. Python values are control information and free.
    """
    if isinstance(tree, Each):
        k: int = tree.value.shape[-1]
        rows: int = tree.value.numel() // k
        return rows * math.ceil(k * tree.bits / 32)
    if isinstance(tree, Once | Control):
        return 0
    if isinstance(tree, Tensor):
        return tree.numel() * receivers
    return sum(numbers(part, receivers) for part in tree) if isinstance(tree, tuple) else 0


# ---- what they must be -----------------------------------------------------------------------------------


def check_rows(work: str, message: Any, asked: int) -> None:
    """An Each in a message to so many participants has a row for each of them."""

    def check(each: Each) -> None:
        rows = each.value.shape[-2]
        if rows != asked:
            raise FedsaddleError(
                f"{work}: an Each in a message must have a row for each of the {asked} participants, got {rows}"
            )

    tree_map(check, message, of=(Each,))


def answered(work: str, result: Any) -> tuple[Any, Any]:
    """What client work returns: its reply, and what the clients remember."""
    if type(result) is not tuple or len(result) != 2:
        got = f"{len(result)} values" if type(result) is tuple else type(result).__name__
        raise ClientWorkError(f"{work}: local work returns (reply, memory), memory may be None; got {got}")
    return result


def check_memory(work: str, memory: Any, blank: Any, clients: tuple[int, ...]) -> None:
    """What clients remember has the form of what they remembered at first, with a row for each of them."""
    if isinstance(blank, Tensor):
        if not isinstance(memory, Tensor) or memory.shape != (*clients, blank.shape[-1]):
            shape = str(list(memory.shape)) if isinstance(memory, Tensor) else type(memory).__name__
            wide = [*clients, blank.shape[-1]]
            raise ClientWorkError(f"{work}: the new memory must be {wide}, as memory() says, got {shape}")
    elif isinstance(blank, tuple) and type(memory) is type(blank) and len(memory) == len(blank):
        for part, first in zip(memory, blank, strict=True):
            check_memory(work, part, first, clients)
    elif blank is None and memory is not None:
        raise ClientWorkError(f"{work}: returns memory, but {_UNREMEMBERED}")
    elif type(memory) is not type(blank):
        wanted, got = type(blank).__name__, type(memory).__name__
        raise ClientWorkError(f"{work}: the new memory must be a {wanted}, as memory() says, got {got}")


_UNREMEMBERED = (
    "the algorithm has no method memory(self, z, problem), which says what clients remember at first"
)


def reason(error: Exception, remembers: bool) -> str:
    """Why client work has failed, in a line."""
    said = f"{type(error).__name__}: {first_line(error)}"
    if not remembers and "NoneType" in said:
        said += f"; cohort.memory is None: {_UNREMEMBERED}"
    return said


def check_reply(work: str, reply: Any, clients: tuple[int, ...]) -> None:
    """A reply is tensors [S, k] of floating point, None, or tuples of these: anything else would be lost in a mean."""
    if isinstance(reply, Each):
        check_reply(work, reply.value, clients)
    elif isinstance(reply, tuple):
        for part in reply:
            check_reply(work, part, clients)
    elif not (
        reply is None
        or (isinstance(reply, Tensor) and reply.is_floating_point() and reply.shape[:-1] == clients)
    ):
        got = f"{reply.dtype} {list(reply.shape)}" if isinstance(reply, Tensor) else type(reply).__name__
        wanted = ", ".join(str(n) for n in clients)
        raise ClientWorkError(
            f"{work}: a reply must consist of floating-point tensors [{wanted}, k] (or None), got {got}"
        )
