"""The clients' memory is a dictionary from client to row, whatever is written in whatever order."""

import gc
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsaddle.engines.memory import ClientMemory
from fedsaddle.wire import pack, unpack


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def writes(replicas: int, rounds: int = 60, n: int = 300):
    """Random reads and writes, beside a dictionary; yields (what is read, what must be)."""
    rng = np.random.default_rng(replicas)
    lead = (replicas,) if replicas > 1 else ()
    blank = Pair(torch.full((*lead, 1, 2), 0.5), torch.full((*lead, 1, 1), -1.0))
    memory = ClientMemory(blank, (*lead, n))
    known: dict[tuple[int, int], float] = {}
    for r in range(rounds):
        ids = np.stack([np.sort(rng.choice(n, 7, replace=False)) for _ in range(replicas)])
        values = rng.standard_normal((replicas, 7))
        for i, row in enumerate(ids):
            for k, client in enumerate(row):
                known[i, client] = values[i, k]
        v = torch.as_tensor(values).float().unsqueeze(-1).view(*lead, 7, 1)
        memory.write(ids.reshape(*lead, 7), Pair(v.expand(*lead, 7, 2), 2 * v))
        ask = np.stack([rng.choice(n, 9, replace=False) for _ in range(replicas)])
        got = memory.read(ask.reshape(*lead, 9))
        a = np.array([[known.get((i, c), 0.5) for c in row] for i, row in enumerate(ask)])
        b = np.array(
            [[2 * known[i, c] if (i, c) in known else -1.0 for c in row] for i, row in enumerate(ask)]
        )
        yield got, a.reshape(*lead, 9, 1), b.reshape(*lead, 9, 1), memory, r


@pytest.mark.parametrize("replicas", [1, 3])
def test_it_is_a_dictionary(replicas: int) -> None:
    for got, a, b, _, _ in writes(replicas):
        np.testing.assert_allclose(got.a, np.repeat(a, 2, -1), rtol=1e-6)
        np.testing.assert_allclose(got.b, b, rtol=1e-6)


def test_rows_exist_for_clients_that_have_written() -> None:
    million = ClientMemory(torch.zeros(1, 10_000), (1_000_000,))
    for r in range(30):
        million.write(np.arange(5) + 5 * r, torch.ones(5, 10_000))
    assert million._rows.shape[0] <= 300
    assert million.read(np.array([3, 149, 150, 999_999])).sum(-1).tolist() == [10_000, 10_000, 0, 0]


def test_everyone() -> None:
    memory = ClientMemory(torch.tensor([[7.0]]), (4,))
    memory.write(np.array([1, 2]), torch.tensor([[1.0], [2.0]]))
    memory.write(np.array([1]), torch.tensor([[3.0]]))
    assert memory.everyone()[:, 0].tolist() == [7, 3, 2, 7]


def test_nothing_that_was_packed_stays_in_memory() -> None:
    def tensors() -> int:
        return sum(type(thing) is Tensor for thing in gc.get_objects())

    tree = tuple(torch.zeros(1, 3) for _ in range(50))
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        data = pack(tree)
        assert tensors() == before
        assert len(unpack(data, {})) == 50
        assert tensors() == before
    finally:
        gc.enable()
