"""The step sizes of the theorems, algorithm by algorithm. Where a method has none: rules_of_thumb.py.

E1.4 and the like number the errata of the papers.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from fedsaddle.errors import FedsaddleError
from fedsaddle.theory.constants import Constants, require
from fedsaddle.theory.rules_of_thumb import (
    amplified_scaffold,
    fedavg,
    fednest,
    fedprox,
    fedxl2,
    local_minimax,
    local_sgda,
    scaffold,
    weighted,
)
from fedsaddle.theory.steps import Assumption, Setting, Steps, Value


def _over(value: float) -> float:
    """1 / value, infinite at 0: the condition then does not bind."""
    return 1.0 / value if value else math.inf


# ------------------------------------------------------------------------------------- CODASCA, CODA+ and NPA

_STAGEWISE = (
    Assumption.SMOOTH_SAMPLES,
    Assumption.STRONGLY_CONCAVE,
    Assumption.PL_PRIMAL,
    Assumption.VARIANCE,
)


def _single_step(c: Constants) -> float:
    """min(1/(3 l + 3 l^2/mu_2), 1/(4 l)) of CODASCA, Lemma 1."""
    return min(1 / (3 * c.L + 3 * c.L**2 / c.mu), 1 / (4 * c.L))


def _stage_length(c: Constants, lr: float) -> float:
    """T_1 = 212 / (eta_0 min(l, mu_2)) iterations (CODASCA, Theorem 1)."""
    return 212 / (lr * min(c.L, c.mu))


def _stage_rate(c: Constants) -> float | None:
    """c = (mu/Lhat) / (5 + mu/Lhat), Lhat = L_phi + 2 l (CODASCA, Theorem 1); None without the PL constant."""
    if c.pl is None:
        return None
    ratio = c.pl / (c.L_phi + 2 * c.L)
    return ratio / (5 + ratio)


def _drift(c: Constants) -> float:
    """3 l^2/(2 mu_2) + 3 l/2, the factor of the client drift (CODASCA, Lemma 1)."""
    return 1.5 * c.L**2 / c.mu + 1.5 * c.L


def _noise(c: Constants, batch_size: int | None) -> float | None:
    """sigma^2 of a minibatch gradient."""
    if batch_size is None:
        return 0.0
    return None if c.sigma is None else c.sigma**2 / batch_size


_NO_PL = "the PL constant of phi is not known, so no decay between stages; in Python, constants.given(pl=...) sets it"
_NO_NOISE = (
    "full local gradients have no noise, and the theorem asks for a drift below the noise: no step size or interval is "
    "short enough, and the drift remains as a bias"
)


def codasca(c: Constants, run: Setting) -> Steps:
    """CODASCA, Theorem 2.

        etatilde = min(1/(3 l + 3 l^2/mu_2), mu_2/(40 l^2)),   eta_g = sqrt(N),   eta_l = etatilde / (eta_g I_s),
        gamma = 2 l,   R = 1000 / (etatilde mu_2),   I_s = I_0 exp(a (s-1)),   eta_l decays by exp(-a) a stage,
        a = 2 mu/(c + 2 mu),   c = 4 l + (248/53) Lhat,   Lhat = L_phi + 2 l,   mu the PL constant.

    Args:
        run: clients, local_steps (I_0).
    """
    require("CODASCA", c)
    effective = min(1 / (3 * c.L + 3 * c.L**2 / c.mu), c.mu / (40 * c.L**2))
    server_lr = math.sqrt(run.clients)
    values: dict[str, Value] = {
        "lr": effective / (server_lr * run.I),
        "server_lr": server_lr,
        "local_steps": run.I,
        "gamma": 2 * c.L,
        # the proof divides by min(l, mu_2), which is mu_2 wherever there is a dual variable
        "stage_rounds": math.ceil(1000 / (effective * min(c.L, c.mu))),
        "stage_growth": 1.0,
    }
    notes = [
        "the theorem writes mu_1 and mu for the same PL constant (E3.9); its proof also takes I_s = I_0 2^s once"
    ]
    if c.pl is None:
        notes.append(_NO_PL)
    else:
        a = 2 * c.pl / (4 * c.L + 248 / 53 * (c.L_phi + 2 * c.L) + 2 * c.pl)
        values |= {"lr_decay": math.exp(-a), "interval_growth": math.exp(a)}
    return Steps(
        values, "CODASCA, Theorem 2", assumes=(*_STAGEWISE, Assumption.ALL_CLIENTS), notes=tuple(notes)
    )


def codasca_as_published(c: Constants, run: Setting) -> Steps:
    """CODASCA in the form of its public code: Theorem 2, which is about the paper's form."""
    return _noted(
        codasca(c, run),
        "the theorem is about the paper's form; the public code clips gradients, keeps its variates across stages and "
        "has eta_g = 1",
    )


def coda_plus(c: Constants, run: Setting) -> Steps:
    """CODA+: CODASCA, Theorem 1 and Lemma 1.

        eta_0 <= min(1/(3 l + 3 l^2/mu_2), 1/(4 l)),   gamma = 2 l,   eta_s = eta_0 exp(-(s-1) c),
        T_s = 212 / (eta_0 min(l, mu_2)) exp((s-1) c),   c = (mu/Lhat)/(5 + mu/Lhat),

    and I_s such that the drift stays below the noise (appendix B):

        (3 l^2/(2 mu_2) + 3 l/2) (12 eta_s^2 I_s sigma^2 + 36 eta_s^2 I_s^2 D^2) <= eta_s sigma^2 / N   unless I_s = 1.

    which bounds the step size for the run's I. At the largest eta_0 it holds for I = 1 only.

    Args:
        run: clients, local_steps, batch_size.
    """
    require("CODAPlus", c)
    lr, N, I, noise, D = _single_step(c), run.clients, run.I, _noise(c, run.batch_size), c.D
    exact, notes = True, []
    if I == 1:
        notes.append(
            "one local step does not drift; I_s may grow once the step has become small enough for I = 2"
        )
    elif noise is None or D is None:
        exact = False
        notes.append(
            "sigma or D unknown: lr <= 1/(N I^2), which is an order; probe, or give sigma and zeta_x"
        )
        lr = min(lr, 1 / (N * I**2))
    elif noise > 0:
        lr = min(lr, 1 / (_drift(c) * N * (12 * I + 36 * I**2 * D**2 / noise)))
    elif D > 0:
        exact = False
        notes.append(_NO_NOISE)
    values: dict[str, Value] = {
        "lr": lr,
        "local_steps": I,
        "gamma": 2 * c.L,
        "stage_rounds": math.ceil(_stage_length(c, lr) / I),
    }
    rate = _stage_rate(c)
    if rate is None:
        notes.append(_NO_PL)
    else:
        # I_s ~ 1/eta_s with equal clients, 1/sqrt(eta_s) else
        values |= _growth(rate, 0.0 if I == 1 else rate if D == 0 else rate / 2)
        notes.append("Theorem 1's rate c; the proof has 2 mu/(4 l + (248/53) Lhat + 2 mu) in its place")
    return Steps(
        values,
        "CODASCA, Theorem 1 (CODA+)",
        exact,
        (*_STAGEWISE, Assumption.ALL_CLIENTS, Assumption.SIMILAR_CLIENTS),
        tuple(notes),
    )


def coda(c: Constants, run: Setting) -> Steps:
    """CODA: the steps of CODA+; its own theorem (Guo et al. 2020) is not one of the five papers."""
    return _noted(
        coda_plus(c, run), "the theorem is CODA+'s; CODA also computes its dual variable afresh in each stage"
    )


def _noted(steps: Steps, note: str) -> Steps:
    """The same steps for a method that the theorem is not quite about."""
    return dataclasses.replace(steps, exact=False, notes=(note, *steps.notes))


def _growth(rate: float, interval: float) -> dict[str, Value]:
    """A stage's step shrinks by exp(-rate), its iterations grow by exp(rate) and its local steps by exp(interval)."""
    return {
        "lr_decay": math.exp(-rate),
        "interval_growth": math.exp(interval),
        "stage_growth": math.exp(rate - interval),
    }


def npa(c: Constants, run: Setting) -> Steps:
    """NPA: CODASCA, Theorem 3 (appendix C): CODA+ with I = 1.

        large minibatch, b >= 1/(N mu epsilon):  eta_s = min(1/(3 l + 3 l^2/mu_2), 1/(4 l)), T_s = 212/(eta_s min(l, mu_2))
        else:                                    eta_s and T_s of CODA+

    Args:
        run: clients, batch_size, and accuracy to decide whether the minibatch is large.
    """
    require("NPA", c)
    lr, rate = _single_step(c), _stage_rate(c)
    values: dict[str, Value] = {
        "lr": lr,
        "local_steps": 1,
        "gamma": 2 * c.L,
        "stage_rounds": math.ceil(_stage_length(c, lr)),
        "interval_growth": 1.0,
    }
    notes: tuple[str, ...] = ()
    if run.batch_size is None:
        large = True  # no noise
    else:
        large = (
            run.accuracy is not None
            and c.pl is not None
            and run.batch_size >= 1 / (run.clients * c.pl * run.accuracy)
        )
    if large:
        values |= {"lr_decay": 1.0, "stage_growth": 1.0}
    elif rate is None:
        notes = (_NO_PL,)
    else:
        values |= {"lr_decay": math.exp(-rate), "stage_growth": math.exp(rate)}
    return Steps(
        values,
        f"CODASCA, Theorem 3 ({'2' if large else '1'}) (NPA)",
        assumes=(*_STAGEWISE, Assumption.ALL_CLIENTS),
        notes=notes,
    )


# ---------------------------------------------------------------------------------------------------- FedSGDA


def fedsgda(c: Constants, run: Setting, *, estimator: str = "storm") -> Steps:
    """FedSGDA, Theorems 1 (MB), 2 (STORM) and 3 (SPIDER).

        gamma = min(1/(2 L_2), 1/mu, 1/L_21, 1/(192 Lt I)),      eta = min(1/(4 L_1), 1/L_phi, 1/(42 L_21), gamma,
        Lt = 2 (L_phi + L_f),                                              mu^2 gamma / (3 L_12^2)),
        L_f = max(sqrt(2 (L_1^2 + L_21^2)), sqrt(2 (L_2^2 + L_12^2)))                                       (Lemma 1)
        STORM:  gamma_r = min(gamma, M^(1/3) / (Lt I (r+1)^(1/3))),   alpha_r = beta_r = 2304 Lt^2 I^2 gamma_r^2
        SPIDER: period m = M, large cohort M^2

    STORM's `lr`, `lr_dual` and `momentum` are eta_r, gamma_r and alpha_r of a round r, to be compared with `lr_at(r)` and
    `alpha_at(r)` of FedSGDA: the theorem's steps are not lr/(r+1)^decay, but constant at first.

    Args:
        run: local_steps (I), participants (M), clients.
        estimator: as of FedSGDA; "svrg" and "averaged" have no theorem and get the steps of "mb".
    """
    theorems = {"mb": "Theorem 1 (MB)", "storm": "Theorem 2 (STORM)", "spider": "Theorem 3 (SPIDER)"}
    if estimator not in (*theorems, "svrg", "averaged"):
        raise FedsaddleError(
            f"FedSGDA: estimator must be one of {', '.join(theorems)}, svrg, averaged, got {estimator!r}"
        )
    require("FedSGDA", c, "needed")
    L_f = math.sqrt(2) * max(math.hypot(c.L_1, c.L_21), math.hypot(c.L_2, c.L_12))
    Lt, I, M = 2 * (c.L_phi + L_f), run.I, run.M
    dual = min(_over(2 * c.L_2), 1 / c.mu, _over(c.L_21), 1 / (192 * Lt * I))

    def primal(gamma: float) -> float:
        bounds = (
            _over(4 * c.L_1),
            _over(c.L_phi),
            _over(42 * c.L_21),
            gamma,
            c.mu**2 * gamma * _over(3 * c.L_12**2),
        )
        return min(bounds)

    assumes = (
        Assumption.SMOOTH_BLOCKS,
        Assumption.PL_DUAL,
        Assumption.SIMILAR_CLIENTS,
        Assumption.DRAWN,
    )
    notes = ["L_phi = L_1 + L_12 L_21/mu; Lemma 2 prints /(2 mu), which is too small (E1.4)"]
    values: dict[str, Value] = {"lr": primal(dual), "lr_dual": dual, "local_steps": I}
    if estimator not in theorems:
        notes.insert(
            0, f"rule of thumb: the paper has no theorem for {estimator!r}; these are the steps of 'mb'"
        )
        return Steps(values, "rule of thumb (FedSGDA, Theorem 1)", False, assumes, tuple(notes))
    theorem = f"FedSGDA, {theorems[estimator]}"
    if estimator == "mb":
        return Steps(values, theorem, assumes=assumes, notes=tuple(notes))
    if estimator == "spider":
        values |= {"period": M, "large_cohort": min(M**2, run.clients)}
        notes.append(
            "the theorem fixes the period m = S and leaves the large cohort open; S^2 is the paper's remark"
        )
        return Steps(values, theorem, assumes=assumes, notes=tuple(notes))

    def gamma(r: int) -> float:
        return min(dual, math.cbrt(M / (r + 1)) / (Lt * I))

    def weight(r: int) -> float:
        return 2304 * (Lt * I * gamma(r)) ** 2

    values |= {"lr": lambda r: primal(gamma(r)), "lr_dual": gamma, "decay": 1 / 3, "momentum": weight}
    constant = math.floor(
        M / (dual * Lt * I) ** 3
    )  # rounds in which the first term of gamma_r is the smaller one
    notes.append(
        f"the theorem's steps are constant for the first {constant:.3g} rounds and fall as (r+1)^(-1/3) only then; "
        "FedSGDA's lr/(r+1)^decay falls from the first round, unless decay = 0"
    )
    return Steps(values, theorem, assumes=assumes, notes=tuple(notes))


# ------------------------------------------------------------------------------------------------------- CyCp


def cycp_minimax(c: Constants, run: Setting) -> Steps:
    """CyCp-Minimax: CyCp, Theorem 4.5 and Lemma B.5.

    Schedules as in CODA+ (eta_s, T_s = E_s G I_s, gamma = 2 l), and from the proof, with the bound B on single gradients:

        eta G I <= min(1/(3 l + 3 l^2/mu_2), 1/(4 l)),
        (3 l^2/(2 mu_2) + 3 l/2) 36 eta_s^2 I_s^2 G^2 B^2 <= eta_s sigma^2 / M,    hence I_s ~ 1/(G sqrt(M eta_s)).

    Args:
        run: groups (G), participants (M a visit), local_steps, batch_size.
    """
    require("CyCpMinimax", c)
    G, M, I, noise = run.groups, run.M, run.I, _noise(c, run.batch_size)
    lr = _single_step(c) / (G * I)
    notes = [
        "Lemma B.5 prints the first condition for eta alone; its proof compares with 1/(2 eta K I), so that the product "
        "of eta with the groups K and the local steps I must be so small",
        "sigma^2/K of Lemma B.5 is sigma^2/M (E2.7)",
    ]
    exact = True
    if noise is None or c.G is None:
        exact = False
        notes.append("sigma or G unknown: I = 1/(G sqrt(M lr)), which is an order; probe, or give them")
        lr = min(lr, 1 / (M * (G * I) ** 2))
    elif noise == 0:
        exact = False
        notes.append(_NO_NOISE)
    elif c.G > 0:
        lr = min(lr, noise / (36 * _drift(c) * M * (I * G * c.G) ** 2))
    epochs = math.ceil(_stage_length(c, lr) / (G * I))
    values: dict[str, Value] = {
        "lr": lr,
        "local_steps": I,
        "gamma": 2 * c.L,
        "stage_rounds": epochs * G,
    }
    rate = _stage_rate(c)
    if rate is None:
        notes.append(_NO_PL)
    else:
        values |= _growth(rate, rate / 2)
        notes.append("Theorem 4.5's rate c; the proof has 2 mu/(c' + 2 mu) with another constant c' (E2.7)")
    assumes = (
        *_STAGEWISE,
        Assumption.BOUNDED_GRADIENTS,
        Assumption.IN_TURN,
    )
    return Steps(values, "CyCp, Theorem 4.5 (Minimax)", exact, assumes, tuple(notes))


def rs_minimax(c: Constants, run: Setting) -> Steps:
    """RS-Minimax: CyCp-Minimax's steps with one group of all clients; the paper has no theorem of its own for it."""
    steps = cycp_minimax(c, dataclasses.replace(run, groups=1))
    return dataclasses.replace(
        steps,
        theorem="CyCp, Theorem 4.5 with one group",
        assumes=tuple(a for a in steps.assumes if a is not Assumption.IN_TURN),
    )


def cycp_pairwise(c: Constants, run: Setting) -> Steps:
    """CyCp-Pairwise: CyCp, Theorems 5.2 and, where the PL constant is known, 5.3. Orders only: every constant is 1.

        5.2:  eta = epsilon^2 M,               I = 1/(M G epsilon),         E = 1/epsilon^3
        5.3:  eta = mu epsilon_s M / sigma^2,  I = 1/(G sqrt(M eta)),       E = 1/(mu^(3/2) epsilon_s^(1/2))
        both: eta I G L <= 1                                                                          (proof, after (66))

    Args:
        run: groups (G), participants (M a visit), local_steps, batch_size, accuracy (of the first stage for 5.3).
    """
    require("CyCpPairwise", c, "any")
    if run.accuracy is None:
        raise FedsaddleError(
            "CyCpPairwise: the theorem's steps depend on the accuracy asked for; give one, such as accuracy=0.1"
        )
    G, M, eps, noise = run.groups, run.M, run.accuracy, _noise(c, run.batch_size)
    notes = ["the theorem gives orders; every constant is taken as 1"]
    assumes = [
        Assumption.LIPSCHITZ_SCORES,
        Assumption.VARIANCE,
        Assumption.SIMILAR_CLIENTS,
        Assumption.IN_TURN,
    ]
    growth: dict[str, Value] = {}
    if c.pl is not None and noise:
        lr = c.pl * eps * M / noise
        interval, epochs = 1 / (G * math.sqrt(M * lr)), 1 / (c.pl**1.5 * math.sqrt(eps))
        growth = _growth(math.log(2), math.log(2) / 2)
        theorem = "CyCp, Theorem 5.3 (Pairwise, PL)"
        assumes.append(Assumption.PL_PRIMAL)
        notes.append("I = 1/(G sqrt(M eta)); the theorem prints 1/sqrt(G eta) (E2.6)")
        notes.append(
            "the proof halves nothing in print: stages with epsilon_s = epsilon_0 / 2^s are our reading"
        )
    else:
        lr, interval, epochs = eps**2 * M, 1 / (M * G * eps), 1 / eps**3
        theorem = "CyCp, Theorem 5.2 (Pairwise)"
    I = run.local_steps or max(1, math.floor(interval))
    lr = min(lr, 1 / (c.L * I * G))
    values: dict[str, Value] = {
        "lr": lr,
        "local_steps": I,
        "stage_rounds": math.ceil(epochs) * G,
        **growth,
    }
    return Steps(values, theorem, False, tuple(assumes), tuple(notes))


def rs_pairwise(c: Constants, run: Setting) -> Steps:
    """RS-Pairwise: CyCp-Pairwise with one group, which is random sampling."""
    steps = cycp_pairwise(c, dataclasses.replace(run, groups=1))
    return dataclasses.replace(
        steps,
        theorem=f"{steps.theorem} with one group",
        assumes=tuple(a for a in steps.assumes if a is not Assumption.IN_TURN),
    )


# ------------------------------------------------------------------------------------------------------ FFMDR


def ffmdr(c: Constants, run: Setting, *, rate: bool = False) -> Steps:
    """FFMDR, Theorem 1 with the free numbers of Remark 1 (delta_beta = 1/4, delta' = 1/8, tau^2 = 1/8, iota = 1/64).

        L = L_f (1 + kappa),      (1 + beta L)^2 - 3/2 + (5/2) beta L < -1/4,   so beta < (sqrt(85) - 9)/(4 L),
        (2 Gamma/(1/beta - L)^2 + 1/(2 tau^2 (1/beta - L))) 6 C L^2 eps <= 1/(16 beta),     12 max(1, L) eps <= 1/4,
        Gamma = (1 + iota)^2/(beta iota) + (2/beta)(1/iota + beta L - 1),
        C = 2 ((L_f + 1/beta)^2/mu^2 + 1)(L_f + 1/beta)^2.

    `modulus` is min(1/beta + mu_x, mu) (mu_x counts where it is negative): the strong monotonicity of a client's
    subproblem, by which an inner residual bounds the distance to its solution.

    Args:
        run: clients, participants.
        rate: also meet Theorem 2's condition C eps/(2 (1/beta - L)) + 6 L^2 sum_i p_i <= 1/(8 beta), half by half.
    """
    require("FFMDR", c)
    kappa = c.L / c.mu
    L = c.L * (1 + kappa)
    beta = (math.sqrt(85) - 9) / (4 * L)
    if rate:
        beta = min(beta, 1 / (96 * L**2 * run.M))  # sum_i p_i = M
    iota, tau2, gap = 1 / 64, 1 / 8, 1 / beta - L
    C = 2 * (((c.L + 1 / beta) / c.mu) ** 2 + 1) * (c.L + 1 / beta) ** 2
    big_gamma = (1 + iota) ** 2 / (beta * iota) + 2 / beta * (1 / iota + beta * L - 1)
    eps = min(
        1 / (16 * beta) / ((2 * big_gamma / gap**2 + 1 / (2 * tau2 * gap)) * 6 * C * L**2),
        1 / (48 * max(1.0, L)),
        gap / (8 * beta * C) if rate else math.inf,
    )
    values: dict[str, Value] = {
        "beta": beta,
        "accuracy": eps,
        "relaxation": 1.0,
        "modulus": min(1 / beta + min(c.mu_x or 0.0, 0.0) if c.mu_x is not None else 1 / beta - c.L, c.mu),
    }
    return Steps(
        values,
        f"FFMDR, Theorem {2 if rate else 1}",
        exact=False,  # eps
        assumes=(
            Assumption.SMOOTH,
            Assumption.STRONGLY_CONCAVE,
            Assumption.COINS,
            Assumption.BOUNDED_BELOW,
            Assumption.OWN_DUALS,
        ),
        notes=(
            "beta must be strictly smaller; Remark 1 prints (sqrt(82) - 9)/L, which violates its own condition (E4.6)",
            "eps from Theorem 1's condition (59): Remark 1's (392/96)(1 - beta L)^2/(beta^3 C L^2) is upside down, the "
            "condition gives about (1 - beta L)^2/(392 * 96 beta^2 C L^2)",
            "kappa = L_f/mu, printed L_f/n (E4.5)",
            "eps rests on Proposition 5, whose (23) and (24) take w -> (w, y(w)) and y to be L-Lipschitz; they are "
            "sqrt(1 + kappa^2)- and kappa-Lipschitz, so that eps is what the print gives, not what is proved",
        ),
    )


# --------------------------------------------------------------------------------------------------- SCAFF-PD


def scaff_pd(c: Constants, run: Setting, *, gamma_0: float = 1.0) -> Steps:
    """SCAFF-PD: Theorem 5.5 where the dual is strongly concave (mu > 0), Theorem 5.1 where it is not (mu = 0).

    Constant steps (B.51-B.54), L_xx = L_1, L_lx = L_21, mu_lambda = mu (chi^2: rho N):

        1/(1 - theta) = k + sqrt(k^2 + 8 L_lx^2/(mu_x mu_lambda)),   k = 1/2 + 24 L_xx/mu_x,
        tau = 4 (1 - theta)/(mu_x theta),   sigma = (1 - theta)/(mu_lambda theta).

    Growing weights (Condition 5.1, Lemma B.3 and B.35 with delta = c_alpha = 1/2):

        1/(2 tau_0) = 12 L_xx + 4 L_lx^2 gamma_0 tau_0,   gamma_{r+1} = gamma_r (1 + mu_x tau_r),
        tau_r = tau_0 sqrt(gamma_0/gamma_r),   sigma_r = gamma_r tau_r,   theta_0 = 1,   theta_r = sigma_{r-1}/sigma_r.

    Local steps: tau = J eta_l eta_g, and the drift cancels (B.18) when 36 u + 2 u^2 <= eta_g^2/16, u = tau L_xx, which
    gives server_lr = eta_g and lr = eta_l = tau/(J eta_g).

    Args:
        run: local_steps (J); accuracy, of E mu_x ||x - x*||^2 (5.4), adds
            1/(1 - theta) >= sigma^2/(mu_x accuracy) for noisy gradients.
        gamma_0: first weight of the second schedule; the paper leaves it free.
    """
    require("ScaffPD", c, "any")
    if c.mu_x is None or not c.mu_x > 0:
        raise FedsaddleError(
            f"ScaffPD: the theorems need strongly convex clients, mu_x > 0, got {c.mu_x}; add mu_x/2 ||x||^2 to the loss, "
            "or give a bound with constants.given(mu_x=...)"
        )
    if math.isinf(c.mu):
        raise FedsaddleError(
            "ScaffPD: the theorems need the modulus of the dual regulariser, and the problem has no dual variable; give it "
            "with constants.given(mu=..., L_21=...): rho N for chi^2, 0 for AFL and CVaR"
        )
    if c.mu < 0 or not gamma_0 > 0:
        what, value = ("mu", c.mu) if c.mu < 0 else ("gamma_0", gamma_0)
        raise FedsaddleError(f"ScaffPD: {what} must be {'>= 0' if what == 'mu' else '> 0'}, got {value}")
    assumes = (
        Assumption.STRONGLY_CONVEX,
        Assumption.SMOOTH,
        Assumption.LIPSCHITZ_LOSSES,
        Assumption.ALL_CLIENTS,
    )
    if c.mu == 0:
        return _scaff_pd_growing(c, run, gamma_0, assumes)
    k = 0.5 + 24 * c.L_1 / c.mu_x
    omega = k + math.sqrt(k**2 + 8 * c.L_21**2 / (c.mu_x * c.mu))
    noise, exact = _noise(c, run.batch_size), True
    notes = ["B.54 prints 16 for 8, which is safe but not needed (E5.7)"]
    if run.accuracy is not None and noise:
        by_noise = noise / (c.mu_x * run.accuracy)
        if by_noise > omega:
            omega, exact = by_noise, False
            notes.append("1/(1 - theta) comes from the noise, of which the paper gives the order only")
    theta = 1 - 1 / omega
    tau = 4 / (c.mu_x * (omega - 1))
    server_lr = _drift_free(tau * c.L_1, run.I)
    values: dict[str, Value] = {
        "tau": tau,
        "sigma": 1 / (c.mu * (omega - 1)),
        "theta": theta,
        "lr": tau / (run.I * server_lr),
        "server_lr": server_lr,
        "local_steps": run.I,
    }
    return Steps(values, "SCAFF-PD, Theorem 5.5 (SC-SC)", exact, assumes, tuple(notes))


def _scaff_pd_growing(c: Constants, run: Setting, gamma_0: float, assumes: tuple[Assumption, ...]) -> Steps:
    mu_x = c.mu_x
    assert mu_x is not None
    b = 12 * c.L_1
    tau_0 = 1 / (b + math.sqrt(b**2 + 8 * c.L_21**2 * gamma_0))
    server_lr = _drift_free(tau_0 * c.L_1, run.I)
    known = [gamma_0]

    def gamma(r: int) -> float:
        while len(known) <= r:
            known.append(known[-1] * (1 + mu_x * tau_0 * math.sqrt(gamma_0 / known[-1])))
        return known[r]

    def tau(r: int) -> float:
        return tau_0 * math.sqrt(gamma_0 / gamma(r))

    def sigma(r: int) -> float:
        return gamma(r) * tau(r)

    values: dict[str, Value] = {
        "tau": tau,
        "sigma": sigma,
        "theta": lambda r: sigma(r - 1) / sigma(r) if r else 1.0,
        "gamma": gamma,
        "lr": lambda r: tau(r) / (run.I * server_lr),
        "server_lr": server_lr,
        "local_steps": run.I,
    }
    notes = (
        "the recursion of tau is only in the proof of Lemma B.3; taubar = tau_0 (E5.3)",
        "delta = c_alpha = 1/2 and gamma_0 are free in the paper",
        "Remark B.4: the proof of Theorem B.6 needs mu_x/4 in the place of mu_x in the recursion of gamma",
    )
    return Steps(values, "SCAFF-PD, Theorem 5.1 (SC-C)", True, assumes, notes)


def _drift_free(u: float, local_steps: int) -> float:
    """Smallest eta_g >= 1 with 36 u + 2 u^2 <= eta_g^2/16 (SCAFF-PD, B.18); one local step does not drift."""
    return 1.0 if local_steps == 1 else max(1.0, 4 * math.sqrt(36 * u + 2 * u**2))


# -------------------------------------------------------------------------------------------------------- all

THEOREMS: dict[str, Callable[..., Steps]] = {
    "local_sgda": local_sgda,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "npa": npa,
    "coda": coda,
    "coda_plus": coda_plus,
    "codasca": codasca,
    "codasca_as_published": codasca_as_published,
    "fedsgda": fedsgda,
    "cycp_minimax": cycp_minimax,
    "rs_minimax": rs_minimax,
    "cycp_fedavg": fedavg,
    "amplified_fedavg": fedavg,
    "amplified_scaffold": amplified_scaffold,
    "cycp_pairwise": cycp_pairwise,
    "rs_pairwise": rs_pairwise,
    "fedxl2": fedxl2,
    "momentum_local_sgda": local_minimax,
    "fed_norm_sgda": local_minimax,
    "fedsgda_plus": local_minimax,
    "fedsgda_m": local_minimax,
    "fednest": fednest,
    "afl": weighted,
    "agnostic_fedavg": weighted,
    "drfa": weighted,
    "q_fedavg": weighted,
    "delta_fl": weighted,
    "ffmdr": ffmdr,
    "scaff_pd": scaff_pd,
}
"""What each algorithm's theorem prescribes: (constants, setting) -> Steps, by the algorithm's name in a config."""


def prescribe(name: str, constants: Constants, run: Setting, hyper: Mapping[str, Any] = {}) -> Steps:
    """The steps of an algorithm's theorem.

    Args:
        name: of the algorithm in a config.
        constants: of the problem.
        run: the numbers of the run.
        hyper: the algorithm's hyper-parameters, some of which decide between theorems (FedSGDA's estimator).

    Example:
        >>> from fedsaddle.theory import Constants, Setting, prescribe
        >>> prescribe("fedsgda", Constants.smooth(L=1.0, mu=1.0), Setting(clients=9), {"estimator": "mb"}).theorem
        'FedSGDA, Theorem 1 (MB)'
    """
    theorem = THEOREMS[name]
    asked = [k for k, p in inspect.signature(theorem).parameters.items() if p.kind is p.KEYWORD_ONLY]
    return theorem(constants, run, **{k: hyper[k] for k in asked if k in hyper})
