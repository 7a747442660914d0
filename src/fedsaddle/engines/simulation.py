"""The simulating engines: all clients' data on one machine, `stacked` in batched kernels, `serial` one by one.

Both are this one class. The data of all clients lie one after another, with offsets. A phase takes the asked clients in
chunks: `stacked` takes the whole cohort as one chunk, `serial` one client at a time, whose work is then plain unbatched
PyTorch. Minibatches come from a hash of (seed, round, phase, step, client, slot), so chunks do not change them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedsaddle import sampling
from fedsaddle.clients import Clients, Work
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
        self.device, self.dtype, self.batching = torch.device(device), dtype, batching
        self.problem = problem.to(self.device, dtype)
        self.data = {
            k: v.to(self.device, dtype if v.is_floating_point() else None) for k, v in federation.data.items()
        }
        self._first = federation.offsets[:-1].to(self.device)
        self._sizes = federation.sizes.to(self.device)
        self._chunk = chunk or self.n_clients
        self._blank: Any = None  # what a client remembers before its first work, every tensor [1, ...]
        self.memory: Any = None  # what every client remembers, every tensor [N, ...]

    def remember(self, blank: Any) -> None:
        self._blank = blank
        self.forget()

    def forget(self) -> None:
        # a client that has not worked yet costs no memory: zeros are not touched until they are written
        self.memory = tree_map(
            lambda b: b.repeat(self.n_clients, 1) if b.any() else b.new_zeros(self.n_clients, b.shape[-1]),
            self._blank,
        )

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

    def _run(self, work: Work, message: Any, ids: np.ndarray, phase: int) -> Any:
        chunks = torch.as_tensor(ids, device=self.device).split(self._chunk)
        done = []
        with torch.no_grad():
            for part in chunks:
                try:
                    done.append(work(self.cohort(part, phase), message))
                except FedsaddleError:
                    raise
                except Exception as error:
                    who = f"client {part[0].item()}" if len(part) == 1 else f"{len(part)} clients"
                    reason = str(error).partition("\n")[0]
                    raise FedsaddleError(
                        f"{work.__name__} failed in round {self.round}, phase {phase}, {who}: "
                        f"{type(error).__name__}: {reason}"
                    ) from error
            # memory is written when the whole phase has succeeded
            for part, (_, memory) in zip(chunks, done, strict=True):
                if memory is not None:
                    tree_map(lambda store, new, at=part: store.index_copy_(0, at, new), self.memory, memory)
            return tree_map(lambda *parts: torch.cat(parts), *(reply for reply, _ in done))
