"""The simulating engines: all clients' data on one machine, `stacked` in batched kernels, `serial` one by one.

Both are this one class. The data of all clients lie one after another, with offsets. A phase takes the asked clients in
chunks: `stacked` takes the whole cohort as one chunk, `serial` one client at a time, whose work is then plain unbatched
PyTorch. Minibatches come from a hash of (seed, round, phase, step, client, slot), so chunks do not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsaddle import sampling
from fedsaddle.clients import Clients, Task, Work
from fedsaddle.cohort import Cohort, Sides
from fedsaddle.engines.execution import Execution
from fedsaddle.engines.memory import ClientMemory
from fedsaddle.engines.residence import Offloaded, Resident
from fedsaddle.errors import ClientWorkError, FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.messages import addressed, answered, check_memory, reason, unwrapped
from fedsaddle.participation import Draw
from fedsaddle.problem import Data, ModelProblem, Problem

# where compiled steps have their numbers in tensors: there compiling takes minutes; on a CPU numbers in the code are faster
_IN_TENSORS = ("cuda",)


class Simulation(Clients):
    """Clients simulated in this process.

    Args:
        task: what they work on; of seeds, equal ones side by side are fastest.
        compile, graph, precision: how work is executed, see `Execution`.
        chunk: how many clients (of all replicas) are computed at once; None for the whole cohort.
        offload: keep the samples on the CPU (see `residence`).
    """

    def __init__(
        self,
        task: Task,
        *,
        chunk: int | None = None,
        compile: bool = False,
        graph: bool | None = None,
        precision: str = "full",
        offload: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(task, torch.device(device))
        problem, federation = task.problem, task.federation
        self._longest = int(federation.sizes.max())
        self._samples = self._residence(federation, offload)
        self._sides = sides_of(problem, federation, self.device)
        self._sizes = federation.sizes.to(self.device)
        self._execute = Execution(self.device, compile, graph, precision)
        self.in_tensors = compile and self.device.type in _IN_TENSORS
        self._tensored: tuple[Problem, Problem] | None = None  # the problem, and as cohorts have it
        self._chunk = max(1, chunk // len(self.seeds)) if chunk else self.n_clients
        # compiled for replicas of any seeds, unless those of one seed read their samples together
        self._per_seed = 1 if self.in_tensors and not _reads_together(problem) else _run_length(self.seeds)
        self._drawn_anew = False  # whether a round's first phase has other participants than the round's own
        self._blank: Any = None  # what a client remembers before its first work, every tensor [1, k]
        self._memory: ClientMemory | None = None
        self._undo: list[Callable[[], None]] = []  # what takes back this round's writes to memory

    @property
    def data(self) -> Data:
        """All samples, one client after another, where they lie."""
        return self._samples.data

    def remember(self, blank: Any) -> None:
        self._blank, self.has_memory = blank, blank is not None
        self.forget()
        self._undo.clear()

    def forget(self) -> None:
        before = self._memory
        self._undo.append(lambda: setattr(self, "_memory", before))
        shape = (len(self.seeds), len(self._sizes)) if len(self.seeds) > 1 else (len(self._sizes),)
        self._memory = ClientMemory(self._blank, shape) if self.has_memory else None

    @property
    def memory(self) -> Any:
        """What every client remembers, every tensor [N, k] ([R, N, k]); None for stateless clients."""
        return self._memory.everyone() if self._memory is not None else None

    def _remembered(self) -> tuple[Tensor, Any] | None:
        return self._memory.written() if self._memory is not None else None

    def _recall(self, ids: Tensor, rows: Any) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.n_clients:
            raise ValueError(
                f"memory of clients {int(ids.min())} to {int(ids.max())}, there are {self.n_clients}"
            )
        self._write(ids.cpu().numpy(), rows)

    def begin(self, round: int) -> None:
        super().begin(round)
        self._undo.clear()

    def rollback(self) -> None:
        while self._undo:
            self._undo.pop()()

    def cohort(self, clients: np.ndarray, phase: int) -> Cohort:
        """These clients [S] (replicas: [R, S]), ready for a phase of the current round."""
        ids = torch.as_tensor(clients, device=self.device)
        data, first = self._samples.place(np.asarray(clients), ids)
        run = [sampling.key(sampling.MINIBATCH, seed, self.round, phase) for seed in self.seeds]
        return Cohort(
            self._for_steps(),
            ids,
            data,
            first=first,
            sizes=self._sizes[ids],
            memory=self._memory.read(np.asarray(clients)) if self._memory is not None else None,
            key=sampling.keys(run, self.device),
            batching=self.batching,
            dtype=self.dtype,
            longest=self._longest,
            sides=self._sides
            and Sides(self._sides.rows, self._sides.first[:, ids], self._sides.sizes[:, ids]),
            per_seed=self._per_seed,
        )

    def _for_steps(self) -> Problem:
        """The problem as client work has it."""
        if not self.in_tensors:
            return self.problem
        if self._tensored is None or self._tensored[0] is not self.problem:
            like = torch.empty(0, dtype=self.dtype, device=self.device)
            self._tensored = self.problem, self.problem.in_tensors(like)
        return self._tensored[1]

    def _run(self, work: Work, message: Any, who: Draw, phase: int) -> Iterator[tuple[np.ndarray, Any]]:
        answering = np.flatnonzero(who.answered if who.answered.ndim == 1 else who.answered[0])
        message = unwrapped(message)
        for start in range(0, len(answering), self._chunk):
            at = answering[start : start + self._chunk]
            ids = who.ids[..., at]
            cohort = self.cohort(ids, phase)
            try:
                reply, memory = answered(
                    work.__qualname__, self._execute(work, addressed(message, at), cohort)
                )
            except FedsaddleError:
                raise
            except Exception as error:
                clients = f"client {ids.item()}" if ids.size == 1 else f"{ids.size} clients"
                raise ClientWorkError(
                    f"{work.__name__} failed in round {self.round}, phase {phase}, {clients}: "
                    f"{reason(error, self.has_memory)}"
                ) from error
            if memory is not None:
                check_memory(work.__qualname__, memory, self._blank, ids.shape)
                self._undo.append(partial(self._write, ids, cohort.memory))
                self._write(ids, memory)
            following = answering[start + self._chunk :][: self._chunk]
            self._samples.expect(who.ids[..., following] if len(following) else self._upcoming(who, phase))
            yield at, reply

    def _residence(self, federation: Federation, offload: bool) -> Resident | Offloaded:
        if not offload:
            data = federation.on_device(self.device, self.dtype)
            return Resident(data, federation.offsets, self.device)
        if len(self.seeds) > 1:
            raise FedsaddleError("replicas: their samples must be on the device; use offload=False")
        data = federation.on_device(torch.device("cpu"), self.dtype)
        return Offloaded(data, federation.offsets, self._longest, self.device)

    def _upcoming(self, who: Draw, phase: int) -> np.ndarray:
        """Who will probably be computed next: the round's own participants, or the next round's first."""
        nobody = np.empty(0, dtype=np.int64)
        if isinstance(self._samples, Resident):
            return nobody
        if phase == 0:
            self._drawn_anew = who is not self._cohort  # an algorithm's rounds are alike
        if who is not self._cohort:
            draw = self._participants()
        elif self.round + 1 == self.rounds:
            return nobody
        else:
            number = 1 if self._drawn_anew else 0
            draw = self.participation.draw(self.n_clients, self.seeds[0], self.round + 1, number)
        return draw.ids[draw.answered][: self._chunk]

    def _write(self, clients: np.ndarray, memory: Any) -> None:
        assert self._memory is not None
        self._memory.write(clients, memory)


def sides_of(problem: Problem, federation: Federation, device: torch.device) -> Sides | None:
    """Of a problem on pairs, the samples of every client that are on each of its two sides."""
    masks = problem.sides(federation.data)
    if not masks:
        return None
    rows = [mask.cpu().nonzero().squeeze(-1) for mask in masks]
    owners = [torch.bucketize(r, federation.offsets[1:], right=True) for r in rows]
    sizes = torch.stack([torch.bincount(o, minlength=federation.n_clients) for o in owners])
    first = sizes.flatten().cumsum(0).view_as(sizes) - sizes
    local = torch.cat(rows) - federation.offsets[torch.cat(owners)]
    return Sides(local.to(device), first.to(device), sizes.to(device))


def _reads_together(problem: Problem) -> bool:
    return not isinstance(problem, ModelProblem) or problem.flat.shares


def _run_length(seeds: Sequence[int]) -> int:
    """The largest k such that the seeds are runs of k equal ones: 3 for (5, 5, 5, 8, 8, 8)."""
    divisors = (k for k in range(len(seeds), 1, -1) if len(seeds) % k == 0)
    return next((k for k in divisors if all(s == seeds[i - i % k] for i, s in enumerate(seeds))), 1)
