"""The tensor sampler is the integer reference bit for bit, does not depend on how it is called, and is uniform."""

import numpy as np
import pytest
import torch

from fedsaddle import sampling
from fedsaddle.cohort import Batching
from fedsaddle.problems import QuadraticSaddle
from tests import harness
from tests.reference import sampling as ref

WITHOUT, WITH = sampling.SAMPLINGS


def draw(steps, ids, sizes, batch_size, mode=WITHOUT, seed=0, round=0, phase=0):
    key = sampling.key(sampling.MINIBATCH, seed, round, phase)
    key = sampling.keys([key], torch.device("cpu"))
    return sampling.minibatches(
        key, torch.tensor(steps), torch.tensor(ids), torch.tensor(sizes), batch_size, mode
    )


@pytest.mark.parametrize("mode", sampling.SAMPLINGS)
@pytest.mark.parametrize("batch_size", [1, 3, 8, 33])
def test_equals_the_reference(mode, batch_size):
    sizes = [*range(1, 20), 31, 32, 33, 34, 100, 1000, 65537, 10_000_019, 2**30 + 3]
    ids = [(7919 * i) % 10_007 for i in range(len(sizes))]
    seed, round, phase = 123_456_789_012, 41, 2
    rows, w = draw(range(2, 4), ids, sizes, batch_size, mode, seed, round, phase)
    assert rows.shape == (2, len(sizes), batch_size) and rows.dtype == torch.int64
    assert w.shape == (len(sizes), batch_size) and w.dtype == torch.float64
    for i, (client, n) in enumerate(zip(ids, sizes, strict=True)):
        for t in range(2):
            expected, weights = ref.minibatch(seed, round, phase, t + 2, client, n, batch_size, mode == WITH)
            got = w[i] > 0
            assert rows[t, i][got].tolist() == expected
            assert w[i][got].tolist() == pytest.approx(weights, abs=1e-16)
            assert (rows[t, i] >= 0).all() and (
                rows[t, i] < n
            ).all()  # absent slots point at the client's own rows
    np.testing.assert_allclose(w.sum(1), 1, rtol=0, atol=1e-15)


def test_keys_and_server_integers_equal_the_reference():
    for values in ((0,), (1, 2, 3), (2, 2**63, 2**64 - 1, 0), (1, 10**15, 0, 5)):
        assert sampling.key(*values) == ref.key(*values)
    for round in range(50):
        assert sampling.integer(7, sampling.SERVER, 3, round) == ref.server_integer(3, round, 7)
    clients = harness.connect(QuadraticSaddle(3, 2), harness.quadratics(), seed=3)
    for round in range(5):
        clients.begin(round)
        assert clients.integer(11) == ref.server_integer(3, round, 11)


@pytest.mark.parametrize("mode", sampling.SAMPLINGS)
def test_chunks_and_step_ranges_do_not_matter(mode):
    ids, sizes = [4, 0, 17, 3], [9, 3, 100, 16]
    rows, w = draw(range(6), ids, sizes, 8, mode)
    for i in range(4):
        alone, w_alone = draw(range(6), ids[i : i + 1], sizes[i : i + 1], 8, mode)
        assert (alone[:, 0] == rows[:, i]).all() and (w_alone[0] == w[i]).all()
    for t in range(6):
        assert (draw(range(t, t + 1), ids, sizes, 8, mode)[0][0] == rows[t]).all()


def test_a_larger_minibatch_begins_with_the_smaller_one():
    assert (draw(range(3), [1], [50], 20)[0][..., :7] == draw(range(3), [1], [50], 7)[0]).all()


def test_without_replacement_rows_are_distinct():
    for n in (1, 2, 3, 5, 8, 13, 40):
        rows, w = draw(range(50), [n], [n], n)
        assert (rows.sort(-1).values == torch.arange(n)).all() and (w == 1 / n).all()


def test_cohort_gathers_its_own_rows_whatever_it_draws_at_once(monkeypatch):
    """The engine's minibatches are the reference's rows of each client's own data."""
    fed = harness.binary()
    clients = harness.connect(harness.ERM(harness._linear()), fed, batching=Batching(4))
    clients.begin(3)
    own = harness.clients_of(fed)
    for at_once in (1, 32, 60, 1 << 20):  # 32: four steps, and three of four that are drawn
        monkeypatch.setattr("fedsaddle.cohort._INDICES_AT_ONCE", at_once)
        seen = []
        clients.cohort(torch.tensor([5, 1]), phase=2).scan(
            lambda carry, batch, seen=seen: seen.append(batch) or carry, torch.zeros(1, 1), 7
        )
        assert len(seen) == 7
        for t, batch in enumerate(seen):
            for row, k in enumerate((5, 1)):
                rows, weights = ref.minibatch(harness.SEED, 3, 2, t, k, len(own[k]["y"]), 4, False)
                assert (batch.data["x"][row, : len(rows)].numpy() == own[k]["x"][rows]).all()
                assert batch.w[row].tolist() == weights + [0.0] * (4 - len(rows))


# ---------------------------------------------------------------------------------------------------- statistics


def chi_square(cells, codes):
    """Pearson's statistic of equally likely cells, in standard deviations from its mean."""
    counts = np.bincount(codes, minlength=cells)
    assert len(counts) == cells
    expected = len(codes) / cells
    return (((counts - expected) ** 2 / expected).sum() - (cells - 1)) / np.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("n", [2, 3, 7, 10])
def test_marginals_and_pairs_are_uniform(n):
    """Every slot is uniform, every ordered pair of slots uniform over ordered pairs of distinct rows."""
    T = 20_000
    rows = draw(range(T), [3], [n], min(n, 4))[0][:, 0].numpy()
    for slot in rows.T:
        assert chi_square(n, slot) < 4
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    index = np.full((n, n), -1)
    index[tuple(np.array(pairs).T)] = np.arange(len(pairs))
    for a in range(rows.shape[1]):
        for b in range(a):
            assert chi_square(len(pairs), index[rows[:, a], rows[:, b]]) < 4


def test_whole_permutations_are_uniform():
    rows = draw(range(24_000), [8], [4], 4)[0][:, 0].numpy()
    assert chi_square(24, np.unique(rows @ [64, 16, 4, 1], return_inverse=True)[1]) < 4


def test_with_replacement_is_uniform_and_slots_are_independent():
    rows = draw(range(20_000), [3], [6], 3, WITH)[0][:, 0].numpy()
    for slot in rows.T:
        assert chi_square(6, slot) < 4
    assert chi_square(36, rows[:, 0] * 6 + rows[:, 1]) < 4


@pytest.mark.parametrize("mode", sampling.SAMPLINGS)
def test_steps_clients_rounds_phases_and_seeds_are_independent(mode):
    """The first slot's pair of values under two settings that differ in one coordinate is uniform on the square."""
    n, T = 6, 15_000
    base = dict(steps=range(T), ids=[5], sizes=[n], batch_size=2, mode=mode)
    first = lambda **change: draw(**(base | change))[0][:, 0, 0].numpy()
    others = [{"steps": range(1, T + 1)}, {"ids": [6]}, {"round": 1}, {"phase": 1}, {"seed": 1}]
    for change in others:
        assert chi_square(n * n, first() * n + first(**change)) < 4
