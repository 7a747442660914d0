"""96 replicas (32 step sizes x 3 seeds) as one stacked run, against one run alone, in one process.

Workloads: W1 (100 clients x 300 samples x 123 features, linear AUC, 20 a round x 20 steps x batch 32) and the quadratic
saddle (10 clients, 10 local steps, full batches). CODASCA.

    python benchmarks/replicas.py [--device cpu] [--threads 2] [--rounds 10]
"""

from __future__ import annotations

import argparse
import time

import torch

import fedsaddle as fs
from fedsaddle.replicas import run_together

POINTS = [(0.001 * (1 + i), seed) for i in range(32) for seed in range(3)]


def w1(lr: float, seed: int, rounds: int, device: str, federation: fs.Federation) -> fs.Run:
    torch.manual_seed(seed)
    return fs.train(
        fs.AUC(torch.nn.Linear(123, 1), p=0.2), fs.CODASCA(lr=lr, local_steps=20), federation, rounds=rounds, seed=seed,
        participation=fs.Uniform(20), device=device, eval_every=rounds,
    )  # fmt: skip


def quadratic(lr: float, seed: int, rounds: int, device: str, federation: fs.Federation) -> fs.Run:
    return fs.train(
        fs.QuadraticSaddle(10, 5), fs.CODASCA(lr=lr, local_steps=10), federation, rounds=rounds, seed=seed,
        batch_size=None, device=device, dtype="float64", eval_every=rounds,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30_000, 123, generator=g), (torch.rand(30_000, generator=g) < 0.2).long()
    silos = fs.Federation({"x": x, "y": y}, torch.arange(101) * 300, tuple(map(str, range(100))))
    for name, make, federation in (("W1", w1, silos), ("quadratic", quadratic, fs.quadratic_federation(10))):
        make(*POINTS[0], 2, args.device, federation).finish()  # warm up
        started = time.perf_counter()
        single = make(*POINTS[0], args.rounds, args.device, federation).finish()
        one = time.perf_counter() - started
        runs = [make(*point, args.rounds, args.device, federation) for point in POINTS]
        started = time.perf_counter()
        run_together(runs)
        together = time.perf_counter() - started
        gap = (runs[0].z - single.z).abs().max().item()
        print(
            f"{name}: one run {one:.2f} s, {len(runs)} together {together:.2f} s: {together / one:.1f} times one run "
            f"({len(runs)} without stacking); largest difference of replica 0 to its own run {gap:.1e}"
        )


if __name__ == "__main__":
    main()
