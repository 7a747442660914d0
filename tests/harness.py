"""What the correctness tests share: small federations, a hand-driven run, the table of algorithms, source mutations.

`CASES` is the one table. A row is an algorithm of the library on a small problem together with its NumPy reference;
it gets the reference check on both engines, the relations and the mutations' checks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsaddle.aggregation import Rule
from fedsaddle.algorithms import (
    CODA,
    CODASCA,
    DRFA,
    FFMDR,
    NPA,
    SCAFFOLD,
    AgnosticFedAvg,
    AgnosticFL,
    Algorithm,
    AmplifiedFedAvg,
    AmplifiedSCAFFOLD,
    CODAPlus,
    CyCpFedAvg,
    CyCpMinimax,
    CyCpPairwise,
    DeltaFL,
    FedAvg,
    FedNest,
    FedNormSGDA,
    FedProx,
    FedSGDA,
    FedSGDAM,
    FedSGDAPlus,
    FeDXL2,
    LocalSGDA,
    MomentumLocalSGDA,
    PublishedCODASCA,
    QFedAvg,
    RSMinimax,
    RSPairwise,
    ScaffPD,
)
from fedsaddle.clients import Clients, Task
from fedsaddle.cohort import Batching
from fedsaddle.engines.simulation import Simulation
from fedsaddle.errors import NobodyAnswered
from fedsaddle.federation import Federation
from fedsaddle.participation import Cyclic, Draw, Full, Independent, Participation, Uniform
from fedsaddle.problem import Problem
from fedsaddle.problems import (
    AUC,
    ERM,
    Contrastive,
    NonconvexPL,
    PairwiseAUC,
    PartialAUC,
    QuadraticSaddle,
    quadratic_federation,
)
from fedsaddle.problems.pairwise import Pairwise
from tests.reference import algorithms as ref
from tests.reference import cycp as ref_cycp
from tests.reference import fedsgda as ref_fedsgda
from tests.reference import ffmdr as ref_ffmdr
from tests.reference import pairwise as ref_pairwise
from tests.reference import problems as refproblems
from tests.reference import sampling as refsampling
from tests.reference import scaffpd as ref_robust
from tests.reference import synthetic_pl as ref_pl

SEED = 7
STACKED, SERIAL = None, 1  # the two engines, as `chunk`

# ---------------------------------------------------------------------------------------------- federations


def federation(*clients: dict[str, np.ndarray]) -> Federation:
    """A federation of these clients, in this order."""
    fields = {k: torch.from_numpy(np.concatenate([c[k] for c in clients])) for k in clients[0]}
    sizes = [len(next(iter(c.values()))) for c in clients]
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(sizes)]))
    return Federation(fields, offsets, tuple(f"client {i}" for i in range(len(clients))))


def clients_of(fed: Federation) -> list[dict[str, np.ndarray]]:
    return [{k: v.numpy() for k, v in fed.client(i).items()} for i in range(fed.n_clients)]


L1 = 0.05  # weight of the l1 term of "auc_l1"
SIZES = (9, 3, 14, 6, 5, 11)  # client 1 is smaller than the minibatch of 4
FEATURES = 3


@cache
def binary(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Federation:
    """Two classes, unequal sizes; client 3 has only positives, client 4 only negatives."""
    rng = np.random.default_rng([11, seed])
    clients = []
    for k, n in enumerate(sizes):
        y = (rng.random(n) < (0.25, 0.5, 0.2, 1.0, 0.0, 0.4)[k % 6]).astype(np.int64)
        if k % 6 not in (3, 4):
            y[:2] = (1, 0)
        x = rng.normal(size=(n, FEATURES)) + 0.6 * y[:, None] + 0.5 * rng.normal(size=FEATURES)
        clients.append({"x": x, "y": y})
    return federation(*clients)


@cache
def three_classes() -> Federation:
    rng = np.random.default_rng(12)
    return federation(
        *({"x": rng.normal(size=(n, FEATURES)), "y": rng.integers(0, 3, n)} for k, n in enumerate(SIZES))
    )


@cache
def regression() -> Federation:
    rng = np.random.default_rng(13)
    return federation(
        *(
            {"x": rng.normal(size=(n, FEATURES)) + k / 5, "y": rng.normal(size=n) + k}
            for k, n in enumerate(SIZES)
        )
    )


@cache
def quadratics() -> Federation:
    """Clients with 1 to 4 different quadratics each."""
    rng = np.random.default_rng(14)

    def definite(m: int, n: int) -> np.ndarray:
        M = rng.normal(size=(m, n, n))
        return M @ M.transpose(0, 2, 1) / n + 0.5 * np.eye(n)

    return federation(
        *(
            {
                "A": definite(m, 3),
                "B": rng.normal(size=(m, 3, 2)),
                "C": definite(m, 2),
                "a": rng.normal(size=(m, 3)),
                "b": rng.normal(size=(m, 2)),
            }
            for m in (3, 1, 4, 2, 4)
        )
    )


@cache
def triples() -> Federation:
    """Clients of the nonconvex-PL problem, from the reference's own generator."""
    rng = np.random.default_rng(16)
    clients = ref_pl.generate(rng, clients=6, samples=7, dim=2)
    keep = (7, 3, 5, 6, 2, 7)
    return federation(
        *({k: v[:n] for k, v in zip("abc", c, strict=True)} for c, n in zip(clients, keep, strict=True))
    )


# --------------------------------------------------------------------------------- problems and their references


class Twin(NamedTuple):
    """A problem of the library and what the reference needs to know of it."""

    problem: Callable[[], Problem]
    data: Callable[[], Federation]
    n_x: int
    n_y: int
    field: Callable[
        ..., np.ndarray
    ]  # (z, one client's samples of the minibatch, weights, all clients) -> field
    project: Callable[[np.ndarray], np.ndarray] = ref.identity
    scale: float = 0.5  # spread of the start point
    start: tuple[float, ...] = ()  # its last entries, where they matter

    def z0(self) -> np.ndarray:
        z = self.scale * np.random.default_rng(15).normal(size=self.n_x + self.n_y)
        if self.start:
            z[-len(self.start) :] = self.start
        return z


def _linear(outputs: int = 1) -> torch.nn.Module:
    return torch.nn.Linear(FEATURES, outputs)


def _auc(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    return refproblems.auc_field(z, s["x"], s["y"], w, refproblems.client_mean_p([c["y"] for c in clients]))


def _auc_pooled(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    return refproblems.auc_field(z, s["x"], s["y"], w, refproblems.pooled_p([c["y"] for c in clients]))


def _auc_margin(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    p = refproblems.client_mean_p([c["y"] for c in clients])
    return refproblems.auc_margin_field(z, s["x"], s["y"], w, p, 0.8)


def _logistic(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    return refproblems.logistic_field(z, s["x"], np.where(s["y"] == 1, 1, -1), w)


def _softmax(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    return refproblems.softmax_field(z, s["x"], s["y"], w, 3)


def _squared(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    return refproblems.squared_field(z, s["x"], s["y"], w)


def _quadratic(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    return sum(
        w[i] * refproblems.quadratic_field(z, *(s[f][i] for f in ("A", "B", "C", "a", "b")))
        for i in range(len(w))
    )


def _nonconvex_pl(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    client = (s["a"], s["b"], s["c"])
    g_x, g_y = ref_pl.client_gradient(z[:2], z[2:], client, list(range(len(w))), w, nu=0.8, mu=1.5)
    return np.concatenate([g_x, -g_y])


def _no_field(z: np.ndarray, s: dict, w: list, clients: list) -> np.ndarray:
    raise AssertionError("a loss of pairs has no field of one client's samples")


TWINS: dict[str, Twin] = {
    "auc": Twin(lambda: AUC(_linear()), binary, FEATURES + 3, 1, _auc),
    "auc_pooled": Twin(lambda: AUC(_linear(), p="pooled"), binary, FEATURES + 3, 1, _auc_pooled),
    "auc_margin": Twin(  # starts where the dual's bound A >= 0 is active for some rounds
        lambda: AUC(_linear(), dual="margin", margin=0.8),
        binary,
        FEATURES + 3,
        1,
        _auc_margin,
        refproblems.auc_margin_project,
        start=(1.5, -0.5, 0.2),
    ),
    "auc_l1": Twin(lambda: AUC(_linear(), regulariser=f"l1({L1})"), binary, FEATURES + 3, 1, _auc),
    "logistic": Twin(lambda: ERM(_linear(), loss="logistic"), binary, FEATURES + 1, 0, _logistic),
    "cross_entropy": Twin(
        lambda: ERM(_linear(3), loss="cross_entropy"), three_classes, 3 * FEATURES + 3, 0, _softmax
    ),
    "squared": Twin(lambda: ERM(_linear(), loss="squared"), regression, FEATURES + 1, 0, _squared),
    "quadratic": Twin(lambda: QuadraticSaddle(3, 2), quadratics, 3, 2, _quadratic),
    "nonconvex_pl": Twin(lambda: NonconvexPL(2, nu=0.8, mu=1.5), triples, 2, 2, _nonconvex_pl),
    "pairs": Twin(lambda: PairwiseAUC(_linear(), scale=0.7), binary, FEATURES + 1, 0, _no_field),
    "pairs_square": Twin(
        lambda: PairwiseAUC(_linear(), loss="square", margin=0.8), binary, FEATURES + 1, 0, _no_field
    ),
    "pairs_barrier": Twin(
        lambda: PairwiseAUC(_linear(), loss="barrier_hinge", tau=1.5), binary, FEATURES + 1, 0, _no_field
    ),
    "pairs_partial": Twin(
        lambda: PartialAUC(_linear(), loss="sigmoid", scale=0.7, temperature=0.5),
        binary,
        FEATURES + 1,
        0,
        _no_field,
    ),
    "pairs_contrastive": Twin(
        lambda: Contrastive(_linear(2), margin=1.5), three_classes, 2 * FEATURES + 2, 0, _no_field
    ),
}

PAIR_LOSSES = {  # of those, the reference's psi and how many outputs the model has
    "pairs": (ref_pairwise.sigmoid(0.7), 1),
    "pairs_square": (ref_pairwise.square(0.8), 1),
    "pairs_barrier": (ref_pairwise.barrier_hinge(1.0, 1.5), 1),
    "pairs_partial": (ref_pairwise.exponential(ref_pairwise.sigmoid(0.7), 0.5), 1),
    "pairs_contrastive": (ref_pairwise.contrastive(1.5), 2),
}


# ------------------------------------------------------------------------------------------------------ a run


class Run(NamedTuple):
    z: np.ndarray  # the server's iterate after every round [R, d]
    states: list[Any]
    clients: Clients


def connect(
    problem: Problem,
    fed: Federation,
    *,
    participation: Participation = Full(),
    batching: Batching = Batching(4),
    chunk: int | None = STACKED,
    seed: int = SEED,
    dtype: torch.dtype = torch.float64,
    aggregation: Rule | None = None,
) -> Simulation:
    """An engine with the problem's constants agreed on."""
    task = Task(problem, fed, participation, batching, (seed,), dtype, aggregation=aggregation)
    clients = Simulation(task, chunk=chunk)
    clients.problem = clients.problem.prepare(clients)
    return clients


def drive(
    algorithm: Algorithm,
    problem: Problem,
    fed: Federation,
    rounds: int,
    *,
    start: np.ndarray | None = None,
    after: Callable[[Any, Clients], Any] | None = None,
    **connection: Any,
) -> Run:
    """Run an algorithm round by round; `after(state, clients)` may look at or replace the state between rounds."""
    clients = connect(problem, fed, **connection)
    z = clients.problem.init() if start is None else torch.from_numpy(start.copy())
    z = z.to(clients.dtype).unsqueeze(0)
    s = algorithm.init(z, clients.problem)
    clients.remember(algorithm.memory(z, clients.problem))
    states = []
    for r in range(rounds):
        clients.begin(r)
        try:
            s = algorithm.round(s, clients)
        except NobodyAnswered:
            clients.rollback()
        if after is not None:
            s = after(s, clients) or s
        states.append(s)
    return Run(torch.cat([s.z for s in states]).numpy(), states, clients)


# -------------------------------------------------------------------------------------------- the one table


class Case(NamedTuple):
    """An algorithm, its problem (a key of TWINS) and its reference."""

    algorithm: Algorithm
    twin: str
    reference: Callable[..., Any]
    batching: Batching = Batching(4)
    participation: Participation = Full()
    rounds: int = 30


def ffmdr(**arguments: Any) -> list[np.ndarray]:
    trajectory, _ = ref_ffmdr.ffmdr(**arguments)
    dual = arguments["z0"][arguments["n_x"] :]  # the server has none
    return [np.concatenate([z, dual]) for z in trajectory]


def fedsgda(**arguments: Any) -> list[np.ndarray]:
    trajectory, _ = ref_fedsgda.fedsgda(**arguments)
    return [np.concatenate(z) for z in trajectory]


SERVER = dict(lr=0.1, local_steps=3)
STAGES = dict(
    lr=0.15, local_steps=2, gamma=0.2, stage_rounds=4, lr_decay=0.7, interval_growth=1.3, stage_growth=1.5
)
PAIRS = dict(
    lr=0.3, local_steps=2, stage_rounds=6, lr_decay=0.7, interval_growth=1.3, stage_growth=1.5
)  # stages of whole epochs and others
EPOCHS = STAGES | dict(stage_rounds=6, stage_growth=2.0)  # two epochs of three groups, then four
REPLACE = Batching(4, "with_replacement")
FULL = Batching(None)
SOME = Uniform(4)  # of 6 (5 in the quadratic)

CASES: dict[str, Case] = {
    # Local SGDA, FedAvg, FedProx, SCAFFOLD
    "local_sgda": Case(LocalSGDA(lr=0.1, lr_dual=0.3, local_steps=3, server_lr=1.3), "auc", ref.local_sgda),
    "local_sgda-quadratic": Case(
        LocalSGDA(lr=0.1, lr_dual=0.05, local_steps=3), "quadratic", ref.local_sgda, Batching(2)
    ),
    "local_sgda-pooled-with_replacement": Case(LocalSGDA(**SERVER), "auc_pooled", ref.local_sgda, REPLACE),
    "local_sgda-margin": Case(LocalSGDA(lr=0.1, lr_dual=0.2, local_steps=3), "auc_margin", ref.local_sgda),
    "local_sgda-clients_twice": Case(
        LocalSGDA(**SERVER), "auc", ref.local_sgda, participation=Uniform(5, replacement=True)
    ),
    "fedavg": Case(FedAvg(**SERVER), "logistic", ref.fedavg),
    "fedavg-samples": Case(FedAvg(**SERVER, weights="samples", server_lr=0.8), "logistic", ref.fedavg),
    "fedavg-cross_entropy": Case(FedAvg(**SERVER), "cross_entropy", ref.fedavg, REPLACE),
    "fedavg-squared": Case(FedAvg(**SERVER, weights="samples"), "squared", ref.fedavg, FULL),
    "fedavg-samples-some": Case(
        FedAvg(**SERVER, weights="samples"), "squared", ref.fedavg, participation=SOME
    ),
    "fedprox": Case(FedProx(**SERVER, mu=0.7), "logistic", ref.fedprox),
    "fedprox-samples": Case(
        FedProx(**SERVER, mu=0.7, weights="samples", server_lr=1.2), "squared", ref.fedprox
    ),
    "scaffold": Case(SCAFFOLD(**SERVER), "logistic", ref.scaffold),
    "scaffold-auc": Case(SCAFFOLD(**SERVER, server_lr=0.9), "auc", ref.scaffold),
    "scaffold-some": Case(
        SCAFFOLD(**SERVER, server_lr=1.1), "cross_entropy", ref.scaffold, participation=SOME
    ),
    "scaffold-samples": Case(
        SCAFFOLD(**SERVER, weights="samples"), "cross_entropy", ref.scaffold, participation=SOME
    ),
    "scaffold-quadratic": Case(SCAFFOLD(**SERVER), "quadratic", ref.scaffold, Batching(2)),
    # NPA, CODA, CODA+
    "npa": Case(NPA(lr=0.2, gamma=0.2, stage_rounds=6, stage_growth=1.5, lr_decay=0.5), "auc", ref.npa),
    "npa-last": Case(
        NPA(lr=0.2, gamma=0.2, stage_rounds=6, output="last"), "quadratic", ref.npa, Batching(2)
    ),
    "coda": Case(CODA(**STAGES, dual_samples=5), "auc", ref.coda),
    "coda-last-some": Case(
        CODA(**STAGES, dual_samples=100, output="last"), "auc", ref.coda, participation=Uniform(5)
    ),
    "coda-samples": Case(
        CODA(**STAGES, dual_samples=5, weights="samples"), "auc_pooled", ref.coda, participation=Uniform(5)
    ),
    "coda_plus": Case(CODAPlus(**STAGES), "auc", ref.coda_plus),
    "coda_plus-rounds": Case(CODAPlus(**STAGES, output="rounds"), "auc", ref.coda_plus),
    "coda_plus-random": Case(CODAPlus(**STAGES, output="random"), "auc", ref.coda_plus),
    "coda_plus-last": Case(CODAPlus(**STAGES, output="last"), "auc", ref.coda_plus, REPLACE),
    "coda_plus-some": Case(CODAPlus(**STAGES), "auc", ref.coda_plus, participation=SOME),
    "coda_plus-quadratic": Case(CODAPlus(**STAGES), "quadratic", ref.coda_plus, Batching(2)),
    "coda_plus-samples": Case(
        CODAPlus(**STAGES, weights="samples"), "auc_pooled", ref.coda_plus, participation=SOME
    ),
    "coda_plus-one_stage": Case(CODAPlus(lr=0.1, local_steps=4), "auc", ref.coda_plus),
    # CODASCA
    "codasca": Case(CODASCA(**STAGES), "auc", ref.codasca),
    "codasca-rounds": Case(CODASCA(**STAGES, output="rounds", server_lr=1.2), "auc", ref.codasca),
    "codasca-last": Case(CODASCA(**STAGES, output="last", server_lr=0.8), "auc", ref.codasca),
    "codasca-kept": Case(CODASCA(**STAGES, reset_variates=False), "auc", ref.codasca, REPLACE),
    "codasca-some": Case(CODASCA(**STAGES, server_lr=1.1), "auc", ref.codasca, participation=SOME),
    "codasca-some-kept": Case(
        CODASCA(**STAGES, reset_variates=False, output="rounds"), "auc", ref.codasca, participation=SOME
    ),
    "codasca-failures": Case(
        CODASCA(**STAGES, output="last"), "auc", ref.codasca, participation=Uniform(5, failure=0.3)
    ),
    "codasca-samples": Case(CODASCA(**STAGES, weights="samples"), "auc_pooled", ref.codasca),
    "codasca-samples-some": Case(
        CODASCA(**STAGES, weights="samples", reset_variates=False, output="rounds", server_lr=1.1),
        "auc_pooled",
        ref.codasca,
        participation=Uniform(5, failure=0.3),
    ),
    "codasca-quadratic": Case(CODASCA(**STAGES), "quadratic", ref.codasca, Batching(2)),
    "codasca-margin": Case(CODASCA(**STAGES), "auc_margin", ref.codasca),
    "codasca-l1": Case(CODASCA(lr=0.2, local_steps=3, output="last"), "auc_l1", ref.codasca),
    "codasca-full_batch": Case(CODASCA(**STAGES), "auc_pooled", ref.codasca, FULL),
    "published": Case(
        PublishedCODASCA(
            lr=0.1, local_steps=4, gamma=0.5, stage_rounds=7, lr_decay=0.6, clip=0.4, weight_decay=0.05
        ),
        "auc_margin",
        ref.codasca_as_published,
    ),
    "published-some": Case(
        PublishedCODASCA(
            lr=0.1, local_steps=4, gamma=0.5, stage_rounds=5, weight_decay=0.05, centre_noise=0.5
        ),
        "auc_margin",
        ref.codasca_as_published,
        participation=Uniform(3),
    ),
    # cyclic participation
    "cycp_minimax": Case(CyCpMinimax(**EPOCHS), "auc", ref_cycp.cycp_minimax, participation=Cyclic(3, m=1)),
    "cycp_minimax-all": Case(
        CyCpMinimax(**EPOCHS), "auc_margin", ref_cycp.cycp_minimax, participation=Cyclic(3)
    ),
    "cycp_minimax-last": Case(
        CyCpMinimax(**EPOCHS, output="last"), "auc_pooled", ref_cycp.cycp_minimax, REPLACE, Cyclic(3, m=1)
    ),
    "cycp_minimax-samples": Case(
        CyCpMinimax(**EPOCHS, weights="samples"), "auc_pooled", ref_cycp.cycp_minimax, participation=Cyclic(3)
    ),
    "rs_minimax": Case(RSMinimax(**STAGES), "auc", ref_cycp.rs_minimax, participation=SOME),
    "rs_minimax-samples": Case(
        RSMinimax(**STAGES, weights="samples"), "auc_pooled", ref_cycp.rs_minimax, participation=SOME
    ),
    "rs_minimax-quadratic": Case(RSMinimax(**STAGES), "quadratic", ref_cycp.rs_minimax, Batching(2), SOME),
    "cycp_fedavg": Case(CyCpFedAvg(**SERVER), "logistic", ref_cycp.cycp_fedavg, participation=Cyclic(3, m=1)),
    "amplified_fedavg": Case(
        AmplifiedFedAvg(**SERVER, amplification=1.4, period=3),
        "logistic",
        ref_cycp.amplified_fedavg,
        participation=Cyclic(3, m=1),
    ),
    "amplified_fedavg-long": Case(
        AmplifiedFedAvg(**SERVER, amplification=1.2, period=4),
        "squared",
        ref_cycp.amplified_fedavg,
        participation=Cyclic(2),
    ),
    "amplified_scaffold": Case(
        AmplifiedSCAFFOLD(**SERVER, amplification=1.3, period=3),
        "auc",
        ref_cycp.amplified_scaffold,
        participation=Cyclic(3, m=1),
    ),
    "amplified_scaffold-long": Case(  # visited twice in a period
        AmplifiedSCAFFOLD(**SERVER, amplification=1.2, period=4),
        "cross_entropy",
        ref_cycp.amplified_scaffold,
        participation=Cyclic(2, m=2),
    ),
    "amplified_scaffold-some": Case(
        AmplifiedSCAFFOLD(**SERVER, amplification=1.1, period=5),
        "quadratic",
        ref_cycp.amplified_scaffold,
        Batching(2),
        SOME,
    ),
    # pairs of samples; client 1 of 6 has fewer samples than a minibatch, clients 3 and 4 have one class
    "cycp_pairwise": Case(
        CyCpPairwise(**PAIRS), "pairs", ref_pairwise.cycp_pairwise, participation=Cyclic(3, m=1)
    ),
    "cycp_pairwise-all_pairs": Case(
        CyCpPairwise(**PAIRS | dict(lr=0.1), pairing="all_pairs", output="last"),
        "pairs_square",
        ref_pairwise.cycp_pairwise,
        participation=Cyclic(2),
    ),
    "cycp_pairwise-contrastive": Case(
        CyCpPairwise(**PAIRS | dict(lr=0.1)),
        "pairs_contrastive",
        ref_pairwise.cycp_pairwise,
        Batching(3, "with_replacement"),
        Cyclic(3, m=1),
    ),
    "cycp_pairwise-disguised": Case(
        CyCpPairwise(**PAIRS, noise=0.3, bits=3),
        "pairs_barrier",
        ref_pairwise.cycp_pairwise,
        participation=Cyclic(3, m=2),
    ),
    "cycp_pairwise-disguised-contrastive": Case(
        CyCpPairwise(lr=0.1, local_steps=2, noise=0.3, bits=4, pairing="all_pairs"),
        "pairs_contrastive",
        ref_pairwise.cycp_pairwise,
        participation=Cyclic(2),
    ),
    "rs_pairwise": Case(  # one of six clients a round: now and then a pool is kept
        RSPairwise(lr=0.4, local_steps=2), "pairs", ref_pairwise.cycp_pairwise, participation=Uniform(1)
    ),
    "rs_pairwise-full": Case(RSPairwise(**PAIRS), "pairs", ref_pairwise.cycp_pairwise),
    "fedxl2": Case(
        FeDXL2(lr=0.3, local_steps=2, rate=0.6), "pairs_partial", ref_pairwise.fedxl2, participation=SOME
    ),
    "fedxl2-all_pairs": Case(
        FeDXL2(lr=0.3, local_steps=2, rate=0.3, momentum=0.4, pairing="all_pairs"),
        "pairs_partial",
        ref_pairwise.fedxl2,
        participation=Uniform(1),
    ),
    "fedxl2-disguised": Case(
        FeDXL2(lr=0.2, local_steps=2, rate=1.0, noise=0.2, bits=5, stage_rounds=4),
        "pairs_partial",
        ref_pairwise.fedxl2,
        REPLACE,
        Cyclic(3, m=1),
    ),
    # FFMDR
    "ffmdr": Case(
        FFMDR(beta=2.0, lr=0.1, epochs=3, accuracy=0.9), "auc_l1", ffmdr, participation=Independent(0.6)
    ),
    "ffmdr-stops": Case(  # after one, two, three or all epochs, as it comes
        FFMDR(beta=2.0, lr=0.1, epochs=4, accuracy=0.9, modulus=2.0),
        "auc_l1",
        ffmdr,
        participation=Independent(0.6),
    ),
    "ffmdr-fixed": Case(
        FFMDR(beta=0.7, lr=0.1, lr_dual=0.2, epochs=2, stop="fixed_epochs", relaxation=1.5),
        "quadratic",
        ffmdr,
        Batching(2),
        SOME,
    ),
    "ffmdr-saga": Case(
        FFMDR(beta=1.5, solver="saga", lr=0.2, epochs=3, accuracy=0.5), "auc_l1", ffmdr, participation=SOME
    ),
    "ffmdr-saga-few": Case(
        FFMDR(beta=1.5, solver="saga", lr=0.1, lr_dual=0.2, epochs=2, stop="fixed_epochs"),
        "quadratic",
        ffmdr,
        Batching(2),
    ),
    "ffmdr-extragradient": Case(
        FFMDR(beta=0.5, solver="extragradient", lr=0.2, epochs=4, modulus=0.8, accuracy=0.3),
        "quadratic",
        ffmdr,
        Batching(2),
        Independent(0.5),
    ),
    "ffmdr-exact": Case(
        FFMDR(beta=2.0, solver="exact", server_prox="printed"), "auc_l1", ffmdr, participation=SOME
    ),
    "ffmdr-samples": Case(
        FFMDR(beta=2.0, lr=0.1, epochs=4, accuracy=0.9, weights="samples"),
        "auc_l1",
        ffmdr,
        participation=Independent(0.6),
    ),
    "ffmdr-exact-samples": Case(
        FFMDR(beta=2.0, solver="exact", weights="samples"), "auc_l1", ffmdr, participation=SOME
    ),
    # the baselines of FFMDR's paper
    "momentum_local_sgda": Case(
        MomentumLocalSGDA(lr=0.2, lr_dual=0.3, local_steps=3, mixing=0.8, momentum=0.5, momentum_dual=0.7),
        "auc",
        ref_ffmdr.momentum_local_sgda,
        participation=SOME,
    ),
    "momentum_local_sgda-margin": Case(
        MomentumLocalSGDA(lr=0.2, local_steps=2), "auc_margin", ref_ffmdr.momentum_local_sgda, REPLACE
    ),
    "momentum_local_sgda-l1": Case(
        MomentumLocalSGDA(lr=0.2, local_steps=3, mixing=0.8), "auc_l1", ref_ffmdr.momentum_local_sgda
    ),
    "fed_norm_sgda": Case(
        FedNormSGDA(lr=0.1, lr_dual=0.2, local_epochs=2, server_lr=0.8, weights="samples"),
        "auc",
        ref_ffmdr.fed_norm_sgda,
        participation=SOME,
    ),
    "fed_norm_sgda-equal": Case(
        FedNormSGDA(lr=0.1, local_steps=3), "quadratic", ref_ffmdr.fed_norm_sgda, Batching(2), SOME
    ),
    "fed_norm_sgda-l1": Case(
        FedNormSGDA(lr=0.1, local_epochs=1, server_lr=0.8),
        "auc_l1",
        ref_ffmdr.fed_norm_sgda,
        participation=SOME,
    ),
    "fedsgda_plus-l1": Case(
        FedSGDAPlus(lr=0.2, local_steps=3, refresh=4, server_lr=0.9), "auc_l1", ref_ffmdr.fedsgda_plus
    ),
    "fedsgda_m-l1": Case(FedSGDAM(lr=0.2, local_steps=3), "auc_l1", ref_ffmdr.fedsgda_m),
    "fednest-l1": Case(
        FedNest(lr=0.5, lr_dual=0.4, local_steps=3), "auc_l1", ref_ffmdr.fednest, participation=SOME
    ),
    "fedsgda_plus": Case(
        FedSGDAPlus(lr=0.1, lr_dual=0.2, local_steps=3, refresh=4, server_lr=0.9),
        "auc",
        ref_ffmdr.fedsgda_plus,
        participation=SOME,
    ),
    "fedsgda_m": Case(
        FedSGDAM(lr=0.1, lr_dual=0.2, local_steps=3, alpha=0.4),
        "auc",
        ref_ffmdr.fedsgda_m,
        participation=SOME,
    ),
    "fedsgda_m-quadratic": Case(
        FedSGDAM(lr=0.05, local_steps=4, alpha=0.7), "quadratic", ref_ffmdr.fedsgda_m, Batching(2)
    ),
    "fednest": Case(
        FedNest(lr=0.3, lr_dual=0.4, local_steps=3, inner_loops=2),
        "auc",
        ref_ffmdr.fednest,
        participation=SOME,
    ),
    "fednest-margin": Case(FedNest(lr=0.2, local_steps=2), "auc_margin", ref_ffmdr.fednest, REPLACE),
    "fednest-uncorrected": Case(
        FedNest(lr=0.2, local_steps=3, corrected=False), "quadratic", ref_ffmdr.fednest, Batching(2), SOME
    ),
    # distributionally robust learning
    "scaff_pd": Case(
        ScaffPD(ambiguity="chi2(0.3)", tau=0.3, sigma=0.8, theta=0.7, local_steps=3, server_lr=1.5),
        "logistic",
        ref_robust.scaff_pd,
    ),
    "scaff_pd-growing": Case(
        ScaffPD(ambiguity="cvar(0.4)", tau=0.2, sigma=0.1, local_steps=2, mu_x=0.3),
        "squared",
        ref_robust.scaff_pd,
        REPLACE,
    ),
    "scaff_pd-uncorrected": Case(
        ScaffPD(ambiguity="afl", tau=0.2, sigma=0.1, theta=0.5, local_steps=3, corrected=False),
        "logistic",
        ref_robust.scaff_pd,
    ),
    "scaff_pd-some": Case(
        ScaffPD(ambiguity="cvar(0.4)", tau=0.1, sigma=0.2, theta=0.5, local_steps=3),
        "logistic",
        ref_robust.scaff_pd,
        participation=SOME,
    ),
    "afl": Case(AgnosticFL(lr=0.2, local_steps=3, dual_lr=0.15), "logistic", ref_robust.afl),
    "afl-some": Case(
        AgnosticFL(lr=0.1, local_steps=3, dual_lr=0.15), "logistic", ref_robust.afl, participation=SOME
    ),
    "afl-chi2": Case(
        AgnosticFL(ambiguity="chi2(0.5)", lr=0.1, local_steps=2, dual_lr=0.3), "squared", ref_robust.afl
    ),
    "agnostic_fedavg": Case(
        AgnosticFedAvg(lr=0.2, local_steps=3, dual_lr=1.5), "logistic", ref_robust.agnostic_fedavg
    ),
    "drfa": Case(
        DRFA(lr=0.2, local_steps=3, dual_lr=0.05), "logistic", ref_robust.drfa, participation=Uniform(4)
    ),
    "drfa-chi2": Case(
        DRFA(ambiguity="chi2(0.2)", lr=0.1, local_steps=4, dual_lr=0.02),
        "logistic",
        ref_robust.drfa,
        participation=SOME,
    ),
    "q_fedavg": Case(
        QFedAvg(lr=0.3, local_steps=3, q=1.5), "logistic", ref_robust.q_fedavg, participation=SOME
    ),
    "delta_fl": Case(
        DeltaFL(lr=0.2, local_steps=3, tail=0.37), "logistic", ref_robust.delta_fl, participation=Uniform(5)
    ),
    # FedSGDA
    "fedsgda": Case(FedSGDA(lr=0.2, lr_dual=0.3, local_steps=3), "auc", fedsgda, participation=SOME),
    "fedsgda-storm-pl": Case(
        FedSGDA(lr=0.1, lr_dual=0.2, local_steps=3, decay=0.2, momentum=0.6),
        "nonconvex_pl",
        fedsgda,
        participation=SOME,
    ),
    "fedsgda-storm-margin": Case(
        FedSGDA(lr=0.2, local_steps=3, momentum=2.0), "auc_margin", fedsgda, REPLACE, participation=SOME
    ),
    "fedsgda-mb": Case(
        FedSGDA(lr=0.1, lr_dual=0.2, local_steps=3, estimator="mb"),
        "nonconvex_pl",
        fedsgda,
        participation=SOME,
    ),
    "fedsgda-mb-decay": Case(
        FedSGDA(lr=0.2, local_steps=2, estimator="mb", decay=0.5), "logistic", fedsgda, participation=SOME
    ),
    "fedsgda-spider": Case(
        FedSGDA(lr=0.1, lr_dual=0.2, local_steps=3, estimator="spider", period=4, large_cohort=5),
        "auc",
        fedsgda,
        participation=Uniform(2),
    ),
    "fedsgda-spider-squared": Case(
        FedSGDA(lr=0.1, local_steps=3, estimator="spider", period=7),
        "nonconvex_pl",
        fedsgda,
        participation=Uniform(2),
    ),
    "fedsgda-svrg": Case(
        FedSGDA(lr=0.1, lr_dual=0.15, local_steps=3, estimator="svrg", period=5, large_cohort=3),
        "quadratic",
        fedsgda,
        Batching(2),
        Uniform(2),
    ),
    "fedsgda-averaged": Case(
        FedSGDA(lr=0.1, local_steps=3, estimator="averaged", momentum=0.7),
        "quadratic",
        fedsgda,
        Batching(2),
        SOME,
    ),
    "fedsgda-full_batch": Case(FedSGDA(lr=0.2, local_steps=3), "auc_pooled", fedsgda, FULL),
    "published-gradient": Case(
        PublishedCODASCA(lr=0.1, local_steps=4, gamma=0.5, stage_rounds=7, clip=0.3),
        "auc",
        ref.codasca_as_published,
    ),
}


# --------------------------------------------------------------------------------------- the reference's run


@cache
def minibatch(
    round: int, phase: int, step: int, client: int, n: int, batching: Batching
) -> tuple[list, list]:
    return refsampling.minibatch(
        SEED, round, phase, step, client, n, batching.size, batching.sampling == "with_replacement"
    )


def participants(scheme: Participation, n: int, number: int = 0) -> Callable[[int], list[int]]:
    """Who answers in round r, in the given draw of the round."""

    def who(r: int) -> list[int]:
        draw = scheme.draw(n, SEED, r, number)
        return np.repeat(draw.ids, draw.counts)[np.repeat(draw.answered, draw.counts)].tolist()

    return who


@cache
def reference(name: str) -> np.ndarray:
    """The NumPy reference's trajectory of a case [R, d]."""
    case = CASES[name]
    out = case.reference(**reference_arguments(case))
    return np.array(out[0] if isinstance(out, tuple) else out)


def reference_arguments(case: Case) -> dict[str, Any]:
    """The reference's arguments, by name from the algorithm's hyper-parameters; the rest is spelled out here."""
    twin, alg = TWINS[case.twin], case.algorithm
    clients = clients_of(twin.data())
    N = len(clients)
    if case.reference is fedsgda:
        return fedsgda_arguments(case)
    if case.reference is ffmdr:
        return ffmdr_arguments(case)
    if case.reference.__module__ == ref_ffmdr.__name__:
        return local_minimax_arguments(case)
    if case.reference.__module__ == ref_robust.__name__:
        return robust_arguments(case)
    if case.reference.__module__ == ref_pairwise.__name__:
        return pairwise_arguments(case)
    who = participants(case.participation, N)

    def field(k: int, z: np.ndarray, r: int, t: int) -> np.ndarray:
        rows, w = minibatch(r, 0, t, k, len(next(iter(clients[k].values()))), case.batching)
        return twin.field(z, {f: v[rows] for f, v in clients[k].items()}, w, clients)

    accepted = set(inspect.signature(case.reference).parameters)
    if "options" in accepted:
        accepted |= set(inspect.signature(ref.coda_plus).parameters) - {"local_steps"}
    arguments = {
        f.name: getattr(alg, f.name) for f in dataclasses.fields(alg) if f.name in accepted - {"options"}
    }
    if "lr_dual" in arguments and arguments["lr_dual"] is None:
        arguments["lr_dual"] = alg.lr
    if "weights" in arguments:
        sizes = [len(next(iter(c.values()))) for c in clients]
        arguments["weights"] = sizes if alg.weights == "samples" else None
    if case.reference.__module__ == ref_cycp.__name__:
        groups = case.participation.groups if isinstance(case.participation, Cyclic) else 1
        if "groups" in accepted:
            arguments["groups"] = groups
        if "stage_epochs" in accepted:
            arguments["stage_epochs"] = alg.stage_rounds // groups
            arguments["output"] = {"rounds": "visits"}.get(alg.output, alg.output)
    if "pick" in accepted:
        schedule = [getattr(alg, f) for f in ("lr", "local_steps", "stage_rounds", "lr_decay")]
        plan = ref.stage_plan(case.rounds, *schedule, alg.interval_growth, alg.stage_growth)
        first = {p["stage"]: r for r, p in reversed(list(enumerate(plan)))}
        arguments["pick"] = lambda s, R: refsampling.server_integer(SEED, first[s], R)
    if case.reference is ref.coda:

        def dual(s: int, r: int, z: np.ndarray) -> float:
            scores, labels = [], []
            for k in who(r):
                rows, _ = minibatch(r, 1, 0, k, len(clients[k]["y"]), Batching(alg.dual_samples))
                x, y = clients[k]["x"][rows], clients[k]["y"][rows]
                scores.append([refproblems.score(z[:-4], z[-4], x_i) for x_i in x])
                labels.append(y)
            return ref.coda_auc_dual(
                scores, labels, [len(clients[k]["y"]) for k in who(r)] if alg.weights == "samples" else None
            )

        arguments["dual"] = dual
    if "v_ref0" in accepted:  # the noise itself is the library's choice
        z = torch.zeros(1, twin.n_x + twin.n_y, dtype=torch.float64)
        arguments["v_ref0"] = alg.memory(z, twin.problem()).v_ref[0].numpy()
    if "n_w" in accepted:
        arguments["n_w"] = getattr(twin.problem(), "flat", None) and FEATURES + 1  # not a and b
    project = twin.project
    if case.twin == "auc_l1":  # of one stage, with one step size
        prox = ref_ffmdr.l1_prox(L1, FEATURES)
        project = lambda z: prox(z, alg.lr)  # the first entries are the weights
    return dict(
        field=field,
        who=who,
        N=N,
        z0=twin.z0(),
        n_x=twin.n_x,
        rounds=case.rounds,
        project=project,
        **arguments,
    )


def fedsgda_arguments(case: Case) -> dict[str, Any]:
    twin, alg = TWINS[case.twin], case.algorithm
    clients = clients_of(twin.data())
    N, sizes = len(clients), [len(next(iter(c.values()))) for c in clients]

    def field(k: int, z: np.ndarray, rows: list, w: list) -> np.ndarray:
        return twin.field(z, {f: v[rows] for f, v in clients[k].items()}, w, clients)

    def project(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = twin.project(np.concatenate([x, y]))
        return z[: twin.n_x], z[twin.n_x :]

    periodic = alg.estimator in ("spider", "svrg")
    some = participants(case.participation, N, 1)  # the second draw of a round is phase A's
    M = len(case.participation.draw(N, SEED, 0).ids)
    many = participants(Uniform(min(N, alg.large_cohort or M * M)), N, 1)
    decay = alg.decay if alg.decay is not None else {"storm": 1 / 3, "averaged": 1 / 3}.get(alg.estimator, 0)
    z0 = twin.z0()
    return dict(
        gradient=ref_fedsgda.gradient_of_field(field, twin.n_x),
        collect=ref_fedsgda.full_batch(sizes),
        minibatch=lambda r, t, k: (
            minibatch(r, 1, t, k, sizes[k], case.batching)
            if case.batching.size
            else ref_fedsgda.full_batch(sizes)(r, k)
        ),
        who_a=lambda r: many(r) if periodic and ref_fedsgda.refreshes(r, alg.period) else some(r),
        who_b=participants(case.participation, N),
        x0=z0[: twin.n_x],
        y0=z0[twin.n_x :],
        rounds=case.rounds,
        estimator={"averaged": "average"}.get(alg.estimator, alg.estimator),
        eta=ref_fedsgda.power(alg.lr, decay),
        gamma=ref_fedsgda.power(alg.lr if alg.lr_dual is None else alg.lr_dual, decay),
        alpha=ref_fedsgda.momentum(alg.momentum, decay),
        period=alg.period if periodic else None,
        local_steps=alg.local_steps,
        project=project,
    )


def ffmdr_arguments(case: Case) -> dict[str, Any]:
    twin, alg = TWINS[case.twin], case.algorithm
    clients = clients_of(twin.data())
    sizes = [len(next(iter(c.values()))) for c in clients]
    d = twin.n_x + twin.n_y

    c = [n * len(sizes) / sum(sizes) if alg.weights == "samples" else 1.0 for n in sizes]  # of f_k

    def on(k: int, z: np.ndarray, rows: list[int], w: list[float]) -> np.ndarray:
        return c[k] * twin.field(z, {f: v[rows] for f, v in clients[k].items()}, w, clients)

    def full(k: int, z: np.ndarray) -> np.ndarray:
        return on(k, z, list(range(sizes[k])), [1 / sizes[k]] * sizes[k])

    def draw(k: int, r: int, t: int) -> tuple[list, list]:
        return minibatch(r, 0, t, k, sizes[k], case.batching)

    def solve(k: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The field is affine: F(u) = H u + c."""
        c = full(k, np.zeros(d))
        H = np.stack([full(k, e) - c for e in np.eye(d)], axis=1)
        on_x = np.diag([1 / alg.beta] * twin.n_x + [0.0] * twin.n_y)
        right = np.concatenate([x / alg.beta, np.zeros(twin.n_y)]) - c
        u = np.linalg.solve(H + on_x, right)
        return u[: twin.n_x], u[twin.n_x :]

    def modulus(k: int) -> float:
        if alg.modulus is not None:
            return alg.modulus
        assert case.twin == "auc_l1"
        p = refproblems.client_mean_p([c["y"] for c in clients])
        return min(1 / alg.beta, c[k] * 2 * p * (1 - p))

    exact = alg.solver == "exact"
    return dict(
        field=lambda k, z, r, t: on(k, z, *draw(k, r, t)),
        who=participants(case.participation, len(clients)),
        N=len(clients),
        z0=twin.z0(),
        n_x=twin.n_x,
        rounds=case.rounds,
        beta=alg.beta,
        inner="sgda" if exact else alg.solver,
        stop="exact" if exact else alg.stop,
        epochs=alg.epochs,
        steps_per_epoch=lambda k: -(-sizes[k] // case.batching.size),
        lr=alg.lr,
        lr_dual=alg.lr if alg.lr_dual is None else alg.lr_dual,
        full_field=full,
        sample_field=lambda k, j, z: on(k, z, [j], [1.0]),
        samples=lambda k: sizes[k],
        rows=lambda k, r, t: draw(k, r, t)[0],
        solve=solve,
        eps=alg.accuracy,
        modulus=modulus,
        tolerance=alg.tolerance,
        relaxation=alg.relaxation,
        prox=ref_ffmdr.l1_prox(L1, FEATURES) if case.twin == "auc_l1" else ref_ffmdr.no_prox,
        server_prox=alg.server_prox,
        project=twin.project,
    )


def local_minimax_arguments(case: Case) -> dict[str, Any]:
    """Of the baselines of FFMDR's paper."""
    twin, alg = TWINS[case.twin], case.algorithm
    clients = clients_of(twin.data())
    sizes = [len(next(iter(c.values()))) for c in clients]
    lr_dual = alg.lr if alg.lr_dual is None else alg.lr_dual

    def field(k: int, z: np.ndarray, r: int, t: int, phase: int = 0) -> np.ndarray:
        if isinstance(alg, FedNest) and not alg.corrected:
            phase = (phase - 1) // 2
        rows, w = minibatch(r, phase, t, k, sizes[k], case.batching)
        return twin.field(z, {f: v[rows] for f, v in clients[k].items()}, w, clients)

    common = dict(
        field=field,
        who=participants(case.participation, len(clients)),
        N=len(clients),
        z0=twin.z0(),
        n_x=twin.n_x,
        rounds=case.rounds,
        local_prox=ref_ffmdr.l1_prox(L1, FEATURES) if case.twin == "auc_l1" else ref_ffmdr.no_prox,
        project=twin.project,
    )
    steps = dict(lr=alg.lr, lr_dual=lr_dual, local_steps=alg.local_steps)
    if isinstance(alg, MomentumLocalSGDA):
        b_y = alg.momentum if alg.momentum_dual is None else alg.momentum_dual
        return common | steps | dict(a=alg.mixing, b_x=alg.momentum, b_y=b_y)
    if isinstance(alg, FedSGDAPlus):
        return common | steps | dict(refresh=alg.refresh, server_lr=alg.server_lr)
    if isinstance(alg, FedSGDAM):
        return common | steps | dict(alpha=alg.alpha)
    if isinstance(alg, FedNormSGDA):
        B, epochs = case.batching.size, alg.local_epochs
        return common | dict(
            eta_x=alg.lr,
            eta_y=lr_dual,
            gamma_x=alg.server_lr * alg.lr,
            gamma_y=alg.server_lr * lr_dual,
            I=lambda k: epochs * -(-sizes[k] // B) if epochs else alg.local_steps,
            weights=sizes if alg.weights == "samples" else None,
        )
    full = lambda k, z: twin.field(z, clients[k], [1 / sizes[k]] * sizes[k], clients)
    I = lambda k: alg.local_steps
    return common | dict(
        full_field=full, alpha=alg.lr, beta=lr_dual, T=alg.inner_loops, I_x=I, I_y=I, corrected=alg.corrected
    )


AMBIGUITY = {
    "chi2": ref_robust.chi2,
    "cvar": ref_robust.cvar,
    "afl": ref_robust.afl_set,
}


def robust_arguments(case: Case) -> dict[str, Any]:
    twin, alg = TWINS[case.twin], case.algorithm
    clients = clients_of(twin.data())
    N, sizes = len(clients), [len(c["y"]) for c in clients]

    def on(k: int, x: np.ndarray, rows: list[int], w: list[float]) -> np.ndarray:
        return twin.field(x, {f: v[rows] for f, v in clients[k].items()}, w, clients)

    def value(k: int, x: np.ndarray, rows: list[int], w: list[float]) -> float:
        h, y = clients[k]["x"][rows] @ x[:-1] + x[-1], clients[k]["y"][rows]
        each = np.logaddexp(0, np.where(y == 1, -h, h)) if case.twin == "logistic" else (h - y) ** 2 / 2
        return float(np.dot(w, each))

    def everything(k: int) -> tuple[list[int], list[float]]:
        return list(range(sizes[k])), [1 / sizes[k]] * sizes[k]

    def field(k: int, x: np.ndarray, r: int, t: int, phase: int = 0) -> np.ndarray:
        return on(k, x, *minibatch(r, phase, t, k, sizes[k], case.batching))

    common = dict(field=field, N=N, x0=twin.z0(), rounds=case.rounds)
    loss = lambda k, x: value(k, x, *everything(k))
    who = participants(case.participation, N)
    if isinstance(alg, QFedAvg):
        return common | dict(loss=loss, who=who, q=alg.q, lr=alg.lr, local_steps=alg.local_steps)
    if isinstance(alg, DeltaFL):
        level = 1 - alg.tail
        return common | dict(
            loss=loss, who=who, sizes=sizes, level=level, lr=alg.lr, local_steps=alg.local_steps
        )
    if isinstance(alg, AgnosticFedAvg):
        return common | dict(loss=loss, lr=alg.lr, lr_lambda=alg.dual_lr, local_steps=alg.local_steps)
    name, _, number = alg.ambiguity.partition("(")
    chosen = AMBIGUITY[name](*([float(number[:-1])] if number else []))
    some = {} if isinstance(case.participation, Full) else {"who": who}
    if isinstance(alg, AgnosticFL):
        more = dict(
            loss=loss, lr=alg.lr, lr_lambda=alg.dual_lr, local_steps=alg.local_steps, ambiguity=chosen
        )
        return common | some | more
    if isinstance(alg, DRFA):
        M = len(case.participation.draw(N, SEED, 0).ids)

        def by_weight(r: int, lam: np.ndarray) -> list[int]:
            p = np.clip(lam, 0, None)
            return (
                np.random.default_rng([refsampling.SERVER, SEED, r, 1])
                .choice(N, size=M, p=p / p.sum())
                .tolist()
            )

        return common | dict(
            stochastic_loss=lambda k, x, r: value(k, x, *minibatch(r, 1, 0, k, sizes[k], case.batching)),
            sample_lambda=by_weight,
            sample_uniform=lambda r: Uniform(M).draw(N, SEED, r, 2).ids.tolist(),
            snapshot=lambda r: refsampling.server_integer(SEED, r, alg.local_steps) + 1,
            lr=alg.lr,
            local_steps=alg.local_steps,
            gamma=alg.dual_lr,
            ambiguity=None if name == "afl" else chosen,
        )
    steps = dict(tau=alg.tau, sigma=alg.sigma, theta=alg.theta)
    if alg.mu_x is not None:
        steps = dict(schedule=ref_robust.growing_schedule(alg.mu_x, alg.tau, alg.sigma / alg.tau))
    return (
        common
        | some
        | steps
        | dict(
            full_gradient=lambda k, x: on(k, x, *everything(k)),
            loss=loss,
            ambiguity=chosen,
            local_steps=alg.local_steps,
            eta_g=alg.server_lr,
            correction=alg.corrected,
        )
    )


def pairwise_arguments(case: Case) -> dict[str, Any]:
    twin, alg = TWINS[case.twin], case.algorithm
    psi, k = PAIR_LOSSES[case.twin]
    fed, problem, B = twin.data(), twin.problem(), case.batching.size
    assert isinstance(problem, Pairwise) and isinstance(B, int)
    clients = []
    for c in clients_of(fed):
        sides = problem.sides({f: torch.from_numpy(v) for f, v in c.items()})
        rows = [np.flatnonzero(side.numpy()) for side in sides]
        clients.append(tuple([(c["x"][i], c["y"][i]) for i in at] for at in rows))

    def rep(w: np.ndarray, sample: tuple) -> np.ndarray:
        h = w[: k * FEATURES].reshape(k, FEATURES) @ sample[0] + w[k * FEATURES :]
        return np.append(h, sample[1]) if psi.labels else h

    def rep_vjp(w: np.ndarray, sample: tuple, g: np.ndarray) -> np.ndarray:
        return np.concatenate([np.outer(g[:k], sample[0]).ravel(), g[:k]])

    def draw(client: int, r: int, t: int, side: int) -> list[int]:
        n, replace = len(clients[client][side - 1]), case.batching.sampling == "with_replacement"
        return refsampling.filled(SEED, r, 0, side - 1, t, client, n, B, replace)

    def noise(client: int, r: int, side: int) -> np.ndarray:
        """One stream for both sides, with a number for each that is sent."""
        stage = 0
        while stage_of is not None and r >= case.participation.period + stage_of[stage]:
            stage += 1
        count = max(1, round(alg.local_steps * alg.interval_growth**stage)) * B
        widths = (k + psi.labels + isinstance(alg, FeDXL2), k + psi.labels)
        numbers = alg.noise * np.array(refsampling.normal(SEED, r, 0, client, count * sum(widths)))
        own = numbers[: count * widths[0]] if side == 1 else numbers[count * widths[0] :]
        return own.reshape(count, -1)[:, :k]

    stage_of = None
    if alg.stage_rounds is not None:
        lengths = [max(1, round(alg.stage_rounds * alg.stage_growth**s)) for s in range(case.rounds)]
        stage_of = np.cumsum(lengths)
    options = (
        "lr",
        "local_steps",
        "pairing",
        "stage_rounds",
        "lr_decay",
        "stage_growth",
        "interval_growth",
        "bits",
    )
    arguments = {name: getattr(alg, name) for name in options}
    if isinstance(alg, FeDXL2):
        arguments |= dict(
            u0=float("nan"),
            gamma=alg.rate,
            beta=alg.momentum,
            outer=ref_pairwise.log_outer(problem.temperature),
        )
    return dict(
        rep=rep,
        rep_vjp=rep_vjp,
        psi=psi,
        clients=clients,
        draw=draw,
        pool_draw=lambda r, position, side, n, count: refsampling.from_pool(
            SEED, r, side - 1, position, n, count
        ),
        who=participants(case.participation, len(clients)),
        w0=twin.z0(),
        rounds=case.rounds,
        period=case.participation.period,
        batch=B,
        output={"rounds": "visits"}.get(alg.output, alg.output),
        noise=noise if alg.noise else None,
        **arguments,
    )


def library(name: str, chunk: int | None = STACKED) -> Run:
    """The library's run of a case."""
    case = CASES[name]
    twin = TWINS[case.twin]
    return drive(
        case.algorithm,
        twin.problem(),
        twin.data(),
        case.rounds,
        start=twin.z0(),
        participation=case.participation,
        batching=case.batching,
        chunk=chunk,
    )


def agrees(name: str, chunk: int | None = STACKED) -> None:
    """Check: the library's trajectory is the reference's, to 1e-10."""
    expected, got = reference(name), library(name, chunk).z
    assert np.abs(expected).max() < 50, "the case must not diverge"
    assert np.abs(np.diff(expected, axis=0)).max() > 1e-3, "the case must move"
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


# -------------------------------------------------------------------------------------------------- mutations


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    def unwrap(value: Any) -> Any:
        if isinstance(value, property):
            return value.fget
        return getattr(value, "__func__", value)

    owned = [v for v in vars(module).values() if getattr(v, "__module__", None) == module.__name__]
    members = [unwrap(v) for owner in owned if inspect.isclass(owner) for v in vars(owner).values()]
    for value in (*owned, *members):
        if isinstance(value, types.FunctionType):
            yield value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from _codes(part)


@contextlib.contextmanager
def mutated(module: types.ModuleType, old: str, new: str) -> Iterator[None]:
    """Replace `old`, which occurs once in the module's source, and swap in the functions' changed code."""
    source = inspect.getsource(module)
    occurrences = source.count(old)
    assert occurrences == 1, f"{old!r} occurs {occurrences} times in {module.__name__}: rewrite the mutation"
    changed = {
        c.co_qualname: c for c in _codes(compile(source.replace(old, new), str(module.__file__), "exec"))
    }
    originals = {f: f.__code__ for f in _functions(module) if f.__code__.co_filename == module.__file__}
    line = source[: source.index(old)].count("\n") + 1
    hit = [f for f, c in originals.items() if c.co_firstlineno <= line <= _last_line(c)]
    assert hit, f"{old!r} lies in no function of {module.__name__}"
    try:
        for f in hit:
            f.__code__ = changed[f.__code__.co_qualname]
        _forget(module)
        yield
    finally:
        for f in hit:
            f.__code__ = originals[f]
        _forget(module)


def _forget(module: types.ModuleType) -> None:
    """Nothing that was computed by other code is kept."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def _last_line(code: types.CodeType) -> int:
    own = max(line for _, _, line in code.co_lines() if line is not None)
    return max([own, *(_last_line(c) for c in code.co_consts if isinstance(c, types.CodeType))])


# -------------------------------------------------------------------------------------------- shared checks


@dataclasses.dataclass(frozen=True)
class Fixed(Participation):
    """Always these clients, of whom those in `silent` do not answer."""

    ids: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()

    def ask(self, n: int, seed: int, round: int, draw: int) -> np.ndarray:
        return np.array(self.ids, dtype=np.int64)

    def draw(self, n: int, seed: int, round: int, draw: int = 0) -> Draw:
        out = super().draw(n, seed, round, draw)
        return out._replace(answered=~np.isin(out.ids, self.silent))


@dataclasses.dataclass(frozen=True)
class Lost(Cyclic):
    """Groups in turn; in some rounds nobody answers."""

    lost: tuple[int, ...] = ()

    def draw(self, n: int, seed: int, round: int, draw: int = 0) -> Draw:
        out = super().draw(n, seed, round, draw)
        return out._replace(answered=out.answered & (round not in self.lost))


def distance_to_saddle(algorithm: Algorithm, rounds: int = 60) -> float:
    """How far full-batch runs on a heterogeneous quadratic end from the known saddle point."""
    fed, problem = quadratic_federation(4, 4, 3, heterogeneity=1.0, seed=1), QuadraticSaddle(4, 3)
    clients = [tuple(c[f][0] for f in problem.fields) for c in clients_of(fed)]
    saddle = refproblems.quadratic_saddle(clients)
    return float(np.abs(drive(algorithm, problem, fed, rounds, batching=FULL).z[-1] - saddle).max())


def corrected(algorithm: Algorithm) -> Callable[[], None]:
    """Check: with control variates ten local steps a round reach the saddle."""

    def check() -> None:
        assert distance_to_saddle(algorithm) < 1e-12

    return check


def distance_by_samples(algorithm: Algorithm, participation: Participation = Full()) -> float:
    """How far full-batch runs end from the saddle point of the mean over all samples of clients with 1 to 4 of them."""
    fed, problem = quadratics(), QuadraticSaddle(3, 2)
    samples = zip(*(fed.data[f].numpy() for f in problem.fields), strict=True)
    run = drive(algorithm, problem, fed, 80, batching=FULL, participation=participation)
    return float(np.abs(run.z[-1] - refproblems.quadratic_saddle(list(samples))).max())


def corrected_by_samples(participation: Participation) -> Callable[[], None]:
    """Check: with control variates and weights by samples, local steps reach the saddle of all samples."""

    def check() -> None:
        weighted = CODASCA(lr=0.15, local_steps=3, weights="samples")
        assert distance_by_samples(weighted, participation) < 1e-12

    return check


def best_pairwise(fed: Federation, weights: str = "clients") -> np.ndarray:
    """The w that minimises E[(1 - w'(x - x'))^2 | x positive, x' negative] when clients, or samples, weigh equally."""
    clients = clients_of(fed)
    x = np.concatenate([c["x"] for c in clients])
    y = np.concatenate([c["y"] for c in clients])
    weight = np.concatenate([np.full(len(c["y"]), 1 / len(c["y"])) for c in clients])
    weight = weight if weights == "clients" else np.ones(len(y))
    pairs = [(i, j) for i in range(len(y)) for j in range(len(y)) if y[i] == 1 and y[j] != 1]
    gram = sum(weight[i] * weight[j] * np.outer(x[i] - x[j], x[i] - x[j]) for i, j in pairs)
    return np.linalg.solve(gram, sum(weight[i] * weight[j] * (x[i] - x[j]) for i, j in pairs))


def auc_reaches_best_pairwise(weights: Any = "clients", p: Any = "client_mean") -> None:
    """Check: the min-max form of AUC, solved by CODASCA, gives the best linear scorer of the pairwise square loss."""
    algorithm = CODASCA(lr=0.2, local_steps=10, weights=weights)
    run = drive(algorithm, AUC(_linear(), p=p), binary(), 110, batching=FULL)
    np.testing.assert_allclose(run.z[-1][:FEATURES], best_pairwise(binary(), weights), rtol=0, atol=1e-6)
