"""T39: the numbers that travel, against section 7 of the spec, on a toy model with d parameters."""

import numpy as np
import pytest
import torch

from fedsaddle.algorithms import (
    ALGORITHMS,
    CODA,
    CODASCA,
    DRFA,
    FFMDR,
    NPA,
    SCAFFOLD,
    AgnosticFedAvg,
    AgnosticFL,
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
from fedsaddle.errors import NobodyAnswered
from fedsaddle.messages import BYTES_PER_NUMBER, Once, PhaseTraffic
from fedsaddle.participation import Full, Uniform
from fedsaddle.problems import AUC, ERM, PairwiseAUC, PartialAUC, QuadraticSaddle, quadratic_federation
from tests import harness
from tests.harness import Fixed, binary, connect, drive

N, ROUNDS, STAGES = 6, 7, 3  # stages of three rounds: two are finished, a third is begun
d = harness.FEATURES + 1  # parameters of Linear(3, 1)
v, D = d + 2, d + 3  # with a and b; with alpha too
STAGED = dict(lr=0.01, local_steps=2, stage_rounds=3)

# algorithm -> {phase: (phases, numbers down, numbers up)}, each summed over all clients and rounds
each_round = lambda down, up: (ROUNDS, ROUNDS * N * down, ROUNDS * N * up)
plus = lambda *parts: tuple(map(sum, zip(*parts, strict=True)))
v_ref = (0, STAGES * N * v, 0)  # once a stage and client
sums = (
    0,
    0,
    2 * N * (D + 1),
)  # CODA+: with the last message of a stage, the sum of iterates and how many they were

IB = 2 * 4  # scores of a side in a visit: local steps times batch size


def pairs(down, up, scores):
    """The first round only collects scores; numbers a client and round."""
    return {
        "first_scores": (1, N * d, N * scores),
        "active_passive_steps": (ROUNDS - 1, (ROUNDS - 1) * N * down, (ROUNDS - 1) * N * up),
    }


TABLE = {
    "local_sgda": (LocalSGDA(local_steps=2), {"local_descent_ascent": each_round(D, D)}),
    "fedavg": (FedAvg(local_steps=2), {"local_descent_ascent": each_round(d, d)}),
    "fedavg-samples": (FedAvg(weights="samples"), {"local_descent_ascent": each_round(d, d)}),
    "fedprox": (FedProx(local_steps=2), {"local_descent_ascent": each_round(d, d)}),
    "scaffold": (SCAFFOLD(local_steps=2), {"corrected_steps": each_round(2 * d, 2 * d)}),
    "npa": (NPA(lr=0.01), {"proximal_steps": each_round(D, D)}),
    "npa-gamma": (
        NPA(lr=0.01, gamma=0.1, stage_rounds=3, output="last"),
        {"proximal_steps": plus(each_round(D, D), v_ref)},
    ),
    "coda_plus": (CODAPlus(**STAGED), {"proximal_steps": plus(each_round(D, D), sums)}),
    "coda_plus-gamma": (
        CODAPlus(**STAGED, gamma=0.1),
        {"proximal_steps": plus(each_round(D, D), v_ref, sums)},
    ),
    "coda_plus-last": (
        CODAPlus(**STAGED, gamma=0.1, output="last"),
        {"proximal_steps": plus(each_round(D, D), v_ref)},
    ),
    "coda_plus-random": (CODAPlus(**STAGED, output="random"), {"proximal_steps": each_round(D, D)}),
    "coda_plus-one_stage": (CODAPlus(lr=0.01, local_steps=2), {"proximal_steps": each_round(D, D)}),
    "coda": (
        CODA(**STAGED, gamma=0.1, output="last"),
        {"proximal_steps": plus(each_round(D, D), v_ref), "fresh_statistics": (2, 2 * N * v, 2 * N * 4)},
    ),
    "codasca": (CODASCA(**STAGED), {"drift_corrected_steps": each_round(2 * D, 2 * D)}),
    "codasca-gamma": (
        CODASCA(**STAGED, gamma=0.1),
        {"drift_corrected_steps": plus(each_round(2 * D, 2 * D), v_ref)},
    ),
    "fedsgda-mb": (
        FedSGDA(local_steps=2, estimator="mb"),
        {"full_fields": each_round(D, D), "corrected_steps": each_round(2 * D, D)},
    ),
    "fedsgda": (  # the first round needs no second point
        FedSGDA(local_steps=2),
        {
            "full_fields": plus(each_round(2 * D, 2 * D), (0, -N * D, -N * D)),
            "corrected_steps": each_round(2 * D, D),
        },
    ),
    "fedsgda-spider": (  # nor do rounds 3 and 6, which start afresh
        FedSGDA(local_steps=2, estimator="spider", period=3),
        {
            "full_fields": plus(each_round(2 * D, 2 * D), (0, -3 * N * D, -3 * N * D)),
            "corrected_steps": each_round(2 * D, D),
        },
    ),
    "cycp_minimax": (CyCpMinimax(**STAGED, gamma=0.1), {"proximal_steps": plus(each_round(D, D), v_ref)}),
    "rs_minimax": (RSMinimax(**STAGED), {"proximal_steps": each_round(D, D)}),
    "cycp_fedavg": (CyCpFedAvg(local_steps=2), {"local_descent_ascent": each_round(d, d)}),
    "amplified_fedavg": (
        AmplifiedFedAvg(local_steps=2, period=3),
        {"local_descent_ascent": each_round(d, d)},
    ),
    "amplified_scaffold": (
        AmplifiedSCAFFOLD(local_steps=2, period=3),
        {"corrected_steps": each_round(2 * D, 2 * D)},
    ),
    "cycp_pairwise": (CyCpPairwise(lr=0.1, local_steps=2), pairs(d + 2 * IB, d + 2 * IB, 2 * IB)),
    "rs_pairwise": (RSPairwise(lr=0.1, local_steps=2), pairs(d + 2 * IB, d + 2 * IB, 2 * IB)),
    "rs_pairwise-8_bits": (  # a quarter of the scores' bytes up, and four numbers for their ranges
        RSPairwise(lr=0.1, local_steps=2, bits=8),
        pairs(d + 2 * IB, d + IB // 2 + 4, IB // 2 + 4),
    ),
    "fedxl2": (FeDXL2(lr=0.1, local_steps=2), pairs(d + 3 * IB, d + 3 * IB, 3 * IB)),
    "fedxl2-momentum": (
        FeDXL2(lr=0.1, local_steps=2, momentum=0.5),
        pairs(2 * d + 3 * IB, 2 * d + 3 * IB, 3 * IB),
    ),
    "ffmdr": (FFMDR(), {"proximal_saddle": each_round(v, v)}),  # no dual is ever sent
    "ffmdr-monitor": (FFMDR(monitor=True), {"proximal_saddle": each_round(v, v + 2)}),
    "momentum_local_sgda": (  # the first round has no direction to send
        MomentumLocalSGDA(local_steps=2),
        {"averaged_steps": plus(each_round(2 * D, 2 * D), (0, -N * D, 0))},
    ),
    "fedsgda_m": (
        FedSGDAM(local_steps=2),
        {"storm_steps": plus(each_round(2 * D, 2 * D), (0, -N * D, 0))},
    ),
    "fed_norm_sgda": (FedNormSGDA(local_steps=2), {"normalised_steps": each_round(D, D)}),
    "fed_norm_sgda-epochs": (FedNormSGDA(local_epochs=2), {"normalised_steps": each_round(D, D + 1)}),
    "fedsgda_plus": (  # the snapshot in rounds 0, 3 and 6
        FedSGDAPlus(local_steps=2, refresh=3),
        {"snapshot_steps": plus(each_round(D, D), (0, 3 * N * v, 0))},
    ),
    "fednest": (  # T = 2 loops of y, one of x; the point is sent once a loop
        FedNest(local_steps=2, inner_loops=2),
        {
            "inner_gradients": (2 * ROUNDS, 2 * ROUNDS * N * D, 2 * ROUNDS * N),
            "inner_steps": (2 * ROUNDS, 2 * ROUNDS * N, 2 * ROUNDS * N),
            "outer_gradients": each_round(D, v),
            "outer_steps": each_round(v, v),
        },
    ),
    "fednest-uncorrected": (
        FedNest(local_steps=2, corrected=False),
        {"inner_steps": each_round(D, 1), "outer_steps": each_round(D, v)},
    ),
    "scaff_pd": (  # 2d down, 2d + 1 up: the point is not sent again
        ScaffPD(local_steps=2),
        {"losses_and_gradients": each_round(d, d + 1), "corrected_steps": each_round(d, d)},
    ),
    "afl": (AgnosticFL(local_steps=2), {"local_descent": each_round(d, d + 1)}),
    "agnostic_fedavg": (AgnosticFedAvg(local_steps=2), {"local_descent": each_round(d, d + 1)}),
    "q_fedavg": (QFedAvg(local_steps=2), {"fair_steps": each_round(d, d + 1)}),
    "delta_fl": (
        DeltaFL(local_steps=2, tail=1.0),
        {"full_losses": each_round(d, 1), "local_descent_ascent": each_round(d, d)},
    ),
    "codasca_as_published": (
        PublishedCODASCA(**STAGED, gamma=0.1),
        {"published_steps": each_round(2 * D, 2 * D)},
    ),
}


def problem_for(algorithm, p=0.4):
    model = torch.nn.Linear(harness.FEATURES, 1)
    if algorithm is not None and algorithm.pairwise:
        return (PartialAUC if isinstance(algorithm, FeDXL2) else PairwiseAUC)(model)
    plain = (FedAvg, SCAFFOLD, ScaffPD, AgnosticFL, DRFA)
    return ERM(model) if isinstance(algorithm, plain) else AUC(model, p=p)


@pytest.mark.parametrize("chunk", [harness.STACKED, 4, harness.SERIAL])
@pytest.mark.parametrize("name", TABLE)
def test_section_7(name, chunk):
    algorithm, expected = TABLE[name]
    traffic = drive(algorithm, problem_for(algorithm), binary(), ROUNDS, chunk=chunk).clients.traffic
    assert traffic.by_phase == expected
    assert traffic.setup == ((1, 0, 2 * N) if algorithm.pairwise else (0, 0, 0))
    assert traffic.total == plus(*expected.values())


def test_drfa_sends_two_models_up_and_one_number():
    """2d + 1 up and 2d down for M clients, where those drawn twice count once."""
    run = drive(
        DRFA(local_steps=2, dual_lr=0.1), problem_for(DRFA()), binary(), ROUNDS, participation=Uniform(3)
    )
    steps, loss = (run.clients.traffic.by_phase[k] for k in ("local_steps_with_snapshot", "loss_at_snapshot"))
    assert loss == (ROUNDS, ROUNDS * 3 * d, ROUNDS * 3)
    assert steps.phases == ROUNDS and steps.up == 2 * steps.down and ROUNDS * d <= steps.down < ROUNDS * 3 * d


def test_every_algorithm_has_a_row():
    assert {type(algorithm) for algorithm, _ in TABLE.values()} | {DRFA} >= set(ALGORITHMS.values())


def test_a_number_is_four_bytes_in_any_precision():
    assert BYTES_PER_NUMBER == 4
    algorithm, expected = TABLE["codasca-gamma"]
    for dtype in (torch.float32, torch.float64):
        assert (
            drive(algorithm, problem_for(algorithm), binary(), ROUNDS, dtype=dtype).clients.traffic.by_phase
            == expected
        )


@pytest.mark.parametrize("p", ["client_mean", "pooled"])
def test_set_up_is_counted_apart(p):
    """Two integers a client, from every client, also when few take part in a round."""
    algorithm, _ = TABLE["local_sgda"]
    for participation, m in ((Full(), N), (Uniform(2), 2)):
        clients = drive(
            algorithm, problem_for(algorithm, p), binary(), ROUNDS, participation=participation
        ).clients
        assert clients.traffic.setup == (1, 0, 2 * N)
        assert clients.traffic.total == (ROUNDS, ROUNDS * m * D, ROUNDS * m * D)
        assert clients.failures == 0


def test_failures_cost_the_way_down():
    """A client that is asked but does not answer costs the way down; it may not hold the prox centre, so that goes again."""
    some = Fixed(ids=(0, 2, 3, 5), silent=(2, 3))
    algorithm = CODASCA(**STAGED, gamma=0.1)
    clients = drive(algorithm, problem_for(algorithm), binary(), ROUNDS, participation=some).clients
    down = ROUNDS * 4 * 2 * D + STAGES * 2 * v + ROUNDS * 2 * v
    assert clients.traffic.by_phase == {"drift_corrected_steps": (ROUNDS, down, ROUNDS * 2 * 2 * D)}
    assert clients.failures == 2 * ROUNDS
    assert clients.asked == [0, 2, 3, 5]


def test_nobody_answers():
    some = Fixed(ids=(1, 4), silent=(1, 4))
    algorithm, _ = TABLE["codasca"]
    run = drive(algorithm, problem_for(algorithm), binary(), 3, participation=some)
    assert run.clients.traffic.by_phase == {"drift_corrected_steps": (3, 3 * 2 * 2 * D, 0)}
    assert run.clients.failures == 6


def test_a_client_drawn_twice_is_sent_once():
    twice = Uniform(8, replacement=True)
    algorithm, _ = TABLE["local_sgda"]
    traffic = drive(algorithm, problem_for(algorithm), binary(), ROUNDS, participation=twice).clients.traffic
    sent = sum(len(twice.draw(N, harness.SEED, r).ids) for r in range(ROUNDS))
    assert sent < 8 * ROUNDS
    assert traffic.total == (ROUNDS, sent * D, sent * D)


@pytest.mark.parametrize("m", [1, 3, 6])
def test_prox_centre_is_sent_once_a_stage_to_whom_it_reaches(m):
    algorithm, some = CODAPlus(**STAGED, gamma=0.1, output="last"), Uniform(m)
    traffic = drive(algorithm, problem_for(algorithm), binary(), ROUNDS, participation=some).clients.traffic
    asked = [set(some.draw(N, harness.SEED, r).ids.tolist()) for r in range(ROUNDS)]
    reached = sum(len(set().union(*asked[r : r + 3])) for r in range(0, ROUNDS, 3))
    assert traffic.total == (ROUNDS, ROUNDS * m * D + reached * v, ROUNDS * m * D)


def test_once_is_held_by_version_and_by_phase():
    clients = connect(QuadraticSaddle(3, 2), quadratic_federation(4, 3, 2))
    work = lambda cohort, m: (cohort.each(m[0]), None)
    work.__name__ = "first"
    other = lambda cohort, m: (cohort.each(m[0] + m[1]), None)
    other.__name__ = "second"
    z, centre = torch.zeros(1, 5, dtype=torch.float64), torch.ones(1, 5, dtype=torch.float64)
    clients.begin(0)
    for version in (0, 0, 1, 1):
        clients.mean(work, (z, Once(centre, version), "control", 3))
    assert clients.traffic.by_phase["first"] == (4, 4 * 4 * 5 + 2 * 4 * 5, 4 * 4 * 5)
    reply, _ = clients.mean(other, (z, Once(centre, 1)))
    assert clients.traffic.by_phase["second"] == (1, 4 * 10, 4 * 5)
    assert (reply == 1).all()  # the client reads the value itself


def test_two_phases_are_counted_by_name():
    traffic = drive(TABLE["coda"][0], problem_for(None), binary(), 3).clients.traffic
    assert set(traffic.by_phase) == {"proximal_steps", "fresh_statistics"}
    assert traffic.total.phases == 4
    assert isinstance(traffic.total, PhaseTraffic)


def test_a_round_that_nobody_answers_raises():
    clients = connect(QuadraticSaddle(3, 2), quadratic_federation(4, 3, 2), participation=Fixed(ids=()))
    clients.begin(5)
    with pytest.raises(NobodyAnswered, match=r"nobody answered phase 0 \(local_descent_ascent\) of round 5"):
        LocalSGDA().round(LocalSGDA().init(torch.zeros(1, 5), clients.problem), clients)


def test_the_state_survives_a_round_that_nobody_answers():
    run = drive(
        LocalSGDA(),
        QuadraticSaddle(3, 2),
        quadratic_federation(4, 3, 2),
        3,
        participation=Fixed(ids=()),
        start=np.ones(5),
    )
    assert (run.z == 1).all()
