"""Rules in place of the mean: against plain NumPy, and with two of twenty clients that send garbage."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import harness
import numpy as np
import pytest
import torch

import fedsaddle as fs
from fedsaddle import aggregation
from fedsaddle.clients import Task, Work
from fedsaddle.engines.simulation import Simulation
from fedsaddle.errors import FedsaddleError
from fedsaddle.messages import Each
from fedsaddle.participation import Draw
from fedsaddle.problem import tree_map

RULES = ["median", "trimmed_mean(0.1)", "norm_clipping(1)"]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 11])
def test_rules_are_what_they_say(n: int) -> None:
    rng = np.random.default_rng(n)
    rows, w = rng.standard_normal((n, 5)), rng.random(n)
    replies, weights = torch.from_numpy(rows), torch.from_numpy(w)

    def by(spec: str) -> np.ndarray:
        rule = aggregation.named(spec)
        assert rule is not None
        return rule(replies, weights).squeeze(0).numpy()

    centre = np.median(rows, axis=0)
    np.testing.assert_allclose(by("median"), centre, atol=1e-12)
    cut = int(np.ceil(0.2 * n))
    if n > 2 * cut:
        order = rows.argsort(0)[cut : n - cut]
        expected = [np.average(rows[at, j], weights=w[at]) for j, at in enumerate(order.T)]
        np.testing.assert_allclose(by("trimmed_mean(0.2)"), expected, atol=1e-12)
    else:
        np.testing.assert_allclose(by("trimmed_mean(0.2)"), centre, atol=1e-12)
    length = np.linalg.norm(rows - centre, axis=1)
    scale = np.minimum(1, 1.5 * np.median(length) / np.maximum(length, 1e-300))
    expected = centre + np.average((rows - centre) * scale[:, None], axis=0, weights=w)
    np.testing.assert_allclose(by("norm_clipping(1.5)"), expected, atol=1e-12)


@pytest.mark.parametrize("spec", RULES)
def test_replicas_and_replies_that_do_not_count(spec: str) -> None:
    rule = aggregation.named(spec)
    assert rule is not None
    replies = torch.randn(3, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.ones(3, 7, dtype=torch.float64)
    alone = torch.cat([rule(r, w) for r, w in zip(replies, weights, strict=True)])
    torch.testing.assert_close(rule(replies, weights).squeeze(1), alone)
    more = torch.cat([replies, replies.new_full((3, 2, 4), torch.nan)], dim=-2)
    more[:, -1] = 1e9
    at_zero = torch.cat([weights, weights.new_tensor([[1.0, 0.0]]).expand(3, -1)], dim=-1)
    torch.testing.assert_close(rule(more, at_zero), rule(replies, weights))


class Spoiled(Simulation):
    """Clients 3 and 11 send garbage: what they computed, a million times as large and of the other sign."""

    def _run(self, work: Work, message: Any, who: Draw, phase: int) -> Iterator[tuple[np.ndarray, Any]]:
        for at, replies in super()._run(work, message, who, phase):
            bad = torch.from_numpy(np.isin(who.ids[at], [3, 11]) & (self.round >= 0)).unsqueeze(-1)

            def spoil(r: torch.Tensor, bad: torch.Tensor = bad) -> torch.Tensor:
                return torch.where(bad, -1e6 * r - 1e3, r)

            yield at, tree_map(spoil, replies)


def distance(algorithm: fs.Algorithm, rule: str, kind: type[Simulation]) -> float:
    """From the saddle, after 80 rounds of twenty clients that differ little."""
    federation = fs.quadratic_federation(clients=20, heterogeneity=0.05)
    problem = fs.QuadraticSaddle()
    named = aggregation.named(rule)
    clients = kind(Task(problem, federation, fs.Full(), harness.FULL, dtype=torch.float64, aggregation=named))
    clients.problem = clients.problem.prepare(clients)
    z = clients.problem.init().double().unsqueeze(0)
    s = algorithm.init(z, clients.problem)
    clients.remember(algorithm.memory(z, clients.problem))
    for r in range(80):
        clients.begin(r)
        s = algorithm.round(s, clients)
    saddle = clients.problem.saddle(federation)
    return float((s.z[0] - torch.as_tensor(saddle)).norm()) if s.z.isfinite().all() else np.inf


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "algorithm",
    [
        fs.LocalSGDA(lr=0.05, local_steps=5),
        fs.CODASCA(lr=0.05, local_steps=5),
        fs.SCAFFOLD(lr=0.05, local_steps=5),
        fs.FedSGDA(lr=0.05, local_steps=5),
    ],
    ids=lambda a: type(a).__name__,
)
def test_two_of_twenty_clients_send_garbage(algorithm: fs.Algorithm, rule: str) -> None:
    assert distance(algorithm, "mean", Spoiled) > 10
    honest = distance(algorithm, rule, Simulation)
    assert honest < 0.2
    assert distance(algorithm, rule, Spoiled) < honest + 0.2


@pytest.mark.parametrize("chunk", [None, 3])
def test_rows_of_single_clients_pass_by_in_order(chunk: int | None) -> None:
    federation = harness.binary()
    problem = fs.AUC(torch.nn.Linear(harness.FEATURES, 1), p=0.5)
    clients = harness.connect(problem, federation, chunk=chunk, aggregation=aggregation.named("median"))
    clients.begin(0)

    def work(cohort: Any, message: Any) -> tuple[Any, None]:
        own = cohort.ids.double().unsqueeze(-1)
        return (own, Each(own)), None

    (middle, rows), _ = clients.mean(work, None)
    n = federation.n_clients
    assert middle.item() == (n - 1) / 2
    assert rows.squeeze(-1).tolist() == list(range(n))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("krum", "aggregation: unknown name 'krum'; known are median, trimmed_mean, norm_clipping"),
        ("trimmed_mean(0.7)", r"must be in \(0, 0.5\), got 0.7"),
        ("norm_clipping(0)", "must be > 0, got 0"),
        ("median(1)", "is not a valid call"),
    ],
)
def test_refusals(spec: str, says: str) -> None:
    with pytest.raises(FedsaddleError, match=says):
        fs.train(fs.QuadraticSaddle(), fs.LocalSGDA(), fs.quadratic_federation(), rounds=1, aggregation=spec)


def test_a_median_that_ignores_weights_says_so() -> None:
    fed = fs.Federation.from_arrays(np.eye(6), np.arange(6) % 2, clients=[0, 0, 0, 1, 1, 2])

    def z(weights: str, **options: str) -> torch.Tensor:
        torch.manual_seed(0)
        algorithm = fs.SCAFFOLD(lr=0.1, local_steps=2, weights=weights)  # c moves by the participants' share
        problem, some = fs.ERM(torch.nn.Linear(6, 1)), fs.Uniform(2)
        return fs.train(problem, algorithm, fed, rounds=4, participation=some, **options).z

    with pytest.warns(
        UserWarning, match="the median counts every reply once, so weights = 'samples' has no effect"
    ):
        found = z("samples", aggregation="median")
    assert torch.equal(found, z("clients", aggregation="median")) and not torch.equal(
        z("samples"), z("clients")
    )
    with pytest.warns(UserWarning, match="so the samples that clients count by have no effect"):
        fs.train(
            fs.ERM(torch.nn.Linear(6, 1)), fs.DeltaFL(lr=0.1), fed, rounds=1, aggregation="median"
        ).finish()


ROBUST = [fs.ScaffPD(local_steps=2), fs.AgnosticFL(local_steps=2), fs.AgnosticFedAvg(local_steps=2)]


@pytest.mark.parametrize("algorithm", [*ROBUST, fs.DRFA(local_steps=2)], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("rule", ["mean", "trimmed_mean(0.3)"])
def test_replies_that_no_rule_guards_are_told_of_once_each(algorithm: fs.Algorithm, rule: str) -> None:
    federation = harness.binary()

    def z(aggregation: str) -> torch.Tensor:
        torch.manual_seed(0)
        problem = fs.ERM(torch.nn.Linear(harness.FEATURES, 1))
        return fs.train(problem, algorithm, federation, rounds=3, aggregation=aggregation).z

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = z(rule)
    said = [str(w.message) for w in caught if "aggregation has no part in it" in str(w.message)]
    works = {"ScaffPD": ["losses_and_gradients", "corrected_steps"], "DRFA": ["loss_at_snapshot"]}
    name = type(algorithm).__name__
    expected = works.get(name, ["local_descent"]) if rule != "mean" else []
    assert [text.partition(" as it is")[0] for text in said] == [
        f"{name}: takes what each client answers to {work}" for work in expected
    ]
    if algorithm in ROBUST:
        assert torch.equal(found, z("mean"))
