"""The `torchrun` engine: a simulation shared by several processes or GPUs, on one machine or more.

    torchrun --nproc-per-node=2 -m fedsaddle run FILE.toml --set train.engine=torchrun

Every process (rank) runs the same program and holds the same server state. Client i belongs to rank i mod W: its data and
memory are there, and nowhere else. A phase is run by each rank on its own clients, as by `stacked`, and the weighted sums of
their replies become those of all clients in one all-reduce. The rest needs no communication: who takes part and which
minibatches are functions of the seed, and how much a client sends follows from its reply's shape.

A rank whose clients are not asked must know the replies' shapes too. It runs the work on its first client and drops what
comes out: nothing has to be sent for that, it works for any reply, and the rank would wait for the others anyway.

CPU tensors travel by gloo, CUDA tensors by NCCL with a GPU a rank. Before a sum, ranks tell each other by gloo that they are
well: an error on one is raised on all. A rank that dies breaks the connection, which the others notice at once.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedsaddle.clients import Gathered, Task, Work
from fedsaddle.cohort import Cohort
from fedsaddle.engines.ranks import rank
from fedsaddle.engines.simulation import Simulation
from fedsaddle.errors import FedsaddleError, first_line
from fedsaddle.federation import Federation
from fedsaddle.participation import Draw
from fedsaddle.problem import tree_map

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)  # the longest wait for a rank, for instance for the first while it evaluates


class Torchrun(Simulation):
    """Clients simulated in the processes that torchrun has started.

    Args:
        device: "cpu", or "cuda" for a GPU a rank.
        options: as for `Simulation`.
    """

    def __init__(self, task: Task, **options: Any) -> None:
        device = torch.device(options.get("device", "cpu"))
        if device.type == "cuda":
            if ":" in str(device):
                raise FedsaddleError(
                    f"train: engine 'torchrun' gives each process its own GPU: device must be 'cuda', got '{device}'"
                )
            here, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
            if here >= gpus:
                raise FedsaddleError(
                    f"train: engine 'torchrun' needs a GPU for each process of a machine, got {gpus} for {here + 1} or "
                    "more; start fewer (--nproc-per-node), or use device='cpu'"
                )
            torch.cuda.set_device(here)
        self.rank, self.world = rank(), int(os.environ.get("WORLD_SIZE", 1))
        # a rank beyond the last client has none to work for, and takes client 0 for the shapes
        federation = task.federation
        own = list(range(self.rank, federation.n_clients, self.world)) or [0]
        super().__init__(task._replace(federation=_only(federation, own)), **options)
        if len(self.seeds) > 1:
            raise FedsaddleError("replicas: engine 'torchrun' computes one run at a time; use 'stacked'")
        if self.aggregation is not None:
            raise FedsaddleError(
                "train: engine 'torchrun' adds replies up where they are, and a rule of aggregation needs all of them in "
                "one process; use engine 'stacked', or aggregation 'mean'"
            )
        if options.get("offload"):
            raise FedsaddleError(
                "train: engine 'torchrun' keeps its samples on the device; use offload=False"
            )
        self._stand_in = own[0]
        self.n_clients, self.sizes = federation.n_clients, federation.sizes  # an algorithm sees all
        self.names, self.federation = federation.names, federation
        self.writes = self.rank == 0
        self.spent = dict.fromkeys(("work", "evaluation", "waiting", "communication"), 0.0)  # by this rank
        self._known: Exception | None = None  # the last error that all ranks have heard of

    # ---- own clients, numbered from 0 --------------------------------------------------------------------

    def cohort(self, clients: np.ndarray, phase: int) -> Cohort:
        cohort = super().cohort(clients // self.world, phase)
        cohort.ids = torch.as_tensor(clients, device=self.device)  # minibatches depend on the global number
        return cohort

    def _write(self, clients: np.ndarray, memory: Any) -> None:
        super()._write(clients // self.world, memory)

    def _remembered(self) -> tuple[Tensor, Any] | None:
        """Of all ranks' clients, on the first rank."""
        remembered = super()._remembered
        own = self._together(
            lambda: remembered(), "work"
        )  # hears of an error elsewhere before all wait for all
        if own is None:
            return None
        ids, rows = own[0] * self.world + self.rank, tree_map(Tensor.cpu, own[1])
        parts: list[Any] = [None] * self.world
        with self._timed("communication"), _contact():
            dist.gather_object((ids, rows), parts if self.writes else None)
        if not self.writes:
            return None
        ids = torch.cat([part[0] for part in parts])
        keep = ids < self.n_clients  # a rank beyond the last client has none
        order = ids.argsort()
        order = order[keep[order]]
        return ids[order], tree_map(lambda *r: torch.cat(r)[order], *(part[1] for part in parts))

    def _recall(self, ids: Tensor, rows: Any) -> None:
        own = (ids % self.world == self.rank).nonzero().squeeze(-1)
        super()._recall(ids[own], tree_map(lambda r: r[own.to(r.device)], rows))

    def _run(self, work: Work, message: Any, who: Draw, phase: int) -> Iterator[tuple[np.ndarray, Any]]:
        """Own clients' replies, and zeros in place of the others' (one row, which is all that they take)."""
        here = who.ids % self.world == self.rank
        reply: Any = None
        for at, reply in super()._run(work, message, who._replace(answered=who.answered & here), phase):
            yield at, reply
        elsewhere = np.flatnonzero(who.answered & ~here)
        if len(elsewhere) == 0:
            return
        if not (who.answered & here).any():
            one, writes = np.ones(1, dtype=np.int64), len(self._undo)
            stand_in = Draw(one * self._stand_in, one, one.astype(bool))
            ((_, reply),) = super()._run(work, message, stand_in, phase)
            while len(self._undo) > writes:
                self._undo.pop()()
        yield elsewhere, tree_map(lambda r: r.new_zeros(1, r.shape[-1]).expand(len(elsewhere), -1), reply)

    # ---- all clients -------------------------------------------------------------------------------------

    def mean(
        self, work: Work, message: Any, *, who: Draw | None = None, weights: str = "clients"
    ) -> tuple[Any, float | Tensor]:
        mean = super().mean

        def own_part() -> tuple[Any, Tensor | None, float | Tensor]:
            part, share = mean(work, message, who=who, weights=weights)
            return part, _flat(part), share

        part, flat, share = self._together(own_part, "work")
        return self._total(part, flat), share

    def gather(self, work: Work, message: Any, *, who: Draw | None = None) -> Gathered:
        gather = super().gather

        def own_part() -> tuple[Tensor, Any, Tensor | None]:
            ids, replies = gather(work, message, who=who)
            order = ids.argsort()
            rows = tree_map(lambda r: r[order.to(r.device)], replies)
            return ids[order], rows, _flat(rows)

        ids, rows, flat = self._together(own_part, "work")
        return Gathered(ids, self._total(rows, flat))  # every row is one rank's, and zero elsewhere

    def _total(self, tree: Any, flat: Tensor | None) -> Any:
        """The sum over ranks of what they hold in `flat`, in the form of the tree."""
        if flat is None:
            return tree
        with self._timed("communication"), _contact():
            dist.all_reduce(flat)
            if flat.is_cuda:
                torch.cuda.synchronize()
        start = 0

        def take(like: Tensor) -> Tensor:
            nonlocal start
            start += like.numel()
            return flat[start - like.numel() : start].view(like.shape).to(like.dtype)

        return tree_map(take, tree)

    # ---- ranks -------------------------------------------------------------------------------------------

    def alone(self, function: Callable[[], T]) -> T:
        value = [self._together(function if self.writes else lambda: None, "evaluation")]
        with self._timed("communication"), _contact():
            dist.broadcast_object_list(value, src=0)
        return value[0]  # type: ignore[return-value]

    def failed(self, error: Exception) -> None:
        if error is not self._known:
            with suppress(Exception):  # this rank's own error is on its way
                self._tell(error)

    def _together(self, function: Callable[[], T], kind: str) -> T:
        """Call a function on every rank; an error on one is raised on all."""
        error: Exception | None = None
        with self._timed(kind):
            try:
                result = function()
                if self.device.type == "cuda":
                    torch.cuda.synchronize()  # so that the device's errors, and its time, are this phase's
            except Exception as own:
                error = own
        with self._timed("waiting"):
            self._tell(error)
        return result

    def _tell(self, error: Exception | None) -> None:
        """Hear whether all ranks are well; raises this rank's error, else another's."""
        _connect()
        with _contact():
            failures = torch.tensor(int(error is not None))
            dist.all_reduce(failures)
            if not failures:
                return
            said: list[str | None] = [None] * self.world
            dist.all_gather_object(said, None if error is None else _line(error))
        if error is None:
            at = next(r for r, text in enumerate(said) if text is not None)
            error = FedsaddleError(f"process {at} of {self.world}: {said[at]}")
        self._known = error
        raise error

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spent[kind] += time.perf_counter() - started


def _connect() -> None:
    """Meet the other processes, once; they part when the interpreter exits."""
    if dist.is_initialized():
        return
    if "RANK" not in os.environ:
        raise FedsaddleError(
            "train: engine 'torchrun' runs in processes that torchrun starts: "
            "torchrun --nproc-per-node=2 -m fedsaddle run FILE.toml --set train.engine=torchrun"
        )
    with _contact():
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=TIMEOUT)
    atexit.register(dist.destroy_process_group)


@contextmanager
def _contact() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what gloo and NCCL raise
        raise FedsaddleError(
            f"process {rank()}: lost contact with the other processes, one has died or was too slow ({_line(error)})"
        ) from error


def _line(error: Exception) -> str:
    if isinstance(error, FedsaddleError):  # whole: its end says what to do
        return str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line(error)}"


def _only(federation: Federation, clients: list[int]) -> Federation:
    """A federation of some of the clients."""
    own = [federation.client(i) for i in clients]
    data = {k: torch.cat([part[k] for part in own]) for k in federation.data}
    offsets = torch.nn.functional.pad(federation.sizes[clients].cumsum(0), (1, 0))
    names = tuple(federation.names[i] for i in clients)
    filling = federation.filling and federation.filling.fixed()
    return replace(
        federation, data=data, offsets=offsets, names=names, test=None, valid=None, filling=filling, rows=None
    )


def _flat(tree: Any) -> Tensor | None:
    """All tensors of a tree in one vector; None if it has none."""
    parts: list[Tensor] = []
    tree_map(lambda t: parts.append(t.reshape(-1)), tree)
    return torch.cat(parts) if parts else None
