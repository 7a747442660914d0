"""Trajectories of every algorithm equal the NumPy references (written from the spec, without the library) to 1e-10."""

import pytest

from fedsaddle.algorithms import ALGORITHMS
from tests import harness
from tests.harness import CASES, SERIAL, STACKED


@pytest.mark.parametrize("chunk", [STACKED, SERIAL], ids=["stacked", "serial"])
@pytest.mark.parametrize("name", CASES)
def test_trajectory(name, chunk):
    harness.agrees(name, chunk)


def test_every_algorithm_has_a_case():
    assert {type(case.algorithm) for case in CASES.values()} >= set(ALGORITHMS.values())
