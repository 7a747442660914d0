"""What simulated clients remember between phases: a row for each client that has written, and one row for all others.

Memory therefore grows with the clients that have worked, not with the population times the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsaddle.problem import tree_map

_FIRST_ROWS = 64


class ClientMemory:
    """The memory of N clients, of one run or of R replicas.

    Args:
        blank: what a client remembers before its first work, every tensor [1, k] ([R, 1, k]).
        shape: (N,), or (R, N) with replicas.
    """

    def __init__(self, blank: Any, shape: tuple[int, ...]) -> None:
        self._row = np.zeros(shape, dtype=np.int32)  # the row of each client; row 0 is the blank one
        self._used = np.ones((*shape[:-1], 1), dtype=np.int32)  # rows in use
        self._rows = tree_map(lambda b: b.expand(*shape[:-1], 1, b.shape[-1]).clone(), blank)
        self._capacity = 1

    def read(self, ids: np.ndarray) -> Any:
        """What these clients [S] ([R, S]) remember, every tensor [S, k] ([R, S, k])."""
        at = self._at(ids)
        side_by_side = _run_of(at)
        if side_by_side is not None:
            return tree_map(lambda rows: rows[..., side_by_side, :].clone(), self._rows)
        return tree_map(lambda rows: _select(rows, at), self._rows)

    def write(self, ids: np.ndarray, values: Any) -> None:
        """Replace what these clients remember."""
        at = self._at(ids)
        new = at == 0
        if new.any():
            at = np.where(new, self._used + new.cumsum(-1, dtype=np.int32) - 1, at)
            np.put_along_axis(self._row, ids, at, axis=-1)
            self._used = self._used + new.sum(-1, keepdims=True, dtype=np.int32)
            self._reserve(int(self._used.max()))

        side_by_side = _run_of(at)

        def put(rows: Tensor, value: Tensor) -> Tensor:
            if side_by_side is not None:
                return rows[..., side_by_side, :].copy_(value)
            index = torch.as_tensor(at, dtype=torch.long, device=rows.device)
            if index.ndim == 1:
                return rows.index_copy_(0, index, value)
            return rows.scatter_(-2, index.unsqueeze(-1).expand_as(value), value)

        tree_map(put, self._rows, values)

    def _at(self, ids: np.ndarray) -> np.ndarray:
        """The rows of these clients, as many axes as there are."""
        rows: np.ndarray = self._row[ids] if ids.ndim == 1 else np.take_along_axis(self._row, ids, axis=-1)
        return rows

    def _reserve(self, rows: int) -> None:
        if rows <= self._capacity:
            return
        self._capacity = min(max(rows, 2 * self._capacity, _FIRST_ROWS), self._row.shape[-1] + 1)

        def longer(old: Tensor) -> Tensor:
            out = old.new_empty(*old.shape[:-2], self._capacity, old.shape[-1])
            out[..., : old.shape[-2], :] = old
            return out

        self._rows = tree_map(longer, self._rows)

    def written(self) -> tuple[Tensor, Any]:
        """The clients [m] that have written, in order, and what they remember, every tensor [m, k]."""
        ids = np.flatnonzero(self._row)
        return torch.from_numpy(ids), self.read(ids)

    def everyone(self) -> Any:
        """What all clients remember, every tensor [N, k] ([R, N, k])."""
        return tree_map(lambda rows: _select(rows, self._row), self._rows)


def _run_of(at: np.ndarray) -> slice | None:
    """The slice that rows [S] ([R, S]) are, if they lie in order and side by side, the same for all replicas: faster."""
    S = at.shape[-1]
    if S == 0 or (at != at.flat[0] + np.arange(S)).any():
        return None
    return slice(int(at.flat[0]), int(at.flat[0]) + S)


def _select(rows: Tensor, at: np.ndarray) -> Tensor:
    index = torch.as_tensor(at, dtype=torch.long, device=rows.device)
    return rows.index_select(0, index) if index.ndim == 1 else rows.take_along_dim(index.unsqueeze(-1), -2)
