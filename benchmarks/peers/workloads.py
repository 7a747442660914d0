"""What every contender of the side-by-side benchmark shares: workloads, data, models and the stopwatch.

It needs PyTorch alone, so that it can be imported in every contender's own environment.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

POSITIVE = 0.15  # share of positive samples
WARM_UP = 3  # rounds


@dataclass(frozen=True)
class Workload:
    """One federated problem; all numbers are the same for every contender."""

    clients: int
    samples: int  # of each client
    shape: tuple[int, ...]  # of a sample
    cohort: int  # clients in a round
    steps: int  # local steps of a client in a round
    batch: int
    lr: float

    def model(self) -> nn.Sequential:
        """Linear for vectors, fedsaddle.models.CNN's layers for images; the same first weights everywhere."""
        torch.manual_seed(0)
        if len(self.shape) == 1:
            return nn.Sequential(nn.Linear(self.shape[0], 1))
        return nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    @functools.cache  # noqa: B019 (a workload lives as long as the process)
    def data(self) -> tuple[Tensor, Tensor]:
        """Features [clients, samples, *shape] and classes 0 and 1 [clients, samples]: a faint pattern marks class 1."""
        g = torch.Generator().manual_seed(0)
        y = (torch.rand(self.clients, self.samples, generator=g) < POSITIVE).long()
        x = torch.randn(self.clients, self.samples, *self.shape, generator=g)
        pattern = 0.15 * torch.randn(self.shape, generator=g)
        return x.addcmul_(pattern, y.float().view(*y.shape, *(1 for _ in self.shape))), y


WORKLOADS = {
    "W1": Workload(clients=100, samples=300, shape=(123,), cohort=20, steps=20, batch=32, lr=0.05),
    "W2": Workload(clients=100, samples=100, shape=(3, 32, 32), cohort=10, steps=10, batch=10, lr=0.05),
    "W3": Workload(clients=1000, samples=300, shape=(123,), cohort=200, steps=20, batch=32, lr=0.05),
}


def rows(n: int, batch: int) -> Tensor:
    """A minibatch of a client with n samples, drawn without replacement."""
    return torch.randperm(n)[:batch]


@torch.no_grad()
def auc(model: nn.Module, workload: Workload) -> float:
    """Area under the ROC curve on the first ten clients' samples: shows that a contender really learns."""
    x, y = (t[:10].flatten(0, 1) for t in workload.data())
    rank = model(x).squeeze(-1).argsort().argsort() + 1.0
    pos = y == 1
    n_pos, n_neg = pos.sum(), (~pos).sum()
    return float((rank[pos].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


def arguments(description: str | None, *flags: str) -> argparse.Namespace:
    """The options that every contender takes, and its own switches."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--workload", choices=WORKLOADS, default="W1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure, about")
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def measure(
    run: Callable[[int], None], seconds: float, agree: Callable[[int], int] = lambda n: n
) -> dict[str, float]:
    """Time whole rounds.

    Args:
        run: does the given number of rounds, going on where it stopped.
        seconds: how long to measure, about.
        agree: with several processes, makes all of them take the number of rounds of the first.
    """
    run(WARM_UP)
    trial = _timed(run, 2) / 2
    n = agree(max(2, math.ceil(seconds / trial)))
    return {"rounds": n, "seconds": _timed(run, n)}


def report(result: dict[str, float], before: float, after: float) -> None:
    """Print a contender's one line, with the AUC of its model before the first and after the last round."""
    print(json.dumps({**result, "auc_before": round(before, 4), "auc_after": round(after, 4)}), flush=True)


def _timed(run: Callable[[int], None], n: int) -> float:
    started = time.perf_counter()
    run(n)
    return time.perf_counter() - started
