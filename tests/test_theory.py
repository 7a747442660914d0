"""Constants against problems where they are known, steps against the papers' formulas by hand, and whether they hold."""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch

from fedsaddle import theory
from fedsaddle.algorithms import ALGORITHMS, CODASCA, NPA, SCAFFOLD, CODAPlus, FedSGDA
from fedsaddle.errors import FedsaddleError
from fedsaddle.problems import (
    AUC,
    ERM,
    Custom,
    NonconvexPL,
    QuadraticSaddle,
    nonconvex_pl_federation,
    quadratic_federation,
)
from fedsaddle.theory import THEOREMS, Constants, Setting, compare, measure, prescribe, probe
from tests.harness import FULL, binary, drive, federation

BLOCKS = ("L_1", "L_2", "L_12", "L_21", "L", "mu", "mu_x")
ONE = Constants.smooth(L=1.0, mu=1.0, pl=1.0, mu_x=1.0, sigma=1.0, zeta_x=1.0, zeta_y=0.5, G=2.0)


# ------------------------------------------------------------------------------------------ known constants


def of_hessians(hessians, n_x):
    """The constants, from the Hessians [d, d] of the functions that they are the worst of."""
    norm = lambda M: np.linalg.norm(M, 2) if M.size else 0.0
    return {
        "L_1": max(norm(H[:n_x, :n_x]) for H in hessians),
        "L_2": max(norm(H[n_x:, n_x:]) for H in hessians),
        "L_12": max(norm(H[:n_x, n_x:]) for H in hessians),
        "L_21": max(norm(H[n_x:, :n_x]) for H in hessians),
        "L": max(norm(H) for H in hessians),
        "mu": min(np.linalg.eigvalsh(-H[n_x:, n_x:]).min(initial=np.inf) for H in hessians),
        "mu_x": min(np.linalg.eigvalsh(H[:n_x, :n_x]).min() for H in hessians),
    }


def quadratic_hessians(fed):
    out = []
    for i in range(fed.n_clients):
        A, B, C = (fed.client(i)[k].double().mean(0).numpy() for k in "ABC")
        out.append(np.block([[A, B], [B.T, -C]]))
    return out


def agree(constants, expected, rtol):
    for name, value in expected.items():
        assert getattr(constants, name) == pytest.approx(value, rel=rtol, abs=1e-9), name
        assert constants.source(name) == "estimated"


@pytest.mark.parametrize("of", ["clients", "mean"])
@pytest.mark.parametrize("dense, rtol", [(256, 1e-9), (4, 1e-6), (0, 1e-6)], ids=["dense", "dual", "lanczos"])
def test_quadratic(of, dense, rtol):
    fed = quadratic_federation(5, 7, 4, samples=3, noise=0.5, seed=1)
    hessians = quadratic_hessians(fed)
    hessians = hessians if of == "clients" else [np.mean(hessians, 0)]
    agree(probe(QuadraticSaddle(7, 4), fed, of=of, dense=dense), of_hessians(hessians, 7), rtol)


def test_the_mean_and_the_clients_differ():
    fed = quadratic_federation(5, 7, 4, heterogeneity=2.0)
    mean, each = (probe(QuadraticSaddle(7, 4), fed, of=of) for of in ("mean", "clients"))
    assert mean.L < 0.95 * each.L and mean.mu > 1.05 * each.mu


def test_large_quadratic():
    """More variables than are decomposed: fifty products find what has hundreds of eigenvalues, to five per cent."""
    fed = quadratic_federation(2, 300, 280)
    agree(
        probe(QuadraticSaddle(300, 280), fed, points=1), of_hessians(quadratic_hessians(fed), 300), rtol=0.05
    )


def nonconvex_pl_hessians(fed, z, nu, mu):
    """xx = diag <(1/nu - (x-a)^2/nu^2) exp(-(x-a)^2/(2 nu))>, xy = <b b'>, yy = -mu I, client by client."""
    out, p = [], len(z) // 2
    for i in range(fed.n_clients):
        a, b = (fed.client(i)[k].double().numpy() for k in "ab")
        square = (z[:p] - a) ** 2
        bowl = ((1 / nu - square / nu**2) * np.exp(-square / (2 * nu))).mean(0)
        B = b.T @ b / len(b)
        out.append(np.block([[np.diag(bowl), B], [B.T, -mu * np.eye(p)]]))
    return out


@pytest.mark.parametrize("dense, rtol", [(256, 1e-5), (0, 0.05)], ids=["dense", "lanczos"])
@pytest.mark.parametrize("of", ["clients", "mean"])
def test_nonconvex_pl(of, dense, rtol):
    fed, z = nonconvex_pl_federation(4, 30, 12), np.random.default_rng(2).normal(size=24)
    hessians = nonconvex_pl_hessians(fed, z, nu=0.7, mu=0.6)
    expected = of_hessians(hessians if of == "clients" else [np.mean(hessians, 0)], 12)
    assert expected["mu_x"] < -0.1 < 0.1 < expected["L_12"]  # not convex, and coupled
    found = probe(NonconvexPL(12, nu=0.7, mu=0.6), fed, torch.tensor(z), of=of, points=1, dense=dense)
    agree(found, expected, rtol)
    phi = np.mean(hessians, 0)
    phi = phi[:12, :12] + phi[:12, 12:] @ phi[12:, :12] / 0.6
    assert (found.pl is None) == (np.linalg.eigvalsh(phi)[0] <= 0 or dense == 0)


@pytest.mark.parametrize("dense", [256, 4, 0])  # 4: only the dual block
def test_linear_auc(dense):
    """F = c((h - a or b)^2 + 2(1 + alpha) s h) - p(1-p) alpha^2, c = 1-p and s = -1 on positives, p and 1 on negatives."""
    fed = binary()
    problem, hessians = AUC(torch.nn.Linear(3, 1), p=0.3), []
    for i in range(fed.n_clients):
        x, y = (fed.client(i)[k].numpy() for k in "xy")
        H = np.zeros((7, 7))
        for features, positive in zip(x, y == 1, strict=True):
            r = np.concatenate([features, [1.0, -1.0 * positive, -1.0 * (not positive)]])  # h - a, h - b
            c, s = (0.7, -1.0) if positive else (0.3, 1.0)
            H[:6, :6] += 2 * c * np.outer(r, r) / len(x)
            H[:4, 6] += 2 * c * s * r[:4] / len(x)
        H[6, :4] = H[:4, 6]
        H[6, 6] = -2 * 0.3 * 0.7
        hessians.append(H)
    constants = probe(problem, fed, dense=dense)
    agree(constants, of_hessians(hessians, 6), rtol=1e-6)
    assert constants.mu == pytest.approx(0.42)


def test_a_network_has_the_curvature_of_its_hessian():
    fed = federation(
        *[{"x": np.random.default_rng(k).normal(size=(9, 3)), "y": np.arange(9) % 2} for k in range(2)]
    )
    torch.manual_seed(0)
    problem = AUC(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)), p=0.4)
    z = torch.cat([problem.init().double()[:-3], torch.tensor([0.3, -0.2, 0.5])])
    double = problem.to(torch.device("cpu"), torch.float64)
    hessians = []
    for i in range(2):
        data = {k: v.unsqueeze(0) for k, v in fed.client(i).items()}
        f = lambda z, data=data: double.losses(z.unsqueeze(0), data).mean()
        hessians.append(torch.autograd.functional.hessian(f, z).numpy())
    expected = of_hessians(hessians, problem.n_x)
    assert expected["mu_x"] < 0  # not convex
    for dense in (256, 0):
        constants = probe(problem, fed, z, points=1, dense=dense)
        agree(constants, expected, rtol=1e-5)


def test_without_a_dual_variable():
    fed = binary()
    hessians = []
    for i in range(fed.n_clients):
        x = np.concatenate([fed.client(i)["x"].numpy(), np.ones((int(fed.sizes[i]), 1))], 1)
        hessians.append(x.T @ x / len(x))
    for dense in (256, 0):
        constants = probe(ERM(torch.nn.Linear(3, 1), loss="squared"), fed, dense=dense)
        agree(constants, of_hessians(hessians, 4), rtol=1e-6)
        assert constants.mu == math.inf and constants.kappa == 0 and constants.zeta_y == 0
        assert constants.mu_x == 0.0  # client 1 has fewer samples than parameters; not 1e-17


def custom(f, n_x, n_y, samples=((1.0,), (2.0,))):
    fed = federation(*[{"a": np.array(s)[:, None] * np.ones((1, n_x))} for s in samples])
    return Custom(lambda x, y, batch: f(x, y, batch["a"]), n_x, n_y), fed


@pytest.mark.parametrize("dense", [256, 0])
def test_degenerate_curvature(dense):
    piecewise = custom(lambda x, y, a: (a @ x - 1).abs(), 3, 0)
    assert {getattr(probe(*piecewise, dense=dense), k) for k in ("L_1", "L_2", "L_12", "L", "mu_x")} == {0.0}
    linear = custom(lambda x, y, a: a @ x + 0 * a.sum(-1), 3, 0)
    assert probe(*linear, dense=dense).L == 0.0
    constant = custom(lambda x, y, a: a.sum(-1), 3, 0)
    assert probe(*constant, dense=dense).L == 0.0 and probe(*constant).sigma == 0.0
    bilinear = probe(*custom(lambda x, y, a: (x * y).sum() + 0 * a.sum(-1), 3, 3), dense=dense)
    assert (bilinear.L_1, bilinear.L_2, bilinear.mu, bilinear.mu_x) == (0, 0, 0, 0)
    agree(bilinear, dict(L_12=1.0, L_21=1.0, L=1.0), rtol=1e-9)


@pytest.mark.parametrize("dense", [256, 0])
def test_tied_eigenvalues(dense):
    tied = custom(lambda x, y, a: 3 * x.square().sum() / 2 - y.square().sum() + 0 * a.sum(-1), 6, 5)
    constants = probe(*tied, dense=dense)
    agree(constants, dict(L_1=3, L_2=2, L_12=0, L=3, mu=2, mu_x=3), rtol=1e-9)


def test_a_region_is_more_than_a_point():
    quartic = custom(lambda x, y, a: (x**4).sum() + 0 * a.sum(-1), 1, 0)
    agree(probe(*quartic, points=1), dict(L=0), rtol=0)
    agree(probe(*quartic, points=2, radius=0.5), dict(L=12 * 0.25, mu_x=0), rtol=1e-9)
    agree(probe(*quartic, torch.tensor([2.0]), points=1), dict(L=48), rtol=1e-9)


def test_a_seed_decides():
    fed, problem = binary(), ERM(torch.nn.Linear(3, 1))
    a, b, c = (probe(problem, fed, seed=s) for s in (1, 1, 2))
    assert a == b != c


@pytest.mark.parametrize("dense", [256, 0])
def test_data_go_by_in_pieces(dense, monkeypatch):
    fed, problem = binary(), AUC(torch.nn.Linear(3, 1))
    whole = probe(problem, fed, dense=dense)
    monkeypatch.setattr(measure, "_NUMBERS_AT_ONCE", 60)
    pieces = probe(problem, fed, dense=dense)
    for name in (*BLOCKS, "sigma", "zeta_x", "zeta_y", "G"):
        assert getattr(pieces, name) == pytest.approx(getattr(whole, name), rel=1e-9), name


def test_some_clients_stand_for_all():
    fed = quadratic_federation(9, 3, 2, seed=4)
    some = probe(QuadraticSaddle(3, 2), fed, clients=3)
    hessians = quadratic_hessians(fed)
    agree(some, of_hessians([hessians[i] for i in (0, 4, 8)], 3), rtol=1e-9)
    assert "3 of 9 clients" in some.detail and "lower bound from 3 points" in some.detail


def test_some_samples_stand_for_all():
    problem, fed = custom(lambda x, y, a: (a @ x) ** 2 / 2, 1, 0, samples=((1, 9, 9, 2, 9, 9),))
    agree(probe(problem, fed, samples=2), dict(L=(1 + 4) / 2), rtol=1e-9)


def test_pl_constant_is_the_curvature_of_phi():
    fed = quadratic_federation(3, 4, 2, seed=5)
    H = np.mean(quadratic_hessians(fed), 0)
    phi = H[:4, :4] - H[:4, 4:] @ np.linalg.solve(H[4:, 4:], H[4:, :4])
    constants = probe(QuadraticSaddle(4, 2), fed)
    assert constants.pl == pytest.approx(np.linalg.eigvalsh(phi)[0])
    assert constants.L_phi >= np.linalg.eigvalsh(phi)[-1]
    saddle = probe(*custom(lambda x, y, a: (x[0] ** 2 - x[1] ** 2) * a[:, 0], 2, 0))
    assert saddle.pl is None and saddle.source("pl") == "given" and saddle.mu_x == -4


def test_noise_and_heterogeneity():
    fed = quadratic_federation(3, 4, 2, samples=5, noise=0.7, seed=6)
    z = np.random.default_rng(0).normal(size=6)
    x, y = z[:4], z[4:]
    clients = []
    for i in range(3):
        A, B, C, a, b = (fed.client(i)[k].numpy() for k in QuadraticSaddle.fields)
        clients.append(np.concatenate([A @ x + B @ y + a, np.einsum("nij,i->nj", B, x) - C @ y - b], 1))
    means = np.stack([g.mean(0) for g in clients])
    apart = (means - means.mean(0)) ** 2
    constants = probe(QuadraticSaddle(4, 2), fed, torch.tensor(z))
    worst = max(((g - g.mean(0)) ** 2).sum(1).mean() for g in clients)
    assert constants.sigma == pytest.approx(math.sqrt(worst))
    assert constants.zeta_x == pytest.approx(math.sqrt(apart[:, :4].sum(1).mean()))
    assert constants.zeta_y == pytest.approx(math.sqrt(apart[:, 4:].sum(1).mean()))
    assert constants.zeta == pytest.approx(math.sqrt(apart.sum(1).mean()))
    assert max(constants.zeta_x, constants.zeta_y) == constants.D
    agree(constants, dict(G=max(np.linalg.norm(g, axis=1).max() for g in clients)), rtol=1e-9)


def test_the_worst_of_two_places():
    fed = quadratic_federation(3, 4, 2, noise=0.5, samples=3)
    a, b = (probe(QuadraticSaddle(4, 2), fed, torch.full((6,), v)) for v in (0.0, 5.0))
    worse = a.worst(b.given(mu=0.01, L=99.0, pl=None))
    assert (worse.mu, worse.L, worse.pl, worse.L_1) == (0.01, 99.0, None, a.L_1)
    assert a.zeta_x < b.zeta_x == worse.zeta_x and worse.source("L_1") == "estimated"


def test_a_probe_says_what_it_does():
    heard = []
    probe(QuadraticSaddle(4, 2), quadratic_federation(3, 4, 2), points=2, tick=heard.append)
    assert heard == ["point 1 of 2", "point 2 of 2", "noise"]


def test_identical_clients_with_one_sample_have_no_noise():
    constants = probe(QuadraticSaddle(4, 2), quadratic_federation(3, 4, 2, heterogeneity=0.0))
    assert (constants.sigma, constants.zeta) == pytest.approx((0, 0))


def test_given_and_estimated():
    c = probe(QuadraticSaddle(4, 2), quadratic_federation(3, 4, 2))
    assert c.source("mu") == "estimated" and c.given(mu=0.1).source("mu") == "given"
    assert c.given(mu=0.1).mu == 0.1 and ONE.source("mu") == "given"
    assert Constants.smooth(L=3.0, mu=2.0).L_phi == 3 + 9 / 2  # Lemma 2 with E1.4
    with pytest.raises(FedsaddleError, match="has no 'nu'"):
        c.given(nu=1.0)
    with pytest.raises(FedsaddleError, match="L_1 must be a number >= 0, got -1"):
        c.given(L_1=-1.0)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(points=0), "points must be >= 1, got 0"),
        (dict(clients=0), "clients must be >= 1"),
        (dict(of="max"), "of must be 'clients' or 'mean', got 'max'"),
        (dict(radius=-1.0), "radius must be >= 0"),
        (dict(at=torch.zeros(3)), "at must have 6 numbers"),
    ],
)
def test_probe_refuses(wrong, message):
    with pytest.raises(FedsaddleError, match=message):
        probe(QuadraticSaddle(4, 2), quadratic_federation(3, 4, 2), **wrong)


# ----------------------------------------------------------------- the papers' formulas, by hand at one point


def near(steps, **expected):
    got = steps.at()
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-5), name


def test_codasca_theorem_2():
    steps = theory.codasca(ONE, Setting(clients=4, local_steps=5))
    # etatilde = min(1/6, 1/40), Lhat = 2 + 2 = 4, c = 4 + 248/53 * 4 = 22.71698, a = 2/24.71698 = 0.0809160
    near(steps, lr=0.025 / (2 * 5), server_lr=2, local_steps=5, gamma=2, stage_rounds=40000, stage_growth=1)
    near(steps, lr_decay=math.exp(-0.0809160), interval_growth=math.exp(0.0809160))
    assert steps.exact and steps.theorem == "CODASCA, Theorem 2"
    # mu = 2 L: the other bound, 1/(3 + 3/100) < 100/40
    near(theory.codasca(ONE.given(mu=100.0), Setting(1)), lr=1 / 3.03, stage_rounds=3030)


def test_coda_plus_theorem_1():
    # eta_0 = min(1/6, 1/4), T = 212 * 6; Lhat = 4, c = (1/4)/(5 + 1/4) = 1/21
    one = theory.coda_plus(ONE, Setting(clients=2))
    near(one, lr=1 / 6, local_steps=1, gamma=2, stage_rounds=1272, lr_decay=math.exp(-1 / 21))
    near(one, interval_growth=1, stage_growth=math.exp(1 / 21))
    near(theory.coda_plus(ONE.given(mu=100.0), Setting(2)), lr=1 / 4)  # 1/(3.03) > 1/4
    # drift factor 3, N = 2: eta (12 I + 36 I^2 D^2/sigma^2) 6 <= 1
    ten = theory.coda_plus(ONE, Setting(clients=2, local_steps=10))
    near(ten, lr=1 / (6 * (120 + 3600)), interval_growth=math.exp(1 / 42), stage_growth=math.exp(1 / 42))
    near(ten, stage_rounds=math.ceil(212 * 22320 / 10))
    batch = theory.coda_plus(ONE, Setting(clients=2, local_steps=10, batch_size=4))
    near(batch, lr=1 / (6 * (120 + 4 * 3600)))
    equal = theory.coda_plus(ONE.given(zeta_x=0.0, zeta_y=0.0), Setting(clients=2, local_steps=10))
    near(equal, lr=1 / 720, interval_growth=math.exp(1 / 21), stage_growth=1)
    assert one.exact and ten.exact
    order = theory.coda_plus(ONE.given(sigma=None), Setting(clients=2, local_steps=10))
    near(order, lr=1 / 200)
    full = theory.coda_plus(ONE, Setting(clients=2, local_steps=10, batch_size=None))
    assert not order.exact and not full.exact and "bias" in " ".join(full.notes)


def test_coda_plus_drift_stays_below_the_noise():
    """The proof's condition, with equality: (3/2)(l^2/mu + l)(12 eta^2 I sigma^2 + 36 eta^2 I^2 D^2) = eta sigma^2/N."""
    c = Constants.smooth(L=2.0, mu=0.5, sigma=0.3, zeta_x=0.2, zeta_y=0.1)
    lr = theory.coda_plus(c, Setting(clients=7, local_steps=6)).at()["lr"]
    drift = 1.5 * (4 / 0.5 + 2) * (12 * lr**2 * 6 * 0.09 + 36 * lr**2 * 36 * 0.04)
    assert drift == pytest.approx(lr * 0.09 / 7)


def test_npa_theorem_3():
    small = theory.npa(ONE, Setting(clients=2, batch_size=4, accuracy=0.1))  # 4 < 1/(2 * 0.1)
    near(small, lr=1 / 6, local_steps=1, gamma=2, stage_rounds=1272, lr_decay=math.exp(-1 / 21))
    large = theory.npa(ONE, Setting(clients=2, batch_size=5, accuracy=0.1))
    near(large, lr=1 / 6, lr_decay=1, stage_growth=1, stage_rounds=1272)
    assert "(1)" in small.theorem and "(2)" in large.theorem


def test_fedsgda_theorem_1():
    c = Constants(L_1=1.0, L_2=2.0, L_12=1.0, L_21=1.0, L=3.0, mu=1.0)
    # L_phi = 2, L_f = sqrt(2 (4 + 1)) = 3.16228, Lt = 10.32456, gamma = 1/(192 * 10.32456 * 3), eta = gamma/3
    mb = functools.partial(theory.fedsgda, estimator="mb")
    steps = mb(c, Setting(clients=100, participants=8, local_steps=3))
    near(steps, lr=5.60513e-5, lr_dual=1.681539e-4, local_steps=3)
    # one of the other bounds at a time
    near(mb(c.given(mu=1e5), Setting(9)), lr_dual=1e-5)
    near(mb(c.given(L_12=0.0), Setting(9)), lr=1 / (192 * 2 * (1 + math.sqrt(8))))
    assert steps.exact and steps.theorem == "FedSGDA, Theorem 1 (MB)"


def test_fedsgda_theorem_2():
    c = Constants(L_1=1.0, L_2=2.0, L_12=1.0, L_21=1.0, L=3.0, mu=1.0)
    steps = theory.fedsgda(c, Setting(100, participants=8, local_steps=3), estimator="storm")
    near(steps, lr_dual=1.681539e-4, momentum=1 / 16, decay=1 / 3)  # 2304/192^2
    late = steps.at(8 * 10**9 - 1)  # cbrt(8/8e9) / (Lt 3) = 1e-3/30.97367
    assert late["lr_dual"] == pytest.approx(3.228549e-5, rel=1e-5)
    assert late["lr"] == pytest.approx(late["lr_dual"] / 3)
    assert late["momentum"] == pytest.approx(2304e-6)
    # constant while cbrt(8/(r+1)) > 1/192, that is for 8 * 192^3 rounds
    assert steps.at(8 * 192**3 - 2)["lr_dual"] == steps.at(0)["lr_dual"] > steps.at(8 * 192**3)["lr_dual"]
    assert any(f"constant for the first {8 * 192**3:.3g} rounds" in note for note in steps.notes)


def test_fedsgda_theorem_3():
    c = Constants(L_1=1.0, L_2=2.0, L_12=1.0, L_21=1.0, L=3.0, mu=1.0)
    run = Setting(100, participants=8, local_steps=3)
    spider, mb = (theory.fedsgda(c, run, estimator=e) for e in ("spider", "mb"))
    near(spider, period=8, large_cohort=64, lr=mb.at()["lr"])
    near(
        theory.fedsgda(c, Setting(50, participants=8), estimator="spider"), large_cohort=50
    )  # not more than all
    with pytest.raises(FedsaddleError, match="estimator must be"):
        theory.fedsgda(c, run, estimator="sarah")


@pytest.mark.parametrize("estimator", ["svrg", "averaged"])
def test_an_estimator_without_a_theorem_gets_the_steps_of_mb(estimator):
    steps, mb = (
        prescribe("fedsgda", ONE, Setting(9), {"estimator": e, "lr": 0.1}) for e in (estimator, "mb")
    )
    assert steps.at() == mb.at() and mb.exact and not steps.exact
    assert "no theorem" in steps.notes[0] and "rule of thumb" in steps.theorem


def test_hyper_parameters_choose_the_theorem():
    by_default = prescribe("fedsgda", ONE, Setting(9))
    assert by_default.theorem == THEOREMS["fedsgda"](ONE, Setting(9), estimator=FedSGDA().estimator).theorem
    near(prescribe("fedprox", ONE, Setting(4, local_steps=2), {"mu": 1.0, "lr": 9.0}), lr=1 / 4)


@pytest.mark.parametrize("name, like", [("coda", "coda_plus"), ("codasca_as_published", "codasca")])
def test_a_borrowed_theorem_says_so(name, like):
    steps, own = (THEOREMS[n](ONE, Setting(4, local_steps=3)) for n in (name, like))
    assert steps.at() == own.at() and own.exact and not steps.exact and "the theorem is" in steps.notes[0]


def test_cycp_minimax_theorem_4_5():
    # eta G I <= 1/6 and 3 * 36 eta I^2 G^2 B^2 M <= sigma^2 with G = 3, I = 2, B = 2, M = 5
    steps = theory.cycp_minimax(ONE, Setting(clients=30, participants=5, groups=3, local_steps=2))
    lr = 1 / (108 * 4 * 9 * 4 * 5)
    near(steps, lr=lr, gamma=2, local_steps=2, stage_rounds=3 * math.ceil(212 / lr / 6 - 1e-6))
    near(steps, lr_decay=math.exp(-1 / 21))
    near(steps, interval_growth=math.exp(1 / 42))
    quiet = theory.cycp_minimax(ONE.given(G=1e-3), Setting(30, 5, groups=3, local_steps=2))
    near(quiet, lr=1 / 36)
    assert steps.exact and not theory.cycp_minimax(ONE.given(G=None), Setting(30)).exact


def test_cycp_pairwise_theorems_5_2_and_5_3():
    run = Setting(clients=30, participants=5, groups=3, accuracy=0.01)
    general = theory.cycp_pairwise(ONE.given(pl=None), run)
    near(general, lr=5e-4, local_steps=6, stage_rounds=3 * 10**6)  # 1/(5 * 3 * 0.01) = 6.67
    # mu epsilon M/sigma^2 = 0.05, 1/(3 sqrt(5 * 0.05)) = 0.67, 1/sqrt(0.01)
    pl = theory.cycp_pairwise(ONE, run)
    near(pl, lr=0.05, local_steps=1, stage_rounds=30, lr_decay=0.5)
    near(theory.cycp_pairwise(ONE.given(L=100.0), run), lr=1 / 300)  # eta I G L <= 1
    assert not pl.exact and "5.3" in pl.theorem and "5.2" in general.theorem
    with pytest.raises(FedsaddleError, match=r"accuracy=0\.1"):
        theory.cycp_pairwise(ONE, Setting(30))


def test_ffmdr_theorem_1():
    c = Constants.smooth(L=2.0, mu=1.0, mu_x=-0.5)
    got = theory.ffmdr(c, Setting(clients=4)).at()
    beta, eps, L = got["beta"], got["accuracy"], 2 * (1 + 2)
    assert beta == pytest.approx(0.0548861 / 6, rel=1e-5)  # (sqrt(85) - 9)/4 = 0.0548861
    assert (1 + beta * L) ** 2 - 1.5 + 2.5 * beta * L == pytest.approx(-0.25)  # (57)
    assert (1 - beta * L) / 2 / 8 + (1 + beta * L) ** 2 * (2 / 64 + 1 / 64**2) + (
        beta * L - 1
    ) ** 2 / 64 < 1 / 8  # (58)

    def left_of_59(eps):
        C = 2 * ((2 + 1 / beta) ** 2 + 1) * (2 + 1 / beta) ** 2
        gamma = (1 + 1 / 64) ** 2 * 64 / beta + 2 / beta * (64 + beta * L - 1)
        return (2 * gamma / (1 / beta - L) ** 2 + 4 / (1 / beta - L)) * 6 * C * L**2 * eps

    assert left_of_59(eps) == pytest.approx(1 / 16 / beta)
    C = 2 * ((2 + 1 / beta) ** 2 + 1) * (2 + 1 / beta) ** 2
    printed = 392 / 96 * (1 - beta * L) ** 2 / beta**3 / C / L**2
    assert left_of_59(printed) > 1e6 / beta  # why Remark 1's eps is not used
    assert 48 * L * eps <= 1
    steps = theory.ffmdr(c, Setting(clients=4))
    assert not steps.exact and "Proposition 5" in steps.notes[-1]
    assert got["relaxation"] == 1 and got["modulus"] == 1.0  # min(1/beta - 0.5, mu)


def test_ffmdr_proposition_5_takes_a_wrong_lipschitz_constant():
    """f = w y - y^2 mu / 2 with mu = 1/10: y(w) = 10 w, yet L = L_f (1 + kappa) is below 10 where f is scaled down."""
    scale, mu = 0.01, 0.1  # f(w, y) = scale (w y - mu y^2 / 2), whose maximiser does not depend on the scale
    y = lambda w: w / mu
    L_f = scale * np.linalg.norm([[0, 1], [1, -mu]], 2)
    kappa = L_f / (scale * mu)
    L, way = L_f * (1 + kappa), 1 + (y(1.0) - y(0.0)) ** 2
    assert way > L**2 and (y(1.0) - y(0.0)) ** 2 > max(1, L)  # (23) and (24) as printed are false
    assert way <= 1 + kappa**2


@pytest.mark.parametrize("L_f", [2.0, 0.002])
def test_ffmdr_theorem_2(L_f):
    c, run = Constants.smooth(L=L_f, mu=L_f / 2), Setting(clients=4, participants=3)
    got = theory.ffmdr(c, run, rate=True).at()
    beta, L = got["beta"], 3 * L_f
    C = 2 * ((L_f + 1 / beta) ** 2 / (L_f / 2) ** 2 + 1) * (L_f + 1 / beta) ** 2
    assert C * got["accuracy"] / (2 * (1 / beta - L)) + 6 * L**2 * 3 <= 1 / (8 * beta) * (1 + 1e-9)
    assert beta == pytest.approx(min(1 / (96 * L**2 * 3), 0.0548861 / L), rel=1e-5)


def test_scaff_pd_theorem_5_5():
    c = Constants(L_1=1.0, L_2=0.0, L_12=2.0, L_21=2.0, L=3.0, mu=0.5, mu_x=1.0)
    # k = 24.5, omega = 24.5 + sqrt(600.25 + 64) = 50.27305
    got = theory.scaff_pd(c, Setting(clients=5, local_steps=10)).at()
    omega = 50.27305
    assert got["theta"] == pytest.approx(1 - 1 / omega)
    assert got["tau"] == pytest.approx(4 / (omega - 1), rel=1e-6)
    assert got["sigma"] == pytest.approx(2 / (omega - 1), rel=1e-6)
    tau, sigma, theta = got["tau"], got["sigma"], got["theta"]
    pi = theta * sigma * 2  # (B.51), c = 1
    assert 1 / tau + 0.25 >= (1 - 1e-9) / (tau * theta)  # (B.49), times two
    assert 1 / sigma + 0.5 >= (1 - 1e-9) / (sigma * theta)
    assert 1 / tau >= (12 + 2 * pi * theta * 2) * (1 - 1e-9) and 1 / sigma >= theta * 2 / pi * (1 - 1e-9)
    assert got["lr"] * 10 * got["server_lr"] == pytest.approx(tau)
    assert 36 * tau + 2 * tau**2 == pytest.approx(got["server_lr"] ** 2 / 16)  # (B.18), L_xx = 1
    assert theory.scaff_pd(c, Setting(clients=5)).at()["server_lr"] == 1


def test_scaff_pd_noise_lowers_the_step():
    c = Constants(L_1=1.0, L_2=0.0, L_12=2.0, L_21=2.0, L=3.0, mu=0.5, mu_x=1.0, sigma=2.0)
    steps = theory.scaff_pd(c, Setting(clients=5, accuracy=0.01))
    near(steps, theta=1 - 1 / 400)
    assert not steps.exact


def test_scaff_pd_theorem_5_1():
    c = Constants(L_1=1.0, L_2=0.0, L_12=2.0, L_21=2.0, L=3.0, mu=0.0, mu_x=1.0)
    steps = theory.scaff_pd(c, Setting(clients=5), gamma_0=2.0)
    first, tau_0 = steps.at(0), 1 / (12 + math.sqrt(144 + 64))  # 16 * 2 tau^2 + 12 tau = 1/2
    assert first["tau"] == pytest.approx(tau_0) and first["theta"] == 1 and first["gamma"] == 2
    gamma, tau, last = 2.0, tau_0, 2 * tau_0
    for r in range(1, 30):
        gamma *= 1 + tau
        tau = tau_0 * math.sqrt(2 / gamma)
        got = steps.at(r)
        assert (got["gamma"], got["tau"], got["sigma"]) == pytest.approx((gamma, tau, gamma * tau))
        assert got["theta"] == pytest.approx(last / (gamma * tau)) and got["theta"] < 1
        assert 0.5 / tau >= (12 + 2 * 4 * gamma * tau / 0.5) * (1 - 1e-9)  # (B.35)
        last = gamma * tau
    assert steps.at(200)["gamma"] >= 2 * tau_0**2 / 9 * 200**2  # (B.27)


@pytest.mark.parametrize("name", ["scaffold", "fedavg", "local_sgda", "fedprox"])
def test_a_rule_of_thumb_says_so(name):
    steps = THEOREMS[name](Constants.smooth(L=2.0, mu=1.0), Setting(clients=4, local_steps=5))
    near(steps, lr=0.1)
    assert not steps.exact and "not one of the five papers" in steps.notes[0]


def test_fedprox_is_smoothed_by_its_prox():
    near(theory.fedprox(ONE, Setting(4, local_steps=2), mu=1.0), lr=1 / 4)


# ------------------------------------------------------------------------------------------ facts about them all

RUN = Setting(clients=8, participants=4, local_steps=3, batch_size=2, groups=2, accuracy=0.1)
STEP = {"ffmdr": "beta", "scaff_pd": "tau"}


def test_every_algorithm_has_steps_by_the_names_of_its_hyper_parameters():
    assert set(ALGORITHMS) <= set(THEOREMS)
    # the public code has no server step; SCAFF-PD's local step follows from tau
    elsewhere = {"codasca_as_published": {"server_lr"}, "scaff_pd": {"lr"}}
    for name, kind in ALGORITHMS.items():
        own = {f.name for f in dataclasses.fields(kind)} | elsewhere.get(name, set())
        assert set(THEOREMS[name](ONE, RUN).values) <= own, name


@pytest.mark.parametrize("name", THEOREMS)
def test_more_curvature_means_smaller_steps(name):
    c = dataclasses.replace(ONE, pl=0.1)
    steeper = c.given(L_1=40.0, L_2=40.0, L_12=40.0, L_21=40.0, L=40.0)
    key = STEP.get(name, "lr")
    a, b = (THEOREMS[name](x, RUN) for x in (c, steeper))
    assert 0 < b.at()[key] < a.at()[key] < math.inf
    assert all(math.isfinite(v) for v in a.at(3).values()) and a.theorem and a.assumes


@pytest.mark.parametrize("name", ["codasca", "coda_plus", "fedsgda", "cycp_minimax", "fedavg", "scaff_pd"])
def test_more_local_steps_mean_smaller_local_steps(name):
    few, many = (THEOREMS[name](ONE, dataclasses.replace(RUN, local_steps=i)).at()["lr"] for i in (2, 20))
    assert many < few


@pytest.mark.parametrize("name", ["codasca", "coda_plus", "npa", "fedsgda", "cycp_minimax", "ffmdr"])
def test_a_weaker_dual_means_smaller_steps(name):
    key = STEP.get(name, "lr")
    strong, weak = (THEOREMS[name](ONE.given(mu=mu), RUN).at()[key] for mu in (1.0, 0.01))
    assert weak < strong
    with pytest.raises(FedsaddleError, match="strongly concave dual, mu > 0, got 0"):
        THEOREMS[name](ONE.given(mu=0.0), RUN)


@pytest.mark.parametrize("name", THEOREMS)
def test_no_curvature_bounds_no_step(name):
    with pytest.raises(FedsaddleError, match="L must be > 0, got 0"):
        THEOREMS[name](ONE.given(L=0.0), RUN)


@pytest.mark.parametrize("name", ["codasca", "coda", "coda_plus", "npa", "cycp_minimax"])
def test_an_unknown_pl_constant_is_said_and_not_invented(name):
    steps = THEOREMS[name](ONE.given(pl=None), RUN)
    assert "lr_decay" not in steps.values and any("constants.given(pl=...)" in n for n in steps.notes)


def test_without_a_dual_variable_the_stagewise_theorems_still_speak():
    erm = Constants(L_1=1.0, L_2=0.0, L_12=0.0, L_21=0.0, L=1.0, mu=math.inf)
    near(theory.codasca(erm, Setting(clients=1)), lr=1 / 3, stage_rounds=3000)
    near(theory.npa(erm, Setting(clients=1)), lr=1 / 4)
    for f in (theory.fedsgda, theory.scaff_pd):
        with pytest.raises(FedsaddleError, match=r"no dual variable|mu_x > 0"):
            f(erm, RUN)


def test_strong_convexity_is_asked_for():
    for mu_x in (None, 0.0, -1.0):
        with pytest.raises(FedsaddleError, match="strongly convex clients, mu_x > 0"):
            theory.scaff_pd(ONE.given(mu_x=mu_x), RUN)


def test_settings_are_checked():
    with pytest.raises(FedsaddleError, match="local_steps must be >= 1, got 0"):
        Setting(clients=2, local_steps=0)
    with pytest.raises(FedsaddleError, match="accuracy must be > 0"):
        Setting(clients=2, accuracy=0.0)


def test_compare():
    steps = theory.codasca(ONE, Setting(clients=4, local_steps=5))
    got = compare(steps, {"lr": 0.25, "server_lr": 1.0, "output": "last", "gamma": 0.0, "stage_rounds": None})
    assert [row.name for row in got] == ["lr", "server_lr", "gamma"]
    assert got[0] == ("lr", pytest.approx(0.0025), 0.25, pytest.approx(100)) and got[1].ratio == 0.5
    assert got[2].ratio == 0
    storm = theory.fedsgda(ONE, Setting(4, local_steps=5), estimator="storm")
    assert compare(storm, {"momentum": 0.5})[0].ratio == pytest.approx(8)
    zero = theory.Steps({"a": 0.0, "b": 0.0}, "none")
    assert [row.ratio for row in compare(zero, {"a": 0.0, "b": 2.0})] == [1.0, math.inf]


# --------------------------------------------------------------------------- do the steps do what theorems promise


def well_conditioned():
    """Four clients with A, C near the identity, so that a theorem's small steps get somewhere within a test."""
    rng = np.random.default_rng(3)
    spread = lambda n: np.eye(n) + 0.05 * (lambda M: M + M.T)(rng.normal(size=(1, n, n)).reshape(n, n))
    shapes = dict(B=(4, 3), a=(4,), b=(3,))
    client = lambda: {"A": spread(4), "C": spread(3)} | {k: rng.normal(size=n) for k, n in shapes.items()}
    clients = [client() for _ in range(4)]
    return federation(*[{k: (0.1 if k == "B" else 1) * v[None] for k, v in c.items()} for c in clients])


SADDLE, PROBLEM = well_conditioned(), QuadraticSaddle(4, 3)


def distances(algorithm, rounds):
    run = drive(algorithm, PROBLEM, SADDLE, rounds, batching=FULL)
    return np.linalg.norm(run.z - PROBLEM.saddle(SADDLE).numpy(), axis=1)


@pytest.mark.parametrize("local_steps", [1, 8])
@pytest.mark.parametrize("prox", [True, False], ids=["prox", "plain"])
def test_codasca_converges_with_the_steps_of_its_theorem(local_steps, prox):
    """To the saddle at the theorem's step, whatever I; away from it at a local step beyond the stability limit.

    In between lies what a theorem for the worst case gives away: twenty times its step is still stable, and faster.
    """
    constants = probe(PROBLEM, SADDLE)
    t = theory.codasca(constants, Setting(clients=4, local_steps=local_steps)).at()
    fixed = dict(server_lr=t["server_lr"], local_steps=local_steps)
    if prox:  # stages shorter than the theorem's, so that many fit into a test
        fixed |= dict(gamma=t["gamma"], stage_rounds=40, lr_decay=1.0, output="last")
    gap = distances(CODASCA(lr=t["lr"], **fixed), 500)
    assert gap[-1] < (0.2 if prox else 0.05) * gap[0]
    assert (np.diff(gap[::80]) < 0).all()  # one look every two stages
    assert distances(CODASCA(lr=20 * t["lr"], **fixed), 80)[-1] < 0.8 * gap[79]
    with np.errstate(all="ignore"):
        wild = distances(CODASCA(lr=4 / constants.L, **fixed), 39)
    assert not wild[-1] < 1e3 * wild[0]


def test_npa_and_coda_plus_converge_with_the_steps_of_their_theorems():
    constants = probe(PROBLEM, SADDLE)
    t = theory.npa(constants, Setting(clients=4, batch_size=None)).at()
    staged = dict(lr=t["lr"], gamma=t["gamma"], stage_rounds=20, lr_decay=1.0)
    assert t["lr"] == theory.coda_plus(constants, Setting(clients=4)).at()["lr"]
    for algorithm in (NPA(**staged), CODAPlus(local_steps=1, **staged), NPA(lr=t["lr"])):
        gap = distances(algorithm, 400)
        assert gap[-1] < 1e-2 * gap[0]


def test_scaffold_converges_with_the_rule_of_thumb():
    t = theory.scaffold(probe(PROBLEM, SADDLE), Setting(clients=4, local_steps=10)).at()
    gap = distances(SCAFFOLD(lr=t["lr"], local_steps=10), 60)
    assert gap[-1] < 1e-6 * gap[0]


def test_fedsgda_descends_with_the_steps_of_theorem_1():
    """All clients, full batch, one local step: x - eta grad_x, y + gamma grad_y, and a bound on the mean ||grad Phi||^2."""
    H = np.mean(quadratic_hessians(SADDLE), 0)
    a, b = (SADDLE.data[k].numpy().mean(0) for k in "ab")
    t = theory.fedsgda(probe(PROBLEM, SADDLE), Setting(clients=4), estimator="mb").at()
    x, y = np.ones(4), np.zeros(3)

    def phi(x):  # value and gradient of max_y f
        y = np.linalg.solve(-H[4:, 4:], H[4:, :4] @ x - b)
        f = x @ H[:4, :4] @ x / 2 + x @ H[:4, 4:] @ y + y @ H[4:, 4:] @ y / 2 + a @ x - b @ y
        return f, H[:4, :4] @ x + H[:4, 4:] @ y + a

    x_best = PROBLEM.saddle(SADDLE)[0, :4].numpy()
    f_0 = x @ H[:4, :4] @ x / 2 + a @ x  # y = 0
    C_0, norms = 2 * phi(x)[0] - phi(x_best)[0] - f_0, []
    for _ in range(4000):
        norms.append(np.sum(phi(x)[1] ** 2))
        g_x, g_y = H[:4] @ np.concatenate([x, y]) + a, H[4:] @ np.concatenate([x, y]) - b
        x, y = x - t["lr"] * g_x, y + t["lr_dual"] * g_y
        T = len(norms)
        assert np.mean(norms) <= 4 * C_0 / (3 * t["lr"] * T)  # (28), no noise
    assert norms[-1] < norms[0]


@pytest.mark.parametrize("rho", [0.5, 0.0], ids=["chi2", "afl"])
def test_scaff_pd_converges_with_the_steps_of_its_theorems(rho):
    """Quadratic clients with J local steps, straight from the algorithm's equations."""
    rng, N, d, J = np.random.default_rng(2), 3, 2, 4
    A = [M @ M.T / d + np.eye(d) for M in rng.normal(size=(N, d, d))]
    centre = rng.normal(size=(N, d))
    loss = lambda x: np.array([(x - m) @ H @ (x - m) / 2 for H, m in zip(A, centre, strict=True)])
    grads = lambda u: np.stack([H @ (v - m) for H, v, m in zip(A, u, centre, strict=True)])
    box = 4.0  # iterates stay here, where the losses' gradients are bounded
    slope = math.sqrt(
        sum((np.linalg.norm(H, 2) * (box + np.linalg.norm(m))) ** 2 for H, m in zip(A, centre, strict=True))
    )
    eigen = [np.linalg.eigvalsh(H) for H in A]
    c = Constants(
        L_1=max(e[-1] for e in eigen), L_2=0.0, L_12=slope, L_21=slope, L=slope, mu=rho * N, mu_x=min(e[0] for e in eigen)
    )  # fmt: skip
    steps = theory.scaff_pd(c, Setting(clients=N, local_steps=J))

    def simplex(v):
        u = np.sort(v)[::-1]
        k = np.nonzero(u * np.arange(1, N + 1) > np.cumsum(u) - 1)[0][-1]
        return np.maximum(v - (np.cumsum(u)[k] - 1) / (k + 1), 0)

    def gap(x):  # distance of grad P from zero, measured by the best mixture of gradients near the maximisers
        weights = simplex(loss(x) / (rho * N)) if rho else None
        return np.linalg.norm(weights @ grads(np.tile(x, (N, 1)))) if rho else loss(x).max()

    x, lam, before = np.zeros(d), np.full(N, 1 / N), loss(np.zeros(d))
    start = gap(x)
    for r in range(3000 if rho else 20000):
        t = steps.at(r)
        now = loss(x)
        s = (1 + t["theta"]) * now - t["theta"] * before
        lam = simplex((s + lam / t["sigma"]) / (rho * N + 1 / t["sigma"]))
        fixed = grads(np.tile(x, (N, 1)))
        u = np.tile(x, (N, 1))
        for _ in range(J):
            u = u - t["lr"] * (grads(u) - fixed + lam @ fixed)
        before, x = now, x - t["tau"] * lam @ (x - u) / (t["lr"] * J)
    if rho:
        assert gap(x) < 1e-6 * start
    else:  # the least of the largest losses, by a fine search around where the method ended
        grid = x + 0.05 * np.stack(np.meshgrid(*[np.linspace(-1, 1, 81)] * d), -1).reshape(-1, d)
        assert gap(x) <= min(gap(v) for v in grid) + 1e-3 * start


def test_ffmdr_converges_with_the_step_of_its_theorem():
    """Exact inner solution, all clients: Douglas-Rachford on F_i = max_y f_i reaches the minimiser of their mean."""
    hessians = quadratic_hessians(SADDLE)
    a, b = (SADDLE.data[k].numpy() for k in "ab")
    # F_i(x) = x'P x/2 + q'x from eliminating y
    P = [H[:4, :4] - H[:4, 4:] @ np.linalg.solve(H[4:, 4:], H[4:, :4]) for H in hessians]
    q = [
        a_i + H[:4, 4:] @ np.linalg.solve(H[4:, 4:], b_i) for H, a_i, b_i in zip(hessians, a, b, strict=True)
    ]
    best = -np.linalg.solve(np.mean(P, 0), np.mean(q, 0))
    beta = theory.ffmdr(probe(PROBLEM, SADDLE), Setting(clients=4)).at()["beta"]
    z = np.ones(4)
    x = w = np.tile(z, (4, 1))
    for _ in range(8000):
        x = x + z - w
        w = np.stack(
            [
                np.linalg.solve(np.eye(4) + beta * P_i, v - beta * q_i)
                for P_i, q_i, v in zip(P, q, x, strict=True)
            ]
        )
        z = (2 * w - x).mean(0)
    assert np.linalg.norm(z - best) < 1e-3 * np.linalg.norm(1 - best)
