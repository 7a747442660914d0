"""AUC from histograms: the bound holds for every distribution of scores, and the target is met."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsaddle.errors import FedsaddleError
from fedsaddle.histograms import auc_from_histograms, edges, federated_auc, score_histogram, sketch
from fedsaddle.metrics import auc

Sites = list[tuple[Tensor, Tensor]]
ROUNDING = 1e-12


def pooled(sites: Sites) -> float:
    return auc(torch.cat([s.double() for s, _ in sites]), torch.cat([p for _, p in sites]))


def drawn(name: str, sites: int = 4, n: int = 3000) -> Sites:
    g = torch.Generator().manual_seed(1)
    out = []
    for k in range(sites):
        positive = torch.rand(n, generator=g) < 0.02 + 0.1 * k
        noise = torch.randn(n, generator=g, dtype=torch.float64)
        if name == "constant":
            scores = torch.full((n,), 0.3)
        elif name == "two atoms":
            scores = ((noise + positive) > 0.5).float()
        elif name == "heavy tails":
            scores = (noise / torch.rand(n, generator=g, dtype=torch.float64) ** 4) + positive
        elif name == "another scale":
            scores = (noise + 1.5 * positive) * (1e6 if k == 1 else 1e-6 if k == 2 else 1.0)
        elif name == "separated":
            scores = noise + 8 * positive
        elif name == "atom among others":
            scores = torch.where(torch.rand(n, generator=g) < 0.6, 0.0, noise + positive)
        elif name == "infinite":
            scores = torch.where(noise > 1, torch.inf, torch.where(noise < -1, -torch.inf, noise + positive))
        else:
            scores = (noise + positive).float()
        out.append((scores, positive))
    return out


KINDS = [
    "constant",
    "two atoms",
    "heavy tails",
    "another scale",
    "separated",
    "atom among others",
    "infinite",
    "usual",
]


@pytest.mark.parametrize("target", [1e-2, 1e-3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_met_whatever_the_scores(kind: str, target: float) -> None:
    sites = drawn(kind)
    estimate, own = federated_auc(sites, target)
    assert estimate.bound <= target
    assert abs(estimate.auc - pooled(sites)) <= estimate.bound + ROUNDING
    assert own == [auc(*site) for site in sites]
    assert len(edges([sketch(*s, target) for s in sites], target)) <= 1 / target
    if kind in ("constant", "two atoms"):  # ties at an edge are known, not guessed
        assert estimate.bound == pytest.approx(0, abs=ROUNDING)
        assert estimate.auc == pytest.approx(pooled(sites), abs=ROUNDING)


def test_classes_that_overlap_less_need_fewer_bins() -> None:
    cuts = {
        kind: len(edges([sketch(*s) for s in drawn(kind)])) for kind in ("usual", "separated", "constant")
    }
    assert cuts["constant"] == 1
    assert cuts["separated"] < 0.75 * cuts["usual"]


def test_the_bound_is_the_pairs_inside_intervals() -> None:
    sites = drawn("atom among others")
    cuts = torch.tensor([-1.0, 0.0, 0.7, 2.0])
    total = torch.stack([score_histogram(*s, cuts) for s in sites]).sum(0).double()
    negative, positive = total[0], total[1]
    inside = (negative * positive)[::2].sum() / (negative.sum() * positive.sum())
    assert auc_from_histograms([score_histogram(*s, cuts) for s in sites]).bound == pytest.approx(
        float(inside) / 2
    )


def test_the_bound_is_reached() -> None:
    """Positives at the bottom of their interval, negatives at the top: no smaller bound would be true."""
    scores, positive = torch.tensor([0.1, 0.2, 0.8, 0.9]), torch.tensor([True, True, False, False])
    estimate = auc_from_histograms([score_histogram(scores, positive, torch.tensor([]))])
    assert estimate == (0.5, 0.5)
    assert auc(scores, positive) == estimate.auc - estimate.bound


levels = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(allow_nan=False, width=32),
    st.sampled_from([0.0, -0.0, 1e-300, -1e300, float("inf"), float("-inf")]),
)
site = st.lists(st.tuples(levels, st.booleans()), min_size=0, max_size=40)


def as_site(rows: list[tuple[float, bool]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([s for s, _ in rows], dtype=torch.float64), torch.tensor(
        [p for _, p in rows], dtype=torch.bool
    )


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(site, min_size=1, max_size=4),
    target=st.sampled_from([0.5, 0.2, 0.05, 1e-3]),
    minimum=st.integers(1, 8),
)
def test_the_bound_always_holds(rows: list[list[tuple[float, bool]]], target: float, minimum: int) -> None:
    sites = [as_site(r) for r in rows]
    estimate, _ = federated_auc(sites, target, minimum)
    exact = pooled(sites)
    if exact != exact:
        assert estimate.auc != estimate.auc
        return
    assert abs(estimate.auc - exact) <= estimate.bound + ROUNDING
    assert estimate.bound <= 0.5 + ROUNDING
    if minimum == 1:
        assert estimate.bound <= target + ROUNDING


@settings(max_examples=300, deadline=None)
@given(
    rows=site,
    cuts=st.lists(st.integers(-4, 4), unique=True, max_size=6).map(sorted),
    minimum=st.integers(1, 8),
)
def test_counts_that_leave_are_complete_and_none_is_small(
    rows: list[tuple[float, bool]], cuts: list[int], minimum: int
) -> None:
    scores, positive = as_site(rows)
    negatives, positives, begins = score_histogram(
        scores, positive, torch.tensor(cuts, dtype=torch.float64), minimum
    )
    assert len(begins) == 2 * len(cuts) + 1
    for counts, size in ((negatives, int((~positive).sum())), (positives, int(positive.sum()))):
        assert counts.sum() == size
        assert not counts[begins == 0].any()
        if size >= minimum and min((~positive).sum(), positive.sum()) >= minimum:
            assert all(c == 0 or c >= minimum for c in counts.tolist())


@given(n=st.integers(0, 200), minimum=st.integers(1, 9))
def test_a_sketch_leaves_enough_scores_between_its_points(n: int, minimum: int) -> None:
    scores = torch.randperm(n).double()  # the score is its own rank
    points = sketch(scores, torch.zeros(n, dtype=torch.bool), 0.1, minimum)["negative"]
    gaps = torch.cat([torch.tensor([-1.0]).double(), points, torch.tensor([float(n)]).double()]).diff() - 1
    assert len(points) <= 10
    assert (gaps <= n // (len(points) + 1)).all()
    assert len(points) == 0 or (gaps >= minimum - 1).all()


def test_an_estimate_with_joined_bins_stays_useful() -> None:
    sites = drawn("usual")
    estimate, _ = federated_auc(sites, 1e-3, minimum=5)
    assert 1e-3 < estimate.bound < 3e-2
    assert abs(estimate.auc - pooled(sites)) < 2e-3


def test_refusals() -> None:
    scores, positive = torch.tensor([0.1, float("nan")]), torch.tensor([True, False])
    for call, text in (
        (lambda: sketch(scores, positive), "scores has NaN at row 1"),
        (lambda: sketch(scores, positive, 0.0), "target must be in (0, 0.5], got 0.0"),
        (lambda: score_histogram(scores, positive, scores[:1], 0), "minimum must be >= 1, got 0"),
        (lambda: auc_from_histograms([torch.ones(3, 3), torch.ones(3, 5)]), "must all be on the same edges"),
    ):
        with pytest.raises(FedsaddleError) as info:
            call()
        assert text in str(info.value)
