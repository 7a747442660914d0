"""The flower engine with its sites in this process: the simulation's iterates, and every way in which a site can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from tests.fleet import CASES, MORE, Fleet, deployed, federation, simulated, tree


@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_a_deployment_computes_what_the_simulation_computes(case: str, tmp_path: Path) -> None:
    whole, config = federation(), tree(case)
    fleet = Fleet(whole, tmp_path)
    run, reference = deployed(fleet, config), simulated(whole, config)
    torch.testing.assert_close(run.z, reference.z, rtol=0, atol=1e-6)
    assert run.z.ne(simulated(whole, tree(case, rounds=1)).z).any()
    for counted in ("phases", "bytes_down", "bytes_up", "failures", "participants"):
        assert run.metrics[counted] == reference.metrics[counted]
