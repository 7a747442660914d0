"""Where the clients' samples lie: all of them on the device, or on the CPU, with the participants' brought over in time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsaddle.problem import Data


class Resident:
    """All samples on the device, one client after another."""

    def __init__(self, data: Data, offsets: Tensor, device: torch.device) -> None:
        self.data, self._first = data, offsets[:-1].to(device)

    def place(self, clients: np.ndarray, ids: Tensor) -> tuple[Data, Tensor]:
        """Data that hold the rows of these clients, and where each client's begin (as ids)."""
        return self.data, self._first[ids]

    def expect(self, clients: np.ndarray) -> None:
        """These clients will probably be asked for next."""


class Offloaded:
    """All samples on the CPU; those of the asked clients are copied to the device, each client's padded to the longest.

    The copies of clients that are expected next travel beside the computation: rows are gathered into pinned memory while
    the device works, and sent by a stream of their own. What the device computes on lies at a fixed address for each number
    of clients, as recorded CUDA graphs need; numbers of about the same size share a buffer.
    """

    def __init__(self, data: Data, offsets: Tensor, longest: int, device: torch.device) -> None:
        self.data, self._offsets, self._longest, self._device = data, offsets, longest, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._arrived = torch.cuda.Event() if self._stream is not None else None
        self._host: dict[str, Tensor] = {}  # pinned
        self._coming: dict[str, Tensor] = {}  # on the device: what is expected
        self._here: dict[
            int, dict[str, Tensor]
        ] = {}  # on the device: what is computed on, by capacity in clients
        self._expected: np.ndarray | None = None
        self._placed: np.ndarray | None = None

    def place(self, clients: np.ndarray, ids: Tensor) -> tuple[Data, Tensor]:
        S = len(clients)
        rows, capacity = S * self._longest, 1 << (S - 1).bit_length()
        if capacity not in self._here:
            self._here[capacity] = self._buffers(capacity, self._device)
        here = {k: v[:rows] for k, v in self._here[capacity].items()}
        if not _equal(self._placed, clients):
            if not _equal(self._expected, clients):
                self.expect(clients)
            if self._arrived is not None:
                torch.cuda.current_stream(self._device).wait_event(self._arrived)
            for k, v in self._coming.items():
                here[k].copy_(v[:rows])
            if self._stream is not None:  # the next copies must not overtake these
                self._stream.wait_stream(torch.cuda.current_stream(self._device))
            self._placed, self._expected = clients, None
        return here, torch.arange(S, device=self._device) * self._longest

    def expect(self, clients: np.ndarray) -> None:
        if len(clients) == 0 or _equal(self._placed, clients) or _equal(self._expected, clients):
            return
        S, at = len(clients), torch.as_tensor(clients)
        sizes = self._offsets[at + 1] - self._offsets[at]
        slot = torch.arange(self._longest)
        rows = (self._offsets[at, None] + torch.minimum(slot, sizes[:, None] - 1)).reshape(-1)
        if self._arrived is not None:
            self._arrived.synchronize()  # the last copies have left the pinned memory
        with torch.cuda.stream(
            self._stream
        ):  # memory that the copies' stream owns; without a stream nothing happens
            if not self._host or len(next(iter(self._host.values()))) < len(rows):
                self._host = self._buffers(S, torch.device("cpu"), pin=self._stream is not None)
                self._coming = self._buffers(S, self._device)
            for k, v in self.data.items():
                torch.index_select(v, 0, rows, out=self._host[k][: len(rows)])
                self._coming[k][: len(rows)].copy_(self._host[k][: len(rows)], non_blocking=True)
            if self._arrived is not None:
                self._arrived.record()
        self._expected = clients

    def _buffers(self, clients: int, device: torch.device, pin: bool = False) -> dict[str, Tensor]:
        rows = clients * self._longest
        return {
            k: torch.empty(rows, *v.shape[1:], dtype=v.dtype, device=device, pin_memory=pin)
            for k, v in self.data.items()
        }


def _equal(a: np.ndarray | None, b: np.ndarray) -> bool:
    return a is not None and np.array_equal(a, b)
