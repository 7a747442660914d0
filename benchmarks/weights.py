"""What weights by samples change: test AUC over all sites' held-out rows, clients weighted equally and by their samples.

Three sets, each dealt to unequal sites in three ways. "four": sites with 55, 28.5, 15 and 1.5 % of the rows, whose features
differ. "one class": the same, the smallest has one class only (positives in odd seeds). "dirichlet": ten sites by a
Dirichlet draw of their classes, as `fedsaddle new` deals a data set. The table is generated and has 2,000 rows, so that the
smallest of four sites has 30. Settings are those of the config that `fedsaddle new` writes: linear, but from a random start,
lr 0.1, ten local steps, batches of 32, 50 rounds. "one site" is CODASCA on the pooled rows.

    python benchmarks/weights.py [--seeds 10] [--rounds 50] [--sets table phishing a9a]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import torch

import fedsaddle as fs
from fedsaddle import data, partitions

SHARES = (0.55, 0.285, 0.15, 0.015)
STEPS = dict(lr=0.1, local_steps=10)
BY_SAMPLES = dict(STEPS, weights="samples")
METHODS = {  # algorithm and p
    "CODASCA, clients": (fs.CODASCA(**STEPS), "client_mean"),
    "CODASCA, samples": (fs.CODASCA(**BY_SAMPLES), "pooled"),
    "CODASCA, samples, p of clients": (fs.CODASCA(**BY_SAMPLES), "client_mean"),
    "CODA+, clients": (fs.CODAPlus(**STEPS), "client_mean"),
    "CODA+, samples": (fs.CODAPlus(**BY_SAMPLES), "pooled"),
    "one site": (fs.CODASCA(**STEPS), "pooled"),
}


def rows(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a set; the table has ten features, and a fifth of its rows are positive."""
    if name != "table":
        dataset = data.load(name)
        return dataset.x, dataset.y
    rng = np.random.default_rng([3, seed])
    x = rng.normal(size=(2000, 10))
    risk = x @ rng.normal(size=10) / 2 + rng.normal(size=2000)
    return x, (risk > np.quantile(risk, 0.8)).astype(int)


def sites(x: np.ndarray, y: np.ndarray, way: str, seed: int) -> fs.Federation:
    if way == "dirichlet":
        split = partitions.dirichlet(y, 10, alpha=0.5, min_per_class=4, seed=seed)
    else:
        rng = np.random.default_rng([5, seed])
        place = (x - x.mean(0)) @ rng.normal(size=x.shape[1])  # sites lie along a direction, and overlap
        order = np.argsort(place + place.std() * rng.normal(size=len(y)))
        few = round(SHARES[-1] * len(y))
        small = (
            order[:few] if way == "four" else rng.choice(np.flatnonzero(y == seed % 2), few, replace=False)
        )
        others = order[~np.isin(order, small)]
        split = [*np.split(others, np.round(np.cumsum(SHARES[:2]) * len(y)).astype(int)), small]
    return fs.Federation.from_arrays(x, y, clients=split).holdout(0.25, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--sets", nargs="+", default=["table", "phishing", "a9a"])
    args = parser.parse_args()
    print(
        "test AUC, mean and deviation over seeds; mean of the sites' own AUC; gain of the first over equal weights"
    )
    for name in args.sets:
        for way in ("four", "one class", "dirichlet"):
            got: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
            for seed in range(args.seeds):
                federation = sites(*rows(name, seed), way, seed)
                for method, (algorithm, p) in METHODS.items():
                    torch.manual_seed(seed)
                    problem = fs.AUC(torch.nn.Linear(federation.data["x"].shape[1], 1), p=p)
                    own = federation.pooled() if method == "one site" else federation
                    run = fs.train(
                        problem, algorithm, own, rounds=args.rounds, seed=seed, eval_every=args.rounds
                    )
                    got[method].append((run.metrics["auc"], run.metrics["auc_clients"]))
            for method, both in got.items():
                auc, of_sites = zip(*both, strict=True)
                line = (
                    f"{name:9} {way:10} {method:31} {statistics.mean(auc):.4f} +- {statistics.stdev(auc):.4f}"
                )
                line += f"   {statistics.mean(of_sites):.4f}"
                if "samples" in method:
                    equal, _ = zip(*got[f"{method.partition(',')[0]}, clients"], strict=True)
                    gains = [a - b for a, b in zip(auc, equal, strict=True)]
                    better = sum(gain > 0 for gain in gains)
                    line += f"   {statistics.mean(gains):+.4f}, higher in {better} of {args.seeds}"
                print(line, flush=True)


if __name__ == "__main__":
    main()
