"""What lower precision of matrix products changes: test AUC of the same runs in full precision and in bf16 (tf32).

CODASCA on the demo's data (imbalanced digits over ten heterogeneous sites), an MLP, 100 rounds of 20 steps; the same seeds,
minibatches and start. State, variates and losses are float32 in all of them.

    python benchmarks/precision.py [--device cpu] [--seeds 5] [--rounds 100]
"""

from __future__ import annotations

import argparse
import statistics

import torch

import fedsaddle as fs
from fedsaddle import demo
from fedsaddle.models import MLP
from fedsaddle.replicas import run_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    silos = demo.federation()
    runs: dict[str, list[fs.Run]] = {}
    for precision in ("full", "tf32", "bf16") if args.device != "cpu" else ("full", "bf16"):
        runs[precision] = []
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            runs[precision].append(
                fs.train(
                    fs.AUC(MLP(64, (64,))), fs.CODASCA(lr=0.03, local_steps=20), silos, rounds=args.rounds, seed=seed,
                    device=args.device, precision=precision, eval_every=args.rounds,
                )
            )  # fmt: skip
        run_all(runs[precision])
    exact = [run.metrics["auc"] for run in runs["full"]]
    print(
        f"full: test AUC {statistics.mean(exact):.5f}, standard deviation over seeds {statistics.stdev(exact):.5f}"
    )
    for precision in [p for p in runs if p != "full"]:
        differences = [run.metrics["auc"] - a for run, a in zip(runs[precision], exact, strict=True)]
        worst = max(differences, key=abs)
        moved = [
            ((run.z - full.z).norm() / full.z.norm()).item()
            for run, full in zip(runs[precision], runs["full"], strict=True)
        ]
        print(
            f"{precision}: difference of test AUC {statistics.mean(differences):+.5f} on average, {worst:+.5f} at most; "
            f"the final iterate moved by {100 * statistics.mean(moved):.2f} %"
        )


if __name__ == "__main__":
    main()
