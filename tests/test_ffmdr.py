"""FFMDR: T27-T32, its monitors and its rate; the baselines of its paper where they must agree or converge."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsaddle as fs
from fedsaddle import projections
from fedsaddle.algorithms import (
    FFMDR,
    FedNest,
    FedNormSGDA,
    FedSGDAM,
    FedSGDAPlus,
    LocalSGDA,
    MomentumLocalSGDA,
)
from fedsaddle.cohort import Batching, Cohort
from fedsaddle.errors import FedsaddleError
from fedsaddle.participation import Independent, Uniform
from fedsaddle.problems import AUC, QuadraticSaddle, quadratic_federation
from tests import harness
from tests.harness import FEATURES, FULL, clients_of, drive, federation
from tests.reference import ffmdr as ref
from tests.reference import problems as refproblems

EXACT = FFMDR(beta=0.8, solver="exact")


def quadratics() -> tuple[fs.Federation, list[tuple[np.ndarray, ...]]]:
    fed = quadratic_federation(4, 4, 3, heterogeneity=1.0, seed=1)
    return fed, [tuple(c[f][0] for f in ("A", "B", "C", "a", "b")) for c in clients_of(fed)]


def one_class() -> fs.Federation:
    """Four clients of linear AUC, each with one class, as in the paper's experiments."""
    rng = np.random.default_rng(5)
    return federation(
        *(
            {"x": rng.normal(size=(n, FEATURES)) + 0.8 * label + 0.4 * rng.normal(size=FEATURES),
             "y": np.full(n, label)}
            for n, label in ((9, 1), (12, 0), (7, 0), (10, 1))
        )
    )  # fmt: skip


def personal(lam: float = 0.0) -> np.ndarray:
    """The minimiser of mean_i max_alpha f_i + lam ||w||_1, from the closed forms."""
    clients = [(c["x"], c["y"]) for c in clients_of(one_class())]
    P, c = ref.mean_primal(ref.auc_personal(clients, 0.5))
    return ref.minimise(P, c, ref.l1_prox(lam, FEATURES) if lam else None)


def auc(regulariser: str | None = None) -> AUC:
    return AUC(nn.Linear(FEATURES, 1), p=0.5, regulariser=regulariser)


# ---------------------------------------------------------------------------------------------------- T27-T32


@pytest.mark.parametrize("server_prox", ["derived", "printed"])
def test_exact_rounds_are_textbook_douglas_rachford(server_prox: str) -> None:  # T27
    clients = [(c["x"], c["y"]) for c in clients_of(one_class())]
    lam, beta = 0.02, 0.8
    algorithm = FFMDR(beta=beta, solver="exact", server_prox=server_prox)
    run = drive(algorithm, auc(f"l1({lam})"), one_class(), 2000, batching=Batching(4))
    own = lam if server_prox == "derived" else lam / 4  # E4.2: the printed prox solves the problem with g / n
    P, c = ref.mean_primal(ref.auc_personal(clients, 0.5))
    best = ref.minimise(P, c, ref.l1_prox(own, FEATURES))
    np.testing.assert_allclose(run.z[-1][:-1], best, rtol=0, atol=1e-8)
    first, second = ref.product_proxes(ref.auc_personal(clients, 0.5), beta, 4 * own, FEATURES)
    book = ref.douglas_rachford(first, second, np.tile(np.zeros(FEATURES + 3), 4), 6)
    start = drive(
        algorithm, auc(f"l1({lam})"), one_class(), 5, batching=Batching(4), start=np.zeros(FEATURES + 4)
    )
    # a round of the book makes z from x; the library's clients first take up the server's z
    np.testing.assert_allclose(start.z[-1][:-1], book[4][2][: FEATURES + 3], rtol=0, atol=1e-12)


def test_one_client_without_g_is_the_proximal_point_method() -> None:  # T28
    fed, quads = quadratics()
    alone, w, seen = federation(clients_of(fed)[0]), np.ones(4), []
    drive(EXACT, QuadraticSaddle(4, 3), alone, 4, batching=Batching(1), start=np.ones(7),
          after=lambda s, c: seen.append(c.memory.w[0].numpy()))  # fmt: skip
    for got in seen:
        w, _ = ref.saddle_inner(quads[0], w, EXACT.beta)  # w <- prox_{beta F}(w)
        np.testing.assert_allclose(got, w, rtol=0, atol=1e-12)


def test_half_of_the_clients_have_the_same_limit() -> None:  # T29
    run = drive(EXACT, auc(), one_class(), 3000, participation=Independent(0.5), batching=Batching(4))
    np.testing.assert_allclose(run.z[-1][:-1], personal(), rtol=0, atol=1e-9)


def test_each_client_has_its_own_dual() -> None:  # T30, E4.1
    clients = [(c["x"], c["y"]) for c in clients_of(one_class())]
    run = drive(EXACT, auc(), one_class(), 3000, batching=Batching(4))
    np.testing.assert_allclose(run.z[-1][:-1], personal(), rtol=0, atol=1e-9)
    P, c = ref.auc_shared(clients, 0.5)
    shared = np.linalg.lstsq(P, -c, rcond=None)[0]
    assert np.abs(run.z[-1][:FEATURES] - shared[:FEATURES]).max() > 1e-2
    same = [clients_of(harness.binary())[2]] * 3  # where clients are alike, the two problems are one
    p = float(np.mean(same[0]["y"]))
    alike = drive(EXACT, AUC(nn.Linear(FEATURES, 1), p=p), federation(*same), 4000, batching=Batching(4))
    P, c = ref.auc_shared([(m["x"], m["y"]) for m in same], p)
    gap = P @ alike.z[-1][:-1] + c  # (the bias, a and b may shift together)
    assert np.abs(gap).max() < 1e-9


def test_the_numbers_in_the_docs() -> None:
    """The table of docs/mathematics.md: weights at the two optima, and the AUC that they have."""

    def ranked(w: np.ndarray, clients: list[Any]) -> float:
        h, y = np.concatenate([X @ w for X, _ in clients]), np.concatenate([t for _, t in clients])
        return float(np.mean(h[y == 1][:, None] > h[y != 1][None]))

    text = (Path(__file__).parents[1] / "docs/mathematics.md").read_text()
    for fed, p in ((one_class(), 0.5), (harness.binary(), None)):
        clients = [(c["x"], c["y"]) for c in clients_of(fed)]
        p = float(np.mean([y.mean() for _, y in clients])) if p is None else p
        both = ref.mean_primal(ref.auc_personal(clients, p)), ref.auc_shared(clients, p)
        own, shared = (np.linalg.lstsq(P, -c, rcond=None)[0][:FEATURES] for P, c in both)
        weights = " | ".join("(" + ", ".join(f"{v:.3f}" for v in w) + ")" for w in (own, shared))
        assert f"{weights} | {ranked(own, clients):.3f}, {ranked(shared, clients):.3f} |" in text


def test_a_fixed_point_is_stationary() -> None:  # T31
    lam = 0.02
    algorithm = FFMDR(beta=0.8, solver="exact", monitor=True)
    run = drive(algorithm, auc(f"l1({lam})"), one_class(), 3000, batching=Batching(4))
    z, memory = run.z[-1][:-1], run.clients.memory
    assert np.abs(memory.w.numpy() - z).max() < 1e-9
    clients = [(c["x"], c["y"]) for c in clients_of(one_class())]
    P, c = ref.mean_primal(ref.auc_personal(clients, 0.5))
    assert ref.stationarity(z, P @ z + c, ref.l1_prox(lam, FEATURES), 0.1) < 1e-8
    residuals = [s.monitors.fixed_point.item() for s in run.states]
    assert np.isnan(residuals[0]) and residuals[1] > 1e-2 and residuals[-1] < 1e-9


def test_sums_over_samples_are_weights() -> None:  # E4.3
    """The paper's f_i, sums, with beta and g: by samples with n beta and g / n, n the mean number of samples."""
    lam, beta, clients = 0.2, 0.1, [(c["x"], c["y"]) for c in clients_of(one_class())]
    n = [len(y) for _, y in clients]
    mean = sum(n) / 4

    def solve(k: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ref.auc_inner(*clients[k], 0.5, x, beta * n[k])  # prox of beta n_k F_k

    sums, _ = ref.ffmdr(
        None, lambda r: range(4), 4, np.zeros(FEATURES + 4), FEATURES + 3, 20, beta=beta, stop="exact",
        prox=ref.l1_prox(lam, FEATURES), solve=solve,
    )  # fmt: skip
    algorithm = FFMDR(beta=beta * mean, solver="exact", weights="samples")
    start = np.zeros(FEATURES + 4)
    run = drive(algorithm, auc(f"l1({lam / mean})"), one_class(), 20, batching=Batching(4), start=start)
    np.testing.assert_allclose(run.z[:, :-1], sums, rtol=0, atol=1e-12)
    assert np.abs(run.z[-1]).max() > 0.1


def test_weights_that_clients_apply_themselves_stay_under_a_median() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in (FFMDR, FedNormSGDA):
            run = fs.train(auc(), method(lr=0.1, weights="samples"), one_class(), rounds=2, batch_size=4,
                           aggregation="median")  # fmt: skip
            assert run.algorithm.counting == "samples"


def test_the_residual_rule_implies_criterion_10() -> None:  # T32
    """Where the rule stops a client, its distance from the exact inner solution is as criterion (10) asks."""
    algorithm = FFMDR(beta=0.8, solver="extragradient", lr=0.2, epochs=400, accuracy=0.3, tolerance=0.0)
    problem, clients = auc(), clients_of(one_class())
    old: list[Any] = []
    run = drive(
        algorithm, problem, one_class(), 3, batching=Batching(4), after=lambda s, c: old.append(c.memory)
    )
    for before, after in pairwise(old):
        for k, c in enumerate(clients):
            v, alpha = ref.auc_inner(c["x"], c["y"], 0.5, after.x[k].numpy(), algorithm.beta)
            u = np.concatenate([after.w[k], after.y[k]])
            start = np.concatenate([before.w[k], before.y[k]])
            error = np.sum((u - np.concatenate([v, alpha])) ** 2)
            assert error <= 0.3 * np.sum((start - u) ** 2)
            assert error > 1e-6 * np.sum((start - u) ** 2)  # it did stop early
    assert np.isfinite(run.z).all()


def test_after_the_last_epoch_nobody_asks_whether_to_stop(monkeypatch) -> None:
    passes, full_field = [], Cohort.full_field
    monkeypatch.setattr(Cohort, "full_field", lambda *args: passes.append(1) or full_field(*args))
    for epochs in (1, 3):
        passes.clear()
        drive(
            FFMDR(beta=0.8, lr=0.01, epochs=epochs, tolerance=0.0),
            auc(),
            one_class(),
            2,
            batching=Batching(4),
        )
        assert len(passes) == 2 * (epochs - 1)


# -------------------------------------------------------------------------------------------- solvers, monitors


@pytest.mark.parametrize("solver", ["extragradient", "saga", "sgda"])
def test_every_solver_reaches_the_same_solution(solver: str) -> None:
    """SGDA too, with minibatches of all local samples."""
    lr = 0.2 if solver != "saga" else 0.05
    algorithm = FFMDR(beta=0.8, solver=solver, lr=lr, epochs=12, stop="fixed_epochs")
    B = 12 if solver == "sgda" else 3
    run = drive(algorithm, auc(), one_class(), 200, batching=Batching(B), start=np.zeros(FEATURES + 4))
    np.testing.assert_allclose(run.z[-1][:-1], personal(), rtol=0, atol=1e-4)


def largest_curvature() -> float:
    """L of the clients' F_i."""
    parts = ref.auc_personal([(c["x"], c["y"]) for c in clients_of(one_class())], 0.5)
    return max(float(np.linalg.eigvalsh(P)[-1]) for P, _ in parts)


def test_the_potential_falls() -> None:  # Theorem 1, for a beta below 0.0549 / L
    algorithm = FFMDR(beta=0.05 / largest_curvature(), solver="exact", monitor=True)
    for server_prox in ("derived", "printed"):
        run = drive(
            replace(algorithm, server_prox=server_prox),
            auc("l1(0.02)"),
            one_class(),
            300,
            batching=Batching(4),
        )
        H = np.array([s.monitors.potential.item() for s in run.states])
        assert (np.diff(H[1:]) <= 1e-12).all() and H[1] - H[-1] > 1e-2


@pytest.mark.parametrize("server_prox", ["derived", "printed"])
def test_monitors_are_those_of_the_reference(server_prox: str) -> None:
    lam, beta, clients = 0.02, 0.8, [(c["x"], c["y"]) for c in clients_of(one_class())]
    parts = ref.auc_personal(clients, 0.5)
    start = np.linspace(-0.5, 0.5, FEATURES + 4)
    algorithm = FFMDR(beta=beta, solver="exact", server_prox=server_prox, monitor=True)
    run = drive(algorithm, auc(f"l1({lam})"), one_class(), 12, batching=Batching(4), start=start)
    _, log = ref.ffmdr(
        None, lambda r: range(4), 4, start, FEATURES + 3, 12, beta=beta, stop="exact", server_prox=server_prox,
        prox=ref.l1_prox(lam, FEATURES), solve=lambda k, x: ref.auc_inner(*clients[k], 0.5, x, beta),
    )  # fmt: skip
    for r in range(1, 12):
        got = run.states[r].monitors
        H = ref.potential(
            log[r], log[r - 1], lambda k, w: w @ parts[k][0] @ w / 2 + parts[k][1] @ w,
            lambda z: lam * np.abs(z[:FEATURES]).sum(), beta=beta, form=server_prox, dual_term=False,
        )  # fmt: skip
        expected = log[r]["move"], log[r - 1]["fixed_point"], H
        np.testing.assert_allclose([v.item() for v in got], expected, rtol=0, atol=1e-12)


def test_the_iterates_converge_linearly() -> None:
    """Theorem 3 (ii): the problem has the KL exponent 1/2, so log ||z_r - z*|| falls along a line."""
    run = drive(EXACT, auc("l1(0.02)"), one_class(), 1200, batching=Batching(4))
    error = np.linalg.norm(run.z[:600] - run.z[-1], axis=1)
    rounds = np.flatnonzero((error < 1e-2) & (error > 1e-9))
    slope, intercept = np.polyfit(rounds, np.log(error[rounds]), 1)
    wrong = np.log(error[rounds]) - (slope * rounds + intercept)
    assert len(rounds) > 50 and slope < -0.01
    assert np.abs(wrong).max() < 1.0  # over a fall by seven orders of magnitude


def test_monitors_are_in_the_records() -> None:
    def metrics(**options: Any) -> dict[str, Any]:
        return fs.train(auc(), FFMDR(lr=0.1, **options), one_class(), rounds=3, batch_size=4).metrics

    found = metrics(monitor=True)
    assert found["move"] > 0 and found["fixed_point"] > 0 and np.isfinite(found["potential"])
    assert not {"move", "fixed_point", "potential"} & metrics().keys()


def test_what_reads_the_dual_is_not_reported() -> None:
    """The server has no y: what is measured at y_0 would be of no problem."""
    fed, _ = quadratics()
    options: dict[str, Any] = dict(rounds=2, batch_size=1, dtype="float64")
    problem, algorithm = QuadraticSaddle(4, 3), FFMDR(stop="fixed_epochs")
    assert not {"distance", "field_norm"} & fs.train(problem, algorithm, fed, **options).metrics.keys()
    assert {"distance", "field_norm"} <= fs.train(problem, LocalSGDA(), fed, **options).metrics.keys()

    def loss(x: Any, y: Any, batch: Any) -> Any:
        return (batch["x"] @ x - batch["y"]) * y - y**2 / 2

    def told(x: Any, y: Any, data: Any) -> dict[str, float]:
        return {"size": x.norm(), "height": y.norm()}

    own = fs.Custom(loss, size_x=FEATURES, size_y=1, metrics=told)
    seen = fs.train(own, algorithm, one_class(), **options).metrics
    assert seen["size"] > 0 and seen["height"] is None and "field_norm" not in seen
    plain = fs.Custom(lambda x, y, b: (b["x"] @ x - b["y"]) ** 2, size_x=FEATURES)
    assert fs.train(plain, algorithm, one_class(), **options).metrics["field_norm"] > 0


def test_the_potential_counts_a_regulariser_of_ones_own_problem() -> None:
    def loss(x: Any, y: Any, batch: Any) -> Any:
        return (batch["x"] @ x - batch["y"]) * y - y**2 / 2

    z = torch.tensor([[2.0, -1.0, 0.5, 9.0]])
    own = [
        fs.Custom(loss, FEATURES, 1, prox_x=g) for g in ("l1(0.2)", "box(-3, 3)", "ball(10)", lambda v, lr: v)
    ]
    np.testing.assert_allclose([p.penalty(z).item() for p in own], [0.7, 0, 0, 0], atol=1e-6)
    moved = replace(own[0], start=torch.zeros(4))  # as engines make it anew
    assert moved.penalty(z).item() == own[0].penalty(z).item()


def test_a_network_is_warned_of_the_modulus() -> None:
    network = AUC(nn.Sequential(nn.Linear(FEATURES, 3), nn.Tanh(), nn.Linear(3, 1)), p=0.5)
    with pytest.warns(UserWarning, match="give modulus, or use stop = 'fixed_epochs'"):
        FFMDR().check(network)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for algorithm, problem in (
            (FFMDR(), auc()),
            (FFMDR(modulus=0.1), network),
            (FFMDR(stop="fixed_epochs"), network),
            (FFMDR(), AUC(nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 1)), p=0.5)),
        ):
            algorithm.check(problem)


@pytest.mark.parametrize(
    ("prox", "refused"),
    [("l1(3)", True), ("l2(3)", True), ("elastic_net(1, 1)", True), ("group_lasso(1, 2)", True),
     (lambda v, lr: v / (1 + lr), True), ("box(-1, 1)", False), ("ball(1)", False), ("simplex", False), (None, False)],
)  # fmt: skip
def test_a_regulariser_of_y_is_refused(prox: Any, refused: bool) -> None:
    """Clients would drop it: the prox of a step of 0 is the identity."""
    problem = fs.Custom(bilinear, FEATURES, 2, prox_x="l1(0.1)", prox_y=prox)
    if not refused:
        return FFMDR().check(problem)
    with pytest.raises(
        fs.FedsaddleError, match=r"takes projections of y alone.*write that term into the loss"
    ):
        FFMDR().check(problem)


def test_clients_that_stopped_stay_where_they_are() -> None:
    """One epoch is enough for a loose rule: more allowed epochs change nothing."""
    few, many = (
        drive(FFMDR(beta=0.8, lr=0.05, epochs=epochs, tolerance=1e3), auc(), one_class(), 4, batching=Batching(4),
              start=np.ones(FEATURES + 4)).z
        for epochs in (1, 7)
    )  # fmt: skip
    np.testing.assert_array_equal(few, many)


# -------------------------------------------------------------------------------------------------- baselines


def distances(algorithm: fs.Algorithm, rounds: int = 250) -> tuple[float, float, float]:
    """From the saddle, at the start and at the end; and how far the last round went."""
    fed, quads = quadratics()
    saddle = refproblems.quadratic_saddle(quads)
    batching = Batching(1) if isinstance(algorithm, FedNormSGDA) else FULL
    z = drive(algorithm, QuadraticSaddle(4, 3), fed, rounds, batching=batching).z
    start, end, last = np.abs(saddle).max(), np.abs(z[-1] - saddle).max(), np.abs(z[-1] - z[-2]).max()
    return float(start), float(end), float(last)


@pytest.mark.parametrize(
    ("algorithm", "exact"),
    [
        (MomentumLocalSGDA(lr=0.1, local_steps=1), True),
        (MomentumLocalSGDA(lr=0.1, local_steps=8), False),
        (FedNormSGDA(lr=0.1, local_steps=1), True),
        (FedNormSGDA(lr=0.1, local_steps=8), False),
        (FedSGDAPlus(lr=0.1, local_steps=1, refresh=3), True),
        (FedSGDAPlus(lr=0.1, local_steps=8, refresh=3), False),
        (FedSGDAM(lr=0.05, local_steps=1), True),
        (FedSGDAM(lr=0.1, local_steps=3), False),
        (FedNest(lr=0.3, local_steps=10), True),
        (FedNest(lr=0.3, local_steps=10, corrected=False), False),
    ],
    ids=lambda v: "" if isinstance(v, bool) else f"{type(v).__name__}-{v.local_steps}",
)
def test_who_reaches_the_saddle(algorithm: fs.Algorithm, exact: bool) -> None:
    """Or else stops at a bias, nearer than it began."""
    start, end, last = distances(algorithm)
    assert end < 1e-6 if exact else 1e-3 < end < start and last < 1e-9


@pytest.mark.parametrize(
    "algorithm",
    [FedNest(lr=0.5, local_steps=4), fs.CODASCA(lr=0.1, local_steps=4, output="last")],
    ids=["FedNest", "CODASCA"],
)
def test_corrected_steps_with_an_l1_term_reach_the_optimum(algorithm: fs.Algorithm) -> None:
    """Proximal local steps: the minimiser of the shared-dual objective with g, zeros included."""
    lam, clients = 0.1, [(c["x"], c["y"]) for c in clients_of(one_class())]
    P, c = ref.auc_shared(clients, 0.5)
    best = ref.minimise(P, c, ref.l1_prox(lam, FEATURES))
    assert (best[:FEATURES] == 0).any() and (best[:FEATURES] != 0).any()
    run = drive(algorithm, auc(f"l1({lam})"), one_class(), 1500, batching=FULL)
    np.testing.assert_allclose(run.z[-1][:FEATURES], best[:FEATURES], rtol=0, atol=1e-6)


def same(
    a: fs.Algorithm, b: fs.Algorithm, fed: fs.Federation | None = None, rounds: int = 12, **more: Any
) -> None:
    options: dict[str, Any] = dict(start=harness.TWINS["auc"].z0(), participation=harness.Full(), **more)
    one, other = (
        drive(x, AUC(nn.Linear(FEATURES, 1), p=0.4), fed or harness.binary(), rounds, **options).z
        for x in (a, b)
    )
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_equal_steps_make_fed_norm_sgda_local_sgda() -> None:
    same(FedNormSGDA(lr=0.1, lr_dual=0.2, local_steps=3), LocalSGDA(lr=0.1, lr_dual=0.2, local_steps=3))


def bilinear(x: torch.Tensor, y: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (batch["x"] @ x - batch["y"]) * y.sum() - (y**2).sum() / 2


def test_one_step_makes_fed_norm_sgda_local_sgda_with_steps_and_proxes_of_their_own() -> None:
    """The prox of y follows its own step. With several clients only where it is linear: the mean comes before it."""
    alone = federation(clients_of(harness.binary())[2])
    for fed, on_x, on_y in (
        (alone, "l1(0.1)", "elastic_net(0.2, 0.5)"),
        (harness.binary(), "l2(0.4)", "l2(0.7)"),
    ):
        problem = fs.Custom(bilinear, FEATURES, 2, prox_x=on_x, prox_y=on_y, start=torch.ones(FEATURES + 2))
        steps = dict(lr=0.1, lr_dual=0.3, local_steps=1)
        one, other = (
            drive(method(**steps), problem, fed, 12, participation=harness.Full()).z
            for method in (FedNormSGDA, LocalSGDA)
        )
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
        assert np.abs(one[-1, FEATURES:]).max() > 0  # y is not all shrunk away


def test_momentum_above_one_is_a_moving_average_still() -> None:
    """Only the product with mixing is: at 1 it forgets, and the first round is Local SGDA with steps of half the size."""
    fast = MomentumLocalSGDA(lr=0.2, local_steps=3, mixing=0.5, momentum=2.0)
    same(fast, LocalSGDA(lr=0.1, local_steps=3), rounds=1)


def test_unequal_steps_do_not() -> None:
    """But clients of equal sizes take equally many in an epoch."""
    rng = np.random.default_rng(3)
    equal = federation(*({"x": rng.normal(size=(8, FEATURES)), "y": np.arange(8) % 2} for _ in range(3)))
    methods = FedNormSGDA(lr=0.1, local_epochs=1), LocalSGDA(lr=0.1, local_steps=2)
    same(*methods, fed=equal)
    with pytest.raises(AssertionError):
        same(*methods)


def test_a_fresh_snapshot_and_one_step_make_fedsgda_plus_local_sgda() -> None:
    same(
        FedSGDAPlus(lr=0.1, lr_dual=0.2, local_steps=1, refresh=1),
        LocalSGDA(lr=0.1, lr_dual=0.2, local_steps=1),
    )


def test_storm_without_memory_is_momentum_without_memory() -> None:
    same(FedSGDAM(lr=0.1, local_steps=3, alpha=1.0), MomentumLocalSGDA(lr=0.1, local_steps=3, momentum=1.0))


def test_the_first_round_of_momentum_one_is_local_sgda() -> None:
    same(MomentumLocalSGDA(lr=0.1, local_steps=3, momentum=1.0), LocalSGDA(lr=0.1, local_steps=3), rounds=1)


def test_momentum_one_on_one_client_is_local_sgda() -> None:
    alone = federation(clients_of(harness.binary())[2])
    same(MomentumLocalSGDA(lr=0.1, local_steps=3, momentum=1.0), LocalSGDA(lr=0.1, local_steps=3), fed=alone,
         batching=FULL)  # fmt: skip


# ------------------------------------------------------------------------------------------------- regularisers


@pytest.mark.parametrize(
    "spec", ["l1(0.3)", "l2(0.7)", "elastic_net(0.2, 0.5)", "box(-0.4, 0.6)", "group_lasso(0.5, 3)"]
)
def test_a_prox_minimises_what_it_says(spec: str) -> None:
    """prox(v) is no worse than points around it for step g(u) + ||u - v||^2 / 2."""
    g = projections.regulariser(spec)
    rng = torch.Generator().manual_seed(0)
    v, step = torch.randn(50, 7, generator=rng, dtype=torch.float64), 0.8
    u = g.prox(v, step)

    def value(u: torch.Tensor) -> torch.Tensor:
        return step * g.value(u) + ((u - v) ** 2).sum(-1, keepdim=True) / 2

    for size in (1e-3, 0.1, 1.0):
        for _ in range(20):
            near = u + size * torch.randn(u.shape, generator=rng, dtype=torch.float64)
            if spec.startswith("box"):
                near = near.clamp(-0.4, 0.6)
            assert (value(near) >= value(u) - 1e-12).all()
    assert (u != v).any()


def test_only_weights_are_regularised() -> None:
    problem = AUC(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)), p=0.3, regulariser="l1(10)")
    z = problem.prox(torch.ones(1, problem.n_x + 1), 1.0)
    kept = z[0].nonzero().squeeze(-1).tolist()
    assert kept == [6, 7, 10, 11, 12, 13]  # two biases, one bias, a, b, alpha
    assert problem.penalty(torch.ones(1, problem.n_x + 1)).item() == 80.0


def test_an_l1_weight_makes_zeros() -> None:
    run = drive(EXACT, auc("l1(0.3)"), one_class(), 400, batching=Batching(4))
    assert (run.z[-1][:FEATURES] == 0).any()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FFMDR(beta=0.0), "beta must be > 0, got 0.0"),
        (
            lambda: FFMDR(solver="newton"),
            "solver must be one of sgda, extragradient, saga, exact, got 'newton'",
        ),
        (lambda: FFMDR(accuracy=5.0), "accuracy must be at most 1, got 5.0"),
        (lambda: FFMDR(epochs=2.5), "epochs must be whole, got 2.5"),
        (lambda: MomentumLocalSGDA(mixing=5.0), "mixing must be at most 1, got 5.0"),
        (
            lambda: MomentumLocalSGDA(mixing=0.5, momentum_dual=2.5),
            "momentum_dual times mixing must be at most 1, got 2.5 times 0.5; lower one",
        ),
        (lambda: FedSGDAM(alpha=1.5), "alpha must be at most 1, got 1.5"),
        (lambda: FFMDR(solver="exact").check(AUC(nn.Linear(5000, 1), p=0.5)), "got d = 5,004; use 'sgda'"),
        (lambda: FFMDR(relaxation=2.0), "relaxation must be below 2, got 2.0"),
        (lambda: FFMDR(stop="never"), "stop must be one of residual, fixed_epochs"),
        (lambda: auc("l7(1)"), "prox: unknown name 'l7'"),
        (lambda: auc("l1(-1)"), "l1: weight must be >= 0, got -1.0"),
        (lambda: auc("group_lasso(0.1, 2.5)"), "size a whole number >= 1, got 0.1 and 2.5"),
        (lambda: FFMDR(weights="all"), "weights must be 'clients' or 'samples', got 'all'"),
        (lambda: FedNormSGDA(weights="all"), "weights must be 'clients' or 'samples', got 'all'"),
    ],
)
def test_refusals(make: Any, says: str) -> None:
    with pytest.raises(FedsaddleError) as error:
        make()
    assert says in str(error.value)


def test_saga_renews_a_sample_once_however_often_it_was_drawn() -> None:
    algorithm = FFMDR(beta=0.8, solver="saga", lr=0.05, epochs=30, stop="fixed_epochs")
    run = drive(algorithm, auc(), one_class(), 150, batching=Batching(20, "with_replacement"))
    np.testing.assert_allclose(run.z[-1][:-1], personal(), rtol=0, atol=1e-5)


def test_all_samples_in_a_step_are_an_epoch_of_one_step() -> None:
    for algorithm in (
        FFMDR(lr=0.1, epochs=3),
        FFMDR(lr=0.1, solver="saga"),
        FedNormSGDA(lr=0.1, local_epochs=2),
    ):
        assert np.isfinite(drive(algorithm, auc(), one_class(), 3, batching=FULL).z).all()


def test_exact_solves_are_exact_in_single_precision_too() -> None:
    """A large beta makes the system badly conditioned."""
    fed = fs.data.load("breast_cancer").federation("one_class", clients=10).scaled("standard")

    def ends(dtype: str) -> np.ndarray:
        torch.manual_seed(0)
        problem = AUC(nn.Linear(30, 1), regulariser="l1(0.001)", monitors=False)
        run = fs.train(problem, FFMDR(beta=500.0, solver="exact"), fed, rounds=100, dtype=dtype).finish()
        assert run.clients.memory.inverse.dtype == torch.float64 and run.z.dtype == getattr(torch, dtype)
        return run.z.double().numpy()

    single, double = ends("float32"), ends("float64")
    assert np.linalg.norm(single - double) < 5e-6 * np.linalg.norm(double)


def test_the_exact_solver_knows_no_constraints() -> None:
    problem = fs.Custom(
        lambda x, y, b: (b["x"] @ x - b["y"]) * y - y**2 / 2,
        size_x=FEATURES,
        size_y=1,
        prox_y="box(-0.01, 0.01)",
    )
    with pytest.raises(FedsaddleError, match="knows no constraint on y, which is active here; use 'sgda'"):
        fs.train(problem, FFMDR(solver="exact"), one_class(), rounds=3, dtype="float64").finish()


def test_the_potential_is_not_known_where_some_clients_are_absent() -> None:
    metrics = fs.train(
        auc(), FFMDR(lr=0.1, monitor=True), one_class(), rounds=2, batch_size=4, participation=Uniform(2)
    ).metrics
    assert metrics["potential"] is None and metrics["move"] > 0


def test_what_does_not_fit_is_refused() -> None:
    fed, _ = quadratics()
    for problem, algorithm, says in (
        (
            QuadraticSaddle(4, 3),
            FFMDR(),
            "the strong concavity of QuadraticSaddle is not known; give modulus",
        ),
        (
            AUC(nn.Sequential(nn.Linear(FEATURES, 3), nn.Tanh(), nn.Linear(3, 1)), p=0.5),
            EXACT,
            "needs a saddle field",
        ),
        (fs.ERM(nn.Linear(FEATURES, 1)), FedNest(), "has no dual variable to nest"),
    ):
        data = fed if isinstance(problem, QuadraticSaddle) else one_class()
        with pytest.raises(FedsaddleError, match=says):
            fs.train(problem, algorithm, data, rounds=1, participation=Uniform(2)).finish()
