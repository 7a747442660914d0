"""Partitions lose and duplicate nothing, depend on the seed only, and leave no client empty; so do transforms."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsaddle import partitions, transforms
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.partitions import PARTITIONS, partition
from fedsaddle.transforms import TRANSFORMS

LABELS = st.lists(st.integers(0, 4), min_size=2, max_size=120).map(np.array)
COMPLETE = ("iid", "dirichlet", "sorted_share", "blocks", "one_class", "natural")


def refused(text: str, call: Any) -> None:
    with pytest.raises(FedsaddleError) as info:
        call()
    assert text in str(info.value)
    assert "\n" not in str(info.value)


def check(parts: list[np.ndarray], n: int, clients: int, complete: bool) -> None:
    assert len(parts) == clients
    assert all(len(part) > 0 and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < n
    assert not complete or len(rows) == n


@settings(max_examples=150, deadline=None)
@given(
    labels=LABELS,
    name=st.sampled_from(sorted(PARTITIONS)),
    clients=st.integers(1, 12),
    seed=st.integers(0, 5),
)
def test_every_partition(labels: np.ndarray, name: str, clients: int, seed: int) -> None:
    options: dict[str, Any] = {}
    assume(clients <= len(labels))
    if name == "natural":
        options["groups"] = np.random.default_rng(seed).permutation(len(labels)) % clients
    if name == "one_class":
        assume(clients >= len(np.unique(labels)))
    if name == "disjoint_classes":
        kinds = len(np.unique(labels))
        assume(clients <= kinds // 2)
    if name == "positive_rate":
        labels = (labels > 2).astype(int)
        assume(0 < labels.sum() < len(labels))
        options["rates"] = (0.2, 0.6)
    before = labels.copy()
    try:
        parts = partition(name, labels, clients, seed, **options)
    except FedsaddleError as error:
        assert name == "positive_rate" and "cannot meet" in str(error)
        return
    check(parts, len(labels), clients, complete=name in COMPLETE)
    again = partition(name, labels, clients, seed, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert np.array_equal(labels, before)
    as_text = partition(name, labels.astype(str), clients, seed, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, as_text, strict=True))


@pytest.mark.parametrize("name", ["iid", "dirichlet", "sorted_share", "one_class"])
def test_the_seed_matters(name: str) -> None:
    labels = np.arange(400) % 3
    first, second = (partition(name, labels, 7, seed) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["iid", "blocks", "sorted_share"])
@pytest.mark.parametrize(("n", "clients"), [(100, 7), (10, 10), (11, 10), (19, 10), (1000, 33)])
def test_even_partitions_have_sizes_that_differ_by_two_at_most(name: str, n: int, clients: int) -> None:
    sizes = [len(part) for part in partition(name, np.arange(n) % 3, clients)]
    assert max(sizes) - min(sizes) <= (2 if name == "sorted_share" else 1)
    assert min(sizes) >= 1


def test_blocks_keep_the_original_order() -> None:
    parts = partitions.blocks(np.zeros(500), 5)
    assert np.array_equal(np.concatenate(parts), np.arange(500))
    assert parts[3][0] == 300


def test_sorted_share() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 5000)
    pure = partitions.sorted_share(labels, 50, random_share=0)
    assert all(labels[a].max() <= labels[b].min() for a, b in pairwise(pure))
    mixed = partitions.sorted_share(labels, 50, random_share=0.1)
    common = [np.bincount(labels[part], minlength=10).max() / len(part) for part in mixed]
    assert np.median(common) > 0.85
    assert np.mean([len(np.unique(labels[part])) for part in mixed]) > 5
    every = partitions.sorted_share(labels, 50, random_share=1)
    assert max(np.bincount(labels[part]).max() for part in every) < 40


@settings(max_examples=50, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=40, max_size=150).map(np.array),
    clients=st.integers(2, 8),
    alpha=st.sampled_from([0.01, 0.1, 1.0, 100.0]),
    min_size=st.integers(1, 5),
    min_per_class=st.integers(0, 3),
    seed=st.integers(0, 3),
)
def test_dirichlet_keeps_its_minima(
    labels: np.ndarray, clients: int, alpha: float, min_size: int, min_per_class: int, seed: int
) -> None:
    labels = np.unique(labels, return_inverse=True)[1]
    options: dict[str, Any] = {
        "alpha": alpha,
        "min_size": min_size,
        "min_per_class": min_per_class,
        "seed": seed,
    }
    if min_per_class * clients > np.bincount(labels).min():
        refused("dirichlet: min_per_class", lambda: partitions.dirichlet(labels, clients, **options))
        return
    parts = partitions.dirichlet(labels, clients, **options)
    check(parts, len(labels), clients, complete=True)
    for part in parts:
        assert len(part) >= min_size
        assert np.bincount(labels[part], minlength=labels.max() + 1).min() >= min_per_class


def test_dirichlet_with_tiny_alpha_and_many_clients() -> None:
    labels = np.arange(50_000) % 10
    parts = partitions.dirichlet(labels, 100, alpha=0.01)
    check(parts, 50_000, 100, complete=True)
    assert np.median([len(np.unique(labels[part])) for part in parts]) <= 2
    positives = (np.arange(40_729) < 224).astype(int)
    check(partitions.dirichlet(positives, 100, alpha=0.01, min_size=10), 40_729, 100, complete=True)
    check(partitions.dirichlet(positives, 100, alpha=0.01, min_per_class=2), 40_729, 100, complete=True)
    check(partitions.dirichlet(np.arange(100), 100, alpha=1e-4), 100, 100, complete=True)


def test_dirichlet_with_large_alpha_is_nearly_iid() -> None:
    labels = np.arange(10_000) % 2
    for part in partitions.dirichlet(labels, 10, alpha=1e6):
        assert abs(len(part) - 1000) < 15
        assert abs(labels[part].mean() - 0.5) < 0.02


def test_one_class_gives_clients_in_proportion() -> None:
    labels = np.r_[np.zeros(760), np.ones(240)]
    parts = partitions.one_class(labels, 20)
    kinds = [np.unique(labels[part]) for part in parts]
    assert all(len(kind) == 1 for kind in kinds)
    assert sum(kind[0] == 1 for kind in kinds) == 5
    rare = np.r_[np.zeros(9999), 1.0]
    assert len(partitions.one_class(rare, 20)[-1]) == 1
    full = partitions.one_class(np.array([0, 0, 0, 1]), 4)
    assert [len(part) for part in full] == [1] * 4


def test_disjoint_classes_are_codasca_s_construction() -> None:
    labels = np.repeat(np.arange(100), 500)
    for imratio, kept in ((0.1, 55), (0.3, 214)):
        parts = partitions.disjoint_classes(labels, 8, imratio=imratio, seed=123)
        check(parts, len(labels), 8, complete=False)
        owners = [np.unique(labels[part]) for part in parts]
        assert sorted(np.concatenate(owners).tolist()) == list(range(100))
        for part in parts:
            counts = np.bincount(labels[part], minlength=100)
            assert set(counts[:50].tolist()) <= {0, 500}
            assert set(counts[50:].tolist()) <= {0, kept}
    some = partitions.disjoint_classes(labels, 3, positive_classes=[0, 1, 2], imratio=0.2)
    binary = partitions.binary_labels(labels, [0, 1, 2])
    assert binary.sum() == 1500
    for part in some:  # 33 negative classes a client would need more positives than there are: all are kept
        assert binary[part].sum() == 500


@pytest.mark.parametrize("clients", [8, 16, 25])
def test_disjoint_classes_shared_by_more_clients_than_classes(clients: int) -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 500))
    parts = partitions.disjoint_classes(labels, clients, imratio=0.3, shared=True, seed=1)
    check(parts, len(labels), clients, complete=False)
    pairs = [tuple(np.unique(labels[part])) for part in parts]
    assert len(set(pairs)) == clients  # no two have the same two classes
    assert all(negative < 5 <= positive for negative, positive in pairs)
    assert (
        np.bincount(labels[np.concatenate(parts)])[:5].tolist() == [500] * 5
    )  # every negative is somebody's
    for sign in (0, 1):
        holders = np.unique([pair[sign] for pair in pairs], return_counts=True)[1]
        assert len(holders) == 5 and holders.max() - holders.min() <= (1 if sign == 0 else 2)
    for part in parts:
        n = (labels[part] < 5).sum()
        assert (labels[part] >= 5).sum() == int(3 / 7 * n + 1e-9)


def test_shared_changes_nothing_where_classes_suffice() -> None:
    labels = np.arange(600) % 20
    for one, other in zip(
        *(partitions.disjoint_classes(labels, 7, shared=shared, seed=3) for shared in (False, True)),
        strict=True,
    ):
        assert np.array_equal(one, other)


def test_binary_labels() -> None:
    assert partitions.binary_labels([3, 1, 2, 0]).tolist() == [1, 0, 1, 0]
    assert partitions.binary_labels(list("abca"), ["a"]).tolist() == [1, 0, 0, 1]
    refused("positive class 7 never occurs", lambda: partitions.binary_labels([0, 1], [7]))


@pytest.mark.parametrize("rates", [(0.05, 0.5), [0.1, 0.1, 0.1, 0.1, 0.1], [0, 0.25, 0.5, 0.75, 1]])
def test_positive_rate_meets_the_rates_and_wastes_little(rates: Any) -> None:
    labels = np.random.default_rng(0).permutation(np.arange(3000) < 600).astype(int)
    parts = partitions.positive_rate(labels, 5, rates=rates)
    check(parts, 3000, 5, complete=False)
    assert len({len(part) for part in parts}) == 1
    wanted = np.linspace(*rates, 5) if len(rates) == 2 else np.array(rates)
    got = np.array([labels[part].mean() for part in parts])
    assert np.abs(got - wanted).max() <= 0.5 / len(parts[0]) + 1e-9
    size = len(parts[0]) + 1  # one more row a client does not fit
    plus = np.floor(wanted * size + 0.5)
    assert plus.sum() > 600 or (size - plus).sum() > 2400


def test_natural_groups() -> None:
    parts = partitions.natural(np.zeros(4), groups=["b", "a", "b", "c"])
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]


def test_natural_groups_may_be_left_out() -> None:
    parts = partitions.natural(np.zeros(5), groups=["b", "a", "b", "c", "a"], leave_out=["a"])
    assert [p.tolist() for p in parts] == [[0, 2], [3]]
    with pytest.raises(FedsaddleError, match=r"natural: leave_out 'd' is unknown: known are a, b"):
        partitions.natural(np.zeros(2), groups=["b", "a"], leave_out=["d"])


def test_matching_follows_the_training_proportions() -> None:
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 5, 5000), np.r_[rng.integers(0, 5, 1000), 9]
    parts = partitions.dirichlet(train, 8, alpha=0.3)
    split = partitions.matching(train, parts, test, seed=1)
    rows = np.concatenate(split)
    assert len(rows) == len(np.unique(rows)) == 1000  # the class 9 that training lacks is left out
    for mine, its in zip(parts, split, strict=True):
        expected = np.bincount(train[mine], minlength=5) / np.bincount(train) * np.bincount(test[:-1])
        assert np.abs(np.bincount(test[its], minlength=5) - expected).max() <= 1


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("partition 'dirichelt' is unknown: did you mean 'dirichlet'?", lambda y: partition("dirichelt", y, 2)),
        (
            "partition dirichlet: option 'alhpa' is unknown: did you mean 'alpha'?",
            lambda y: partition("dirichlet", y, 2, alhpa=1),
        ),
        ("partition natural: option 'groups' is needed", lambda y: partition("natural", y, 2)),
        ("partition iid: option 'x' is unknown: known are none", lambda y: partition("iid", y, 2, x=1)),
        ("iid: clients must be a whole number >= 1, got None", lambda y: partition("iid", y, None)),
        ("iid: clients must be a whole number >= 1, got 0", lambda y: partitions.iid(y, 0)),
        ("iid: clients must be a whole number >= 1, got 2.5", lambda y: partitions.iid(y, 2.5)),
        ("blocks: 10 rows cannot fill 11 clients: take at most 10", lambda y: partitions.blocks(y, 11)),
        ("iid: labels must be one label a row, got shape [0]", lambda y: partitions.iid(y[:0], 1)),
        ("iid: labels must be one label a row, got shape [2, 5]", lambda y: partitions.iid(y.reshape(2, 5), 1)),
        ("dirichlet: alpha must be > 0, got -1", lambda y: partitions.dirichlet(y, 2, alpha=-1)),
        ("dirichlet: min_size must be at least 1 and at most 5", lambda y: partitions.dirichlet(y, 2, min_size=6)),
        ("at most 2: the rarest class has 5 rows for 2 clients", lambda y: partitions.dirichlet(y, 2, min_per_class=3)),
        ("sorted_share: random_share must be in [0, 1], got 2", lambda y: partitions.sorted_share(y, 2, random_share=2)),
        ("one_class: 2 classes need at least 2 clients, got 1", lambda y: partitions.one_class(y, 1)),
        ("imratio must be in (0, 1), got 1", lambda y: partitions.disjoint_classes(y, 1, imratio=1)),
        ("2 clients need 2 negative classes, got 1: take at most 1 clients or shared=True",
         lambda y: partitions.disjoint_classes(y, 2)),
        ("2 clients need 2 negative classes, got 0: take at most 0 clients",
         lambda y: partitions.disjoint_classes(y, 2, positive_classes=[0, 1], shared=True)),
        ("a class of 5 rows cannot be shared by 6 clients", lambda y: partitions.disjoint_classes(y, 6, shared=True)),
        ("positive_rate: labels must have two classes, got 10", lambda y: partitions.positive_rate(np.arange(10), 2)),
        ("rates must be (low, high) or 4 numbers, got 3", lambda y: partitions.positive_rate(y, 4, rates=[0, 0, 0])),
        ("rates must be in [0, 1], got 1.5", lambda y: partitions.positive_rate(y, 2, rates=[0.5, 1.5])),
        ("cannot meet these rates", lambda y: partitions.positive_rate(y, 8, rates=[1] * 8)),
        ("natural: groups must have one value for each of the 10 rows", lambda y: partitions.natural(y, groups=[1])),
        ("natural: there are 2 groups, got clients=3", lambda y: partitions.natural(y, 3, groups=[0, 1] * 5)),
        ("groups has no value in 5 of 10 rows, the first at row 1", lambda y: partitions.natural(y, groups=[0, np.nan] * 5)),
    ],
)  # fmt: skip
def test_refusals(text: str, call: Any) -> None:
    refused(text, lambda: call(np.arange(10) % 2))


# ------------------------------------------------------------------------------------------------- transforms


def federation(y: np.ndarray, clients: int = 4) -> Federation:
    fed = Federation.from_arrays(np.arange(len(y))[:, None], y, clients=np.arange(len(y)) % clients)
    return fed.with_test(np.zeros((3, 1)), y[:3])


@settings(max_examples=60, deadline=None)
@given(
    y=st.lists(st.integers(0, 1), min_size=8, max_size=80)
    .map(np.array)
    .filter(lambda y: 0 < y.sum() < len(y)),
    share=st.floats(0, 0.99),
    seed=st.integers(0, 4),
)
def test_remove_positives(y: np.ndarray, share: float, seed: int) -> None:
    fed = federation(y)
    less = transforms.remove_positives(fed, share, seed=seed)
    kept = int(less.data["y"].sum())
    only = int((fed.class_counts()[:, 0] == 0).sum())
    assert int((less.data["y"] == 0).sum()) == (y == 0).sum()
    assert int((1 - share) * y.sum() + 1e-9) <= kept <= max(int((1 - share) * y.sum() + 1e-9), only)
    assert less.sizes.min() >= 1
    assert less.test is fed.test
    assert torch.equal(less.data["x"], transforms.remove_positives(fed, share, seed=seed).data["x"])


def test_remove_positives_leaves_cycp_s_numbers() -> None:
    y = np.r_[np.zeros(40_505, int), np.ones(4495, int)]
    assert int(transforms.remove_positives(federation(y, 100), 0.95).data["y"].sum()) == 224


@pytest.mark.parametrize(("of", "down", "up"), [("positive", 6, 0), ("negative", 0, 24), ("all", 6, 24)])
def test_flip_labels(of: str, down: int, up: int) -> None:
    y = np.random.default_rng(0).permutation(np.arange(150) < 30).astype(int)
    fed = federation(y)
    flipped = transforms.flip_labels(fed, 0.2, seed=1, of=of)
    before, after = fed.data["y"], flipped.data["y"]
    assert int(((before == 1) & (after == 0)).sum()) == down
    assert int(((before == 0) & (after == 1)).sum()) == up
    assert flipped.test is fed.test
    assert torch.equal(flipped.data["x"], fed.data["x"])
    assert torch.equal(after, transforms.flip_labels(fed, 0.2, seed=1, of=of).data["y"])
    assert int(before.sum()) == 30  # the first federation is as it was


@settings(max_examples=40, deadline=None)
@given(n=st.integers(20, 200), share=st.floats(0, 1), lose=st.floats(0, 1), seed=st.integers(0, 3))
def test_thin_clients(n: int, share: float, lose: float, seed: int) -> None:
    fed = federation(np.arange(n) % 2, clients=10)
    thin = transforms.thin_clients(fed, share, lose, seed)
    before, after = fed.sizes.numpy(), thin.sizes.numpy()
    expected = np.maximum(before - np.floor(lose * before + 0.5), 1)
    hit = int(share * 10 + 0.5)
    assert ((after == before) | (after == expected)).all()
    assert (after != before).sum() == (hit if (expected != before).all() else (after != before).sum())
    assert set(thin.data["x"].flatten().tolist()) <= set(range(n))
    assert thin.test is fed.test


def test_thin_clients_defaults_are_scaff_pd_s() -> None:
    thin = transforms.thin_clients(federation(np.arange(2000) % 2, clients=20))
    assert sorted(thin.sizes.tolist()) == [30] * 6 + [100] * 14


def test_transform_refusals() -> None:
    fed = federation(np.arange(20) % 2)
    many = federation(np.arange(20) % 3)
    assert set(TRANSFORMS) == {"remove_positives", "flip_labels", "thin_clients"}
    refused("remove_positives: share must be in [0, 1), got 1", lambda: transforms.remove_positives(fed, 1))
    refused("flip_labels: share must be in [0, 1], got -1", lambda: transforms.flip_labels(fed, -1))
    refused("flip_labels: of 'both' is unknown", lambda: transforms.flip_labels(fed, 0.5, of="both"))
    refused("flip_labels needs two classes, got 3 classes", lambda: transforms.flip_labels(many, 0.5))
    refused("thin_clients: lose must be in [0, 1], got 7", lambda: transforms.thin_clients(fed, lose=7))
