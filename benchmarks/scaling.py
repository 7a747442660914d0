"""What logarithms of the columns change on tables with long tails: test AUC with `scale = "standard"` and `"log"`.

Settings are those of the config that `fedsaddle new` writes: linear from zero, ten local steps, batches of 32, 50 rounds,
sites by their rows, and the step size up to 0.1 that it finds for each. Sets: breast_cancer (bundled); census_income, of
which every seed takes 20,000 rows, with all columns and with its seven numeric ones; claims, generated: amounts that are
log-normal, and a risk that grows with their logarithm. The last column is scikit-learn's logistic regression on the pooled
rows, standardised.

    FEDSADDLE_DATA=... python benchmarks/scaling.py [--seeds 10] [--sets breast_cancer census_income census_numeric claims]
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import warnings

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import fedsaddle as fs
from fedsaddle import data
from fedsaddle.steps import largest_near_best, tried

ROWS, SITES = 20_000, 5
LR = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
SETS = ("breast_cancer", "census_income", "census_numeric", "claims")


def rows(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([7, seed])
    if name == "claims":
        amounts, age = np.exp(rng.normal(7, 1.5, (3000, 2))), rng.uniform(18, 90, 3000)
        risk = np.log(amounts) @ [0.7, -0.4] + 0.02 * age + rng.normal(0, 1.5, 3000)
        return np.column_stack([amounts, age]), (risk > np.quantile(risk, 0.93)).astype(int)
    dataset = data.load("census_income" if name == "census_numeric" else name)
    x, y = dataset.x, dataset.y
    if len(y) > ROWS:
        kept = rng.choice(len(y), ROWS, replace=False)
        x, y = x[kept], y[kept]
    return (x[:, :7] if name == "census_numeric" else x), y


def measured(federation: fs.Federation, how: str, seed: int) -> float:
    scaled = federation.scaled(how)
    model = torch.nn.Linear(scaled.data["x"].shape[1], 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    algorithm = fs.CODASCA(lr=0.1, local_steps=10, weights="samples")
    problem = fs.AUC(model, p="pooled")
    start, left = tried(problem, algorithm, scaled, "lr", LR, rounds=10, batch_size=32, seed=seed)
    algorithm = dataclasses.replace(algorithm, lr=largest_near_best(LR, left, start))
    run = fs.train(
        problem, algorithm, scaled, rounds=50, batch_size=32, seed=seed, eval_every=50, progress=False
    )
    return float(run.metrics["auc"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds must be at least 2, for a deviation")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of long tails, which are what is measured here
    print(
        "| set | standard | log | log less standard | log higher in | logistic regression |\n|---|---|---|---|---|---|"
    )
    for name in args.sets:
        found: dict[str, list[float]] = {"standard": [], "log": [], "pooled": []}
        for seed in range(args.seeds):
            x, y = rows(name, seed)
            at = np.random.default_rng([8, seed]).integers(0, SITES, len(y))
            federation = fs.Federation.from_arrays(x, y, clients=at).holdout(0.25, seed=seed)
            for how in ("standard", "log"):
                found[how].append(measured(federation, how, seed))
            plain = federation.scaled("standard")
            assert plain.test is not None
            other = LogisticRegression(max_iter=2000).fit(plain.data["x"], plain.data["y"])
            scores = other.decision_function(plain.test.data["x"])
            found["pooled"].append(float(roc_auc_score(plain.test.data["y"], scores)))
        gain = [b - a for a, b in zip(found["standard"], found["log"], strict=True)]
        cells = [
            f"{statistics.fmean(v):.4f} ± {statistics.stdev(v):.4f}"
            for v in (*list(found.values())[:2], gain, found["pooled"])
        ]
        print(
            f"| {name} | {cells[0]} | {cells[1]} | {cells[2]} | {sum(g > 0 for g in gain)} of {len(gain)} | {cells[3]} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
