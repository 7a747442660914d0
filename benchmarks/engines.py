"""Rounds a second of the stacked engine, eager and compiled, against the serial one, in one run.

100 clients x 300 samples x 123 features (generated), linear AUC, CODASCA, 20 clients a round, 20 local steps, batch 32.
They take turns, so that a noisy machine slows both.

    python benchmarks/engines.py [--threads 2] [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

import fedsaddle as fs
from fedsaddle.clients import Task
from fedsaddle.cohort import Batching
from fedsaddle.engines.simulation import Simulation

CLIENTS, SAMPLES, FEATURES = 100, 300, 123
ROUNDS = {"stacked": 40, "compiled": 40, "serial": 3}  # measured in one turn


def federation() -> fs.Federation:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * SAMPLES, FEATURES, generator=g)
    y = (x[:, 0] + torch.randn(len(x), generator=g) > 1.5).long()
    return fs.Federation(
        {"x": x, "y": y}, torch.arange(CLIENTS + 1) * SAMPLES, tuple(f"client {i}" for i in range(CLIENTS))
    )


class Turn:
    """A run of one engine that can be continued for some rounds."""

    def __init__(self, engine: str) -> None:
        torch.manual_seed(0)
        problem = fs.AUC(torch.nn.Linear(FEATURES, 1), p=0.15)
        self.algorithm = fs.CODASCA(lr=0.05, local_steps=20)
        self.clients = Simulation(
            Task(problem, federation(), fs.Uniform(20), Batching(32)),
            chunk=1 if engine == "serial" else None,
            compile=engine == "compiled",
        )
        z = self.clients.problem.init().unsqueeze(0)
        self.state = self.algorithm.init(z, self.clients.problem)
        self.clients.remember(self.algorithm.memory(z, self.clients.problem))
        self.round = 0

    def rounds_per_second(self, n: int) -> float:
        started = time.perf_counter()
        for _ in range(n):
            self.clients.begin(self.round)
            self.state = self.algorithm.round(self.state, self.clients)
            self.round += 1
        return n / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    turns = {name: Turn(name) for name in ROUNDS}
    for turn in turns.values():
        turn.rounds_per_second(2)  # warm up
    speed: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(args.repeats):
        for name, turn in turns.items():
            speed[name].append(turn.rounds_per_second(ROUNDS[name]))
    for name, values in speed.items():
        print(f"{name:8s} {statistics.median(values):8.2f} rounds/s  (median of {args.repeats})")
    for name in ("stacked", "compiled"):
        ratios = [a / b for a, b in zip(speed[name], speed["serial"], strict=True)]
        print(
            f"{name} / serial: {statistics.median(ratios):.1f}  (from {min(ratios):.1f} to {max(ratios):.1f})"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(
                {"threads": args.threads, "rounds_per_second": speed, "ratio": statistics.median(ratios)},
                file,
            )


if __name__ == "__main__":
    main()
