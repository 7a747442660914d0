"""Participation: draws are pure and well formed, have the right statistics, and mistakes are named."""

import dataclasses
import doctest
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle import participation
from fedsaddle.errors import FedsaddleError
from fedsaddle.participation import (
    PARTICIPATION,
    Cyclic,
    Draw,
    Full,
    Independent,
    Markov,
    Participation,
    Trace,
    Uniform,
    calendar,
)

MILLION = 1_000_000
seeds = st.integers(0, 2**40)
rounds = st.integers(0, 60)


@st.composite
def schemes(draw: st.DrawFn) -> tuple[Participation, int]:
    """Any scheme with a number of clients that suits it."""
    n = draw(st.integers(1, 30))
    probability = st.floats(0.01, 1)
    m = st.integers(1, n)
    failure = draw(st.sampled_from([0.0, 0.3]))
    groups = draw(st.integers(1, n))
    labels = [
        *range(groups),
        *draw(st.lists(st.integers(0, groups - 1), min_size=n - groups, max_size=n - groups)),
    ]
    members = [[i for i in range(n) if labels[i] == g] for g in range(groups)]
    smallest = min(map(len, members))
    shuffle = draw(st.booleans())
    recorded = st.lists(st.lists(st.integers(0, n - 1)), min_size=61, max_size=61)
    makers: list[Callable[[], Participation]] = [
        lambda: Full(failure=failure),
        lambda: Uniform(draw(m), failure=failure),
        lambda: Uniform(draw(st.integers(1, 2 * n)), replacement=True, failure=failure),
        lambda: Independent(draw(probability), failure=failure),
        lambda: Independent(draw(st.lists(probability, min_size=n, max_size=n)), failure=failure),
        lambda: Cyclic(groups, draw(st.integers(1, n // groups)), shuffle, failure=failure),
        lambda: Cyclic(groups, shuffle=shuffle, failure=failure),
        lambda: Cyclic(labels, draw(st.integers(1, smallest)), shuffle, failure=failure),
        lambda: Cyclic(members, draw(st.integers(1, smallest)), shuffle, failure=failure),
        lambda: Markov(draw(probability), draw(st.floats(0, 1)), failure=failure),
        lambda: Markov(draw(probability), draw(st.floats(0, 1)), draw(m), failure=failure),
        lambda: Trace(draw(recorded), failure=failure),
    ]
    scheme = draw(st.sampled_from(makers))()
    scheme.validate(n)
    return scheme, n


def same(a: Draw, b: Draw) -> bool:
    return all(np.array_equal(u, v) for u, v in zip(a, b, strict=True))


# ---- properties


@given(schemes(), seeds, rounds, st.integers(0, 3))
def test_a_draw_is_well_formed(case: tuple[Participation, int], seed: int, round: int, draw: int) -> None:
    scheme, n = case
    ids, counts, answered = scheme.draw(n, seed, round, draw)
    assert (ids.dtype, counts.dtype, answered.dtype) == (np.int64, np.int64, np.bool_)
    assert len(ids) == len(counts) == len(answered)
    assert np.all(np.diff(ids) > 0) and np.all((ids >= 0) & (ids < n)) and np.all(counts >= 1)
    if isinstance(scheme, Uniform):
        assert counts.sum() == scheme.m
    elif not isinstance(scheme, Trace):
        assert np.all(counts == 1)
    if isinstance(scheme, Cyclic) and scheme.m is not None:
        assert len(ids) == scheme.m
    if isinstance(scheme, Markov) and scheme.m is not None:
        assert len(ids) <= scheme.m
    if scheme.failure == 0:
        assert answered.all()


@given(schemes(), seeds, st.lists(rounds, min_size=1, max_size=5))
def test_a_draw_depends_on_its_arguments_only(
    case: tuple[Participation, int], seed: int, order: list[int]
) -> None:
    scheme, n = case
    drawn = {round: scheme.draw(n, seed, round) for round in order}
    participation._last_state.cache_clear()
    participation._permutation.cache_clear()
    twin = pickle.loads(pickle.dumps(dataclasses.replace(scheme)))
    assert twin == scheme and hash(twin) == hash(scheme)
    for round in reversed(order):
        assert same(twin.draw(n, seed, round), drawn[round])


@given(schemes(), seeds, rounds)
def test_failure_does_not_change_who_is_asked(case: tuple[Participation, int], seed: int, round: int) -> None:
    scheme, n = case
    some, more = (dataclasses.replace(scheme, failure=f).draw(n, seed, round) for f in (0.2, 0.6))
    assert np.array_equal(some.ids, more.ids) and np.array_equal(some.counts, more.counts)
    assert np.all(some.answered | ~more.answered)


@pytest.mark.parametrize(
    "scheme",
    [Uniform(10), Uniform(10, replacement=True), Independent(0.3), Cyclic(5, m=10), Markov(0.3, 0.3, m=10)],
    ids=repr,
)
def test_rounds_seeds_and_draws_differ(scheme: Participation) -> None:
    n = 100
    drawn = [scheme.draw(n, s, 5 * r, d).ids.tolist() for s in range(3) for r in range(4) for d in range(3)]
    assert len({tuple(ids) for ids in drawn}) == len(drawn)


@given(st.integers(1, 40), st.data(), seeds, st.booleans())
def test_cyclic_visits_every_group_once_an_epoch(
    n: int, data: st.DataObject, seed: int, shuffle: bool
) -> None:
    groups = data.draw(st.integers(1, n))
    everyone, some = Cyclic(groups, shuffle=shuffle), Cyclic(groups, m=n // groups, shuffle=shuffle)
    for epoch in range(2):
        visits = [everyone.draw(n, seed, epoch * groups + g).ids for g in range(groups)]
        assert np.array_equal(np.sort(np.concatenate(visits)), np.arange(n))
        assert max(map(len, visits)) - min(map(len, visits)) <= 1
        for g, visit in enumerate(visits):
            assert set(some.draw(n, seed, epoch * groups + g).ids) <= set(visit)
    assert calendar(some, n, seed, groups).sum(axis=0).max() == 1


@pytest.mark.parametrize("weights", [None, np.array([5.0, 1.0, 2.0, 3.0, 1.0])])
@pytest.mark.parametrize(
    "scheme",
    [
        Full(), Full(failure=0.5), Uniform(1), Uniform(2), Uniform(4), Uniform(3, replacement=True), Independent(0.3),
        Markov(0.3, 0.3), Markov(0.2, 0.4, m=2), Cyclic([[0], [1, 2, 3, 4]]), Cyclic(2), Cyclic([[3, 0], [1, 2, 4]], m=1),
        Cyclic([[3], [0, 1, 2, 4]], failure=0.3), Cyclic(1, m=2), Cyclic(3, shuffle=True),
    ],
    ids=repr,
)  # fmt: skip
def test_shares_are_those_of_the_rounds_means(scheme: Participation, weights: np.ndarray | None) -> None:
    participation._averaged.cache_clear()
    n, rounds, total = 5, 6000, np.zeros(5)
    for round in range(rounds):
        ids, counts, answered = scheme.draw(n, 1, round)
        own = (counts * (np.ones(n) if weights is None else weights)[ids])[answered]
        total[ids[answered]] += own / own.sum()
    shares = scheme.shares(n, 1, weights)
    assert shares is not None
    np.testing.assert_allclose(shares, total / total.sum(), atol=0.02)


def test_one_client_that_weighs_much_weighs_less_than_its_part_where_few_come() -> None:
    """With Uniform(2) it is in one round of ten, and nearly all of that round's mean: 0.1 (m/n) of 600 / 609 each time."""
    participation._averaged.cache_clear()
    weights = np.array([600.0, *[9.0] * 19])
    shares = Uniform(2).shares(20, 0, weights)
    assert shares is not None and shares[0] == pytest.approx(0.1 * 600 / 609, rel=0.1)


def test_shares_that_are_not_known() -> None:
    assert Trace([[0, 1], [2]]).shares(3, 0) is None and Independent([0.1, 0.2]).shares(2, 0) is None
    np.testing.assert_allclose(Independent(0.3).shares(4, 0), 0.25)


@dataclasses.dataclass(frozen=True)
class Days(Participation):
    """A user's own scheme, which knows who comes in its few rounds and nothing else."""

    days: tuple[tuple[int, ...], ...] = ((0, 1), (2,), (0,))

    def ask(self, n: int, seed: int, round: int, draw: int) -> np.ndarray:
        return np.asarray(self.days[round])


def test_a_scheme_of_ones_own_is_not_asked_for_rounds_that_it_does_not_have() -> None:
    assert Days().shares(3, 0, np.array([3.0, 1.0, 2.0])) is None


@pytest.mark.parametrize("failure", [0.0, 0.1])
def test_many_groups_share_the_draws_of_one_scheme(failure: float, monkeypatch: pytest.MonkeyPatch) -> None:
    participation._averaged.cache_clear()
    participation._of_groups.cache_clear()
    drawn, ask = [], Uniform.ask
    monkeypatch.setattr(Uniform, "ask", lambda self, *more: drawn.append(1) or ask(self, *more))
    weights = np.arange(1.0, 501.0)
    shares = Cyclic(100, m=2, failure=failure).shares(500, 0, weights)
    assert len(drawn) <= participation._MOST_DRAWS
    assert np.array_equal(Cyclic(100, m=2, failure=failure).shares(500, 1, weights), shares)
    assert len(drawn) <= participation._MOST_DRAWS  # which are kept, whatever the seed
    of_groups = shares.reshape(100, 5).sum(-1)
    np.testing.assert_allclose(of_groups, 0.01)
    assert (np.diff(shares.reshape(100, 5)[:10].sum(0)) > 0).all()  # who weighs more has more


def test_cyclic_groups_three_ways() -> None:
    def members(scheme: Cyclic) -> list[list[int]]:
        scheme.validate(7)
        return [scheme.draw(7, 0, round).ids.tolist() for round in range(4)]

    thirds = [[0, 1, 2], [3, 4], [5, 6]]
    assert (
        members(Cyclic(3))
        == members(Cyclic(thirds))
        == members(Cyclic([0, 0, 0, 1, 1, 2, 2]))
        == [*thirds, thirds[0]]
    )
    assert members(Cyclic(list("bababab"))) == [[1, 3, 5], [0, 2, 4, 6]] * 2  # sorted labels
    assert members(Cyclic([[6, 0], [1, 2, 3, 4, 5]])) == [[0, 6], [1, 2, 3, 4, 5]] * 2  # order as given
    shuffled = members(Cyclic(3, shuffle=True))
    assert [len(ids) for ids in shuffled] == [3, 2, 2, 3] and shuffled[:3] != thirds


def test_arrays_are_as_good_as_lists() -> None:
    assert Independent(np.array([0.5, 1.0])) == Independent([0.5, 1.0])
    assert Cyclic(np.array([[0, 2], [1, 3]])) == Cyclic([[0, 2], [1, 3]])
    assert Uniform(np.int64(3)) == Uniform(3)  # type: ignore[arg-type]
    assert type(Uniform(np.int64(3)).m) is int  # type: ignore[arg-type]


def test_one_probability_is_the_same_one_for_each_client() -> None:
    assert same(Independent(0.3).draw(50, 1, 2), Independent([0.3] * 50).draw(50, 1, 2))


@given(st.floats(0.01, 1), st.floats(0, 1), seeds, st.integers(0, 40))
def test_markov_looks_back_to_the_state_that_stepping_forward_gives(
    p_on: float, p_off: float, seed: int, round: int
) -> None:
    n = 20
    u = [participation._rng(participation._AVAILABLE, seed, t).random(n) for t in range(round + 1)]
    on = u[0] < p_on / (p_on + p_off)
    for t in range(1, round + 1):
        on = np.where(on, u[t] < 1 - p_off, u[t] < p_on)
    participation._last_state.cache_clear()
    for _ in range(2):  # without and with the memo
        assert np.array_equal(Markov(p_on, p_off).draw(n, seed, round).ids, np.flatnonzero(on))


def test_calendar_shows_those_who_answer() -> None:
    assert calendar(Cyclic(2), 4, seed=0, rounds=3).tolist() == [[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0]]
    scheme = Full(failure=0.5)
    picture = calendar(scheme, 30, seed=1, rounds=4)
    assert all(np.array_equal(picture[r], scheme.draw(30, 1, r).answered) for r in range(4))


# ---- statistics


def within(measured: float, expected: float, deviation: float) -> bool:
    """Four standard deviations; seeds are fixed, so that a pass stays a pass."""
    return abs(measured - expected) <= 4 * deviation


def test_uniform_marginals() -> None:
    n, m, draws = 20, 5, 4000
    for replacement, share in ((False, m / n), (True, 1 - (1 - 1 / n) ** m)):
        taking_part = calendar(Uniform(m, replacement), n, seed=0, rounds=draws)
        deviation = (share * (1 - share) / draws) ** 0.5
        assert all(within(x, share, deviation) for x in taking_part.mean(axis=0))
    pairs = (
        (taking_part := calendar(Uniform(m), n, seed=1, rounds=draws).astype(float)).T @ taking_part / draws
    )
    share = m * (m - 1) / (n * (n - 1))
    assert np.abs(pairs[~np.eye(n, dtype=bool)] - share).max() < 5 * (share * (1 - share) / draws) ** 0.5


def test_independent_rates() -> None:
    p = np.linspace(0, 1, 21)
    rates = calendar(Independent(p), 21, seed=0, rounds=2000).mean(axis=0)
    assert np.all(np.abs(rates - p) <= 4 * np.sqrt(p * (1 - p) / 2000))


@pytest.mark.parametrize(("p_on", "p_off"), [(0.1, 0.3), (0.05, 0.02), (0.9, 0.7)])
def test_markov_share_and_persistence(p_on: float, p_off: float) -> None:
    n = 20_000
    on = calendar(Markov(p_on, p_off), n, seed=0, rounds=12)
    share = p_on / (p_on + p_off)
    for row in on:  # stationary from the first round
        assert within(row.mean(), share, (share * (1 - share) / n) ** 0.5)
    before, after = on[:-1], on[1:]
    assert within(after[~before].mean(), p_on, (p_on * (1 - p_on) / (~before).sum()) ** 0.5)
    assert within((~after)[before].mean(), p_off, (p_off * (1 - p_off) / before.sum()) ** 0.5)


def test_markov_extremes() -> None:
    assert calendar(Markov(0.5, 0.0), 10, seed=0, rounds=5).all()
    flips = calendar(Markov(1.0, 1.0), 10, seed=0, rounds=5)
    assert np.all(flips[1:] != flips[:-1])


@pytest.mark.parametrize(
    "scheme", [Full(failure=0.2), Uniform(500, failure=0.2), Trace([range(1000)] * 40, failure=0.2)]
)
def test_failure_rate_is_independent_of_round_and_draw(scheme: Participation) -> None:
    answered = np.stack([scheme.draw(1000, 0, r, d).answered for r in range(20) for d in range(2)])
    assert within(answered.mean(), 0.8, (0.2 * 0.8 / answered.size) ** 0.5)
    both = (answered[::2] & answered[1::2]).mean()  # the two draws of a round
    assert within(both, 0.64, (0.64 * 0.36 / answered[::2].size) ** 0.5)


def test_failure_is_independent_of_being_asked() -> None:
    scheme = Independent(0.5, failure=0.5)  # one client: both coins are the first number of their streams
    assert within(calendar(scheme, 1, seed=0, rounds=4000).mean(), 0.25, (0.25 * 0.75 / 4000) ** 0.5)


# ---- many clients


def test_a_million_clients() -> None:
    for round in range(1000):
        assert len(Uniform(50).draw(MILLION, 0, round).ids) == 50
    for scheme in (Full(), Independent(0.001), Cyclic(1000, m=10, shuffle=True), Markov(0.5, 0.5, m=10)):
        scheme.validate(MILLION)
        for round in range(3):
            assert scheme.draw(MILLION, 0, round).ids[-1] < MILLION


def test_uniform_cost_does_not_grow_with_the_clients() -> None:
    assert len(Uniform(50, failure=0.1).draw(10**15, 0, 0).ids) == 50  # an array of all would not fit


# ---- traces


@pytest.mark.parametrize("first", [0, 1])
def test_trace_round_trip_from_history(tmp_path: Path, first: int) -> None:
    scheme, n = Independent(0.1), 12
    drawn = [scheme.draw(n, 3, round).ids.tolist() for round in range(30)]
    assert [] in drawn
    records = [{"round": first + r, "clients": ids, "auc": 0.9} for r, ids in enumerate(drawn)]
    records.insert(0, {"round": 0, "auc": 0.5})  # an evaluation, not a round
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    trace = Trace(path)
    assert trace.rounds == str(path)
    assert np.array_equal(calendar(trace, n, seed=99, rounds=30), calendar(scheme, n, seed=3, rounds=30))
    assert same(trace.draw(n, 0, 4, draw=0), trace.draw(n, 1, 4, draw=1))


def test_trace_from_csv_keeps_counts(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("round,client\n1,4\n0,2\n0,0\n1,4\n")
    assert [Trace(path).draw(5, 0, r).ids.tolist() for r in range(2)] == [[0, 2], [4]]
    assert Trace(str(path)).draw(5, 0, 1).counts.tolist() == [2]


# ---- errors


ERRORS: list[tuple[Callable[[], object], str]] = [
    (lambda: Full().validate(0), "Full: a run must have at least one client, got 0"),
    (lambda: Full(failure=1.0), "Full: failure must be at least 0 and below 1, got 1.0"),
    (lambda: Uniform(3, failure=-0.1), "Uniform: failure must be at least 0 and below 1, got -0.1"),
    (lambda: Uniform(25).validate(20), "Uniform: m must be between 1 and the 20 clients, got 25"),
    (lambda: Uniform(0).validate(20), "Uniform: m must be between 1 and the 20 clients, got 0"),
    (lambda: Uniform(2.5).validate(20), "Uniform: m must be a whole number, got 2.5"),  # type: ignore[arg-type]
    (lambda: Uniform(0, True).validate(20), "Uniform: m must be a whole number, at least 1, got 0"),
    (lambda: Independent(1.5), "Independent: p must be between 0 and 1, got 1.5"),
    (lambda: Independent([0.5, float("nan")]), "Independent: p must be between 0 and 1, got nan"),
    (lambda: Independent(0.0), "Independent: p must be above 0 for some client, got only zeros"),
    (
        lambda: Independent([0.5] * 3).validate(20),
        "Independent: p must be one number or one for each of the 20 clients, got 3",
    ),
    (lambda: Cyclic(21).validate(20), "Cyclic: groups must be between 1 and the 20 clients, got 21"),
    (
        lambda: Cyclic(3, m=7).validate(20),
        "Cyclic: m must be between 1 and the 6 clients of the smallest group, got 7",
    ),
    (
        lambda: Cyclic([0, 0, 1], m=2).validate(3),
        "Cyclic: m must be between 1 and the 1 clients of the smallest group, got 2",
    ),
    (
        lambda: Cyclic([]),
        "Cyclic: groups must be a whole number, lists of client ids, or one label for each client, got ()",
    ),
    (
        lambda: Cyclic([0, [1]]),  # type: ignore[list-item]
        "Cyclic: groups must be a whole number, lists of client ids, or one label for each client, "
        "got (0, (1,))",
    ),
    (lambda: Cyclic([[0], []]), "Cyclic: group 1 must be a list of one or more client ids, got ()"),
    (lambda: Cyclic([[0.5]]), "Cyclic: group 0 must be a list of one or more client ids, got (0.5,)"),  # type: ignore[list-item]
    (
        lambda: Cyclic([0, 1]).validate(3),
        "Cyclic: groups must give one label for each of the 3 clients, got 2",
    ),
    (lambda: Cyclic([[0, 1], [3]]).validate(3), "Cyclic: client ids must be from 0 to 2, got 3 in group 1"),
    (
        lambda: Cyclic([[0], [1]]).validate(3),
        "Cyclic: each of the 3 clients must be in one group, got client 2 in 0",
    ),
    (
        lambda: Cyclic([[0, 1], [1]]).validate(2),
        "Cyclic: each of the 2 clients must be in one group, got client 1 in 2",
    ),
    (lambda: Markov(0.0, 0.5), "Markov: p_on must be above 0 and at most 1, got 0.0"),
    (lambda: Markov(0.5, 1.5), "Markov: p_off must be between 0 and 1, got 1.5"),
    (lambda: Markov(0.5, 0.5, m=21).validate(20), "Markov: m must be between 1 and the 20 clients, got 21"),
    (lambda: Trace([]), "Trace: rounds must have at least one round, got none"),
    (lambda: Trace([0, 1]), "Trace: round 0 must be a list of client ids, got 0"),  # type: ignore[list-item]
    (lambda: Trace([[0], [20]]).validate(20), "Trace: client ids must be from 0 to 19, got 20 in round 1"),
    (
        lambda: Trace([[0], [1]]).draw(20, 0, 5),
        "Trace: round must be below the 2 recorded rounds, got 5; train for at most 2 rounds or record more",
    ),
]


@pytest.mark.parametrize(("mistake", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_errors(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises(FedsaddleError) as error:
        mistake()
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.jsonl", '{"round": 0, "clients": [0]}\n{"rou', '{} line 2 must be a JSON object, got {{"rou'),
        ("t.jsonl", "7", "{} line 1 must be a JSON object, got 7"),
        ("t.jsonl", '{"auc": 1}', "{} must say which clients took part in a round, got no such record"),
        ("t.jsonl", '{"round": 0, "clients": []}\n' * 2, "{} line 2 must have its own round number, got 0"),
        ("t.jsonl", '{"round": "a", "clients": []}', "{} line 1 must have its own round number, got a"),
        (
            "t.jsonl",
            '{"round": 5, "clients": []}',
            "{} must number its rounds from 0 or 1, got 5 as the first",
        ),
        (
            "t.jsonl",
            '{"round": 0, "clients": [[0], [1, 2]]}',
            "round 0 must be a list of client ids, got [[0], [1, 2]]",
        ),
        (
            "t.csv",
            "round,client\n0,1\n3,1",
            "{} must have every round from 0 to 3, got no round 1; "
            'write a round without clients as {{"round": ..., "clients": []}} in JSON lines',
        ),
        (
            "t.csv",
            "round,client\n\n0,x",
            "{} line 3 must have whole numbers in the columns round,client, "
            "got {{'round': '0', 'client': 'x'}}",
        ),
        (
            "t.csv",
            "round\n0",
            "{} line 2 must have whole numbers in the columns round,client, got {{'round': '0'}}",
        ),
    ],
)
def test_errors_in_trace_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FedsaddleError) as error:
        Trace(path)
    assert str(error.value) == "Trace: " + message.format(path)


def test_trace_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        FedsaddleError, match=r"^Trace: rounds must be a readable text file, got .*none.csv: .*No such"
    ):
        Trace(tmp_path / "none.csv")


def test_registry_and_examples() -> None:
    assert {name: cls.__name__.lower() for name, cls in PARTICIPATION.items()} == {
        name: name for name in PARTICIPATION
    }
    assert list(PARTICIPATION) == ["full", "uniform", "independent", "cyclic", "markov", "trace"]
    failed, attempted = doctest.testmod(participation)
    assert attempted and not failed
