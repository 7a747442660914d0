"""The simulating engines: all clients' data on one machine, `stacked` in batched kernels, `serial` one by one.

Both are this one class. The data of all clients lie one after another, with offsets. A phase takes the asked clients in
chunks: `stacked` takes the whole cohort as one chunk, `serial` one client at a time, whose work is then plain unbatched
PyTorch. Minibatches come from a hash of (seed, round, phase, step, client, slot), so chunks do not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from fedsaddle import sampling
from fedsaddle.clients import Clients, ClientWorkError, Work
from fedsaddle.cohort import Batching, Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.participation import Participation
from fedsaddle.problem import Problem, tree_map


class Simulation(Clients):
    """Clients simulated in this process.

    Args:
        chunk: how many clients are computed at once; None for the whole cohort.
    """

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        participation: Participation,
        *,
        batching: Batching = Batching(),
        seed: int = 0,
        chunk: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(federation.sizes, participation, seed)
        self.device, self.dtype = torch.device(device), dtype
        longest = int(federation.sizes.max())
        if batching.size is not None and batching.sampling == "without_replacement":
            batching = batching._replace(size=min(batching.size, longest))  # more slots would stay empty
        self.batching = batching
        self.problem = problem.to(self.device, dtype)
        self.data = federation.on_device(self.device, dtype)
        self._first = federation.offsets[:-1].to(self.device)
        self._sizes = federation.sizes.to(self.device)
        self._chunk = chunk or self.n_clients
        self._blank: Any = None  # what a client remembers before its first work, every tensor [1, k]
        self.memory: Any = None  # what every client remembers, every tensor [N, k]
        self._undo: list[Callable[[], None]] = []  # what takes back this round's writes to memory

    def remember(self, blank: Any) -> None:
        self._blank, self.has_memory = blank, blank is not None
        self.forget()
        self._undo.clear()

    def forget(self) -> None:
        before = self.memory
        self._undo.append(lambda: setattr(self, "memory", before))
        # on a CPU, a client that has not worked yet costs nothing: zero pages are not touched until they are written
        self.memory = tree_map(
            lambda b: b.repeat(self.n_clients, 1) if b.any() else b.new_zeros(self.n_clients, b.shape[-1]),
            self._blank,
        )

    def begin(self, round: int) -> None:
        super().begin(round)
        self._undo.clear()

    def rollback(self) -> None:
        while self._undo:
            self._undo.pop()()

    def cohort(self, ids: torch.Tensor, phase: int) -> Cohort:
        """These clients, ready for a phase of the current round."""
        return Cohort(
            self.problem,
            ids,
            self.data,
            first=self._first[ids],
            sizes=self._sizes[ids],
            memory=tree_map(lambda store: store.index_select(0, ids), self.memory),
            key=sampling.key(sampling.MINIBATCH, self.seed, self.round, phase),
            batching=self.batching,
            dtype=self.dtype,
        )

    def _run(self, work: Work, message: Any, ids: np.ndarray, phase: int) -> Iterator[tuple[np.ndarray, Any]]:
        for start in range(0, len(ids), self._chunk):
            part = ids[start : start + self._chunk]
            cohort = self.cohort(torch.as_tensor(part, device=self.device), phase)
            try:
                with torch.no_grad():
                    reply, memory = work(cohort, message)
            except FedsaddleError:
                raise
            except Exception as error:
                who = f"client {part[0]}" if len(part) == 1 else f"{len(part)} clients"
                reason = str(error).partition("\n")[0]
                raise ClientWorkError(
                    f"{work.__name__} failed in round {self.round}, phase {phase}, {who}: {type(error).__name__}: {reason}"
                ) from error
            if memory is not None:
                self._undo.append(partial(self._write, cohort.ids, cohort.memory))
                self._write(cohort.ids, memory)
            yield part, reply

    def _write(self, ids: torch.Tensor, memory: Any) -> None:
        tree_map(lambda store, new: store.index_copy_(0, ids, new), self.memory, memory)
