"""The demo: four federated methods on the same imbalanced, heterogeneous data, in under a minute.

    python -m fedsaddle.demo --out demo

Handwritten digits (scikit-learn's, so nothing is downloaded) over ten sites. A model tells odd digits from even ones, but
nine of ten odd digits have been removed from the training data, and a site sees mostly a few of the ten digits. Three
methods maximise the AUC; FedAvg minimises the logistic loss, as one would without this library. All have the same model,
rounds, local steps and minibatches, and they are repeated with three seeds (of initial weights and minibatches).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import torch

from fedsaddle import models, partitions
from fedsaddle.algorithms import CODASCA, Algorithm, CODAPlus, FedAvg, LocalSGDA
from fedsaddle.data import load
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation, optional_import
from fedsaddle.problem import Problem
from fedsaddle.problems import AUC, ERM
from fedsaddle.report import write_comparison, write_report
from fedsaddle.train import Record, human_bytes, train

SITES, ALPHA, KEPT_POSITIVES = 10, 0.2, 0.1
ROUNDS, LOCAL_STEPS, BATCH, HIDDEN = 40, 20, 16, 32
SEEDS = (0, 1, 2)
MARK = ".fedsaddle-demo"  # in a folder that the demo made and may replace


class Method(NamedTuple):
    """A row of the table: a method, what it solves, and its step size."""

    folder: str
    problem: Callable[[torch.nn.Module], Problem]
    algorithm: Callable[[int], Algorithm]  # of the number of rounds


def methods(steps: int = LOCAL_STEPS) -> dict[str, Method]:
    """The methods with their step sizes."""
    return {
        "CODASCA": Method(
            "codasca", AUC,
            lambda rounds: CODASCA(
                lr=0.2, local_steps=steps, gamma=0.002, stage_rounds=max(1, rounds // 2), lr_decay=1.0, output="last"
            ),
        ),
        "CODA+": Method(
            "coda_plus", AUC,
            lambda rounds: CODAPlus(
                lr=0.2, local_steps=steps, gamma=0.002, stage_rounds=max(1, rounds // 2), lr_decay=1.0, output="last"
            ),
        ),
        "Local SGDA": Method("local_sgda", AUC, lambda rounds: LocalSGDA(lr=0.2, local_steps=steps)),
        "FedAvg, logistic loss": Method("fedavg", ERM, lambda rounds: FedAvg(lr=1.0, local_steps=steps)),
    }  # fmt: skip


def federation() -> Federation:
    """Ten sites with their own test (30 %) and validation data; only training data is made imbalanced."""
    digits = load("digits")
    parts = partitions.dirichlet(digits.y, SITES, alpha=ALPHA, min_size=60, seed=0)
    names = [f"site {i + 1:02d}" for i in range(SITES)]
    odd = Federation.from_arrays(
        digits.x, digits.y % 2, clients=parts, names=names, classes=("even", "odd")
    )
    odd = odd.holdout(0.3, seed=0).holdout(0.2, seed=0, into="valid")
    return partitions.remove_positives(odd, 1 - KEPT_POSITIVES, seed=0)


def train_one(method: Method, data: Federation, seed: int, rounds: int, out: Path | None) -> Record:
    """One run; its final metrics."""
    torch.manual_seed(seed)
    model = models.MLP(data.data["x"].shape[1], (HIDDEN,))
    run = train(
        method.problem(model), method.algorithm(rounds), data, rounds=rounds, batch_size=BATCH, seed=seed, out=out,
        progress=False,
    )  # fmt: skip
    return run.metrics
