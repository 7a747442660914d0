"""The demo: four federated methods on the same imbalanced, heterogeneous data, in under a minute.

    python -m fedsaddle.demo --out demo

Handwritten digits (scikit-learn's, so nothing is downloaded) over ten sites. A model tells odd digits from even ones, but
nine of ten odd digits have been removed from the training data, and a site sees mostly a few of the ten digits. Three
methods maximise the AUC; FedAvg minimises the logistic loss, as one would without this library. All have the same model,
rounds, local steps and minibatch size, and are repeated with three seeds (of initial weights and minibatches).

How this setting was chosen, and what it does not show. It was picked after seeing test results of several: on breast
cancer data FedAvg's logistic loss was best, and with a milder split of the digits (Dirichlet, alpha = 0.2) all four were
within 0.004 in test AUC, Local SGDA best. alpha = 0.1 is where clients drift apart, which CODASCA corrects. Afterwards the
methods as they stand here were run once on six partitions that had played no part in any choice: CODASCA had the best test
AUC on 6 of 6 with alpha = 0.1 (the best worst-20 % AUC on 3) and on 0 of 6 with alpha = 0.3 (Local SGDA on 5, FedAvg on 1).
CODASCA sends twice the bytes a round; at equal bytes the four are close here too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from fedsaddle import models, partitions, transforms
from fedsaddle.algorithms import CODASCA, Algorithm, CODAPlus, FedAvg, LocalSGDA
from fedsaddle.data import load
from fedsaddle.errors import FedsaddleError, optional_import
from fedsaddle.federation import Federation
from fedsaddle.problem import Problem
from fedsaddle.problems import AUC, ERM
from fedsaddle.progress import human_bytes
from fedsaddle.report import write_comparison, write_report
from fedsaddle.train import Record, train

SITES, ALPHA, KEPT_POSITIVES = 10, 0.1, 0.1
ROUNDS, LOCAL_STEPS, BATCH, HIDDEN = 40, 20, 16, 32
SEEDS = (0, 1, 2)
NOTE = (
    "A hard split of the data, chosen because methods differ there: sites see few digits each. On milder splits "
    "the four are close, and Local SGDA is often best. CODASCA sends twice the bytes a round."
)
MARK = ".fedsaddle-demo"  # in a folder that the demo made and may replace


class Method(NamedTuple):
    """What is compared: an algorithm and the problem that it solves."""

    folder: str
    problem: Callable[[torch.nn.Module], Problem]
    algorithm: Algorithm


# Step sizes: for each method the one of {0.1, 0.2, 0.3, 0.5, 1, 2} with the highest validation AUC, mean of the seeds 100,
# 101, 102. CODASCA diverges from 0.3 on, Local SGDA and CODA+ from 1 on. FedAvg's logistic loss has smaller gradients, hence
# the larger step. All steps are constant: lr_decay = 1/3 was tried too, worse for CODASCA and the same for CODA+.
_STAGES: dict[str, Any] = {
    "local_steps": LOCAL_STEPS,
    "gamma": 0.002,
    "stage_rounds": ROUNDS // 2,
    "lr_decay": 1.0,
    "output": "last",
}
METHODS = {
    "CODASCA": Method("codasca", AUC, CODASCA(lr=0.2, **_STAGES)),
    "CODA+": Method("coda_plus", AUC, CODAPlus(lr=0.3, **_STAGES)),
    "Local SGDA": Method("local_sgda", AUC, LocalSGDA(lr=0.3, local_steps=LOCAL_STEPS)),
    "FedAvg, logistic loss": Method("fedavg", ERM, FedAvg(lr=1.0, local_steps=LOCAL_STEPS)),
}


def federation() -> Federation:
    """Ten sites, each with its own test (30 %) and validation data; only the training data loses its odd digits."""
    digits = load("digits")
    parts = partitions.dirichlet(digits.y, SITES, alpha=ALPHA, min_size=60, seed=0)
    names = [f"site {i + 1:02d}" for i in range(SITES)]
    sites = Federation.from_arrays(
        digits.x, digits.y % 2, clients=parts, names=names, classes=("even", "odd")
    )
    sites = sites.holdout(0.3, seed=0).holdout(0.2, seed=0, into="valid")
    return transforms.remove_positives(sites, 1 - KEPT_POSITIVES, seed=0)


def train_one(method: Method, sites: Federation, seed: int, rounds: int, out: Path | None = None) -> Record:
    """One run; its final metrics."""
    torch.manual_seed(seed)
    model = models.MLP(sites.data["x"].shape[1], (HIDDEN,))
    run = train(
        method.problem(model), method.algorithm, sites, rounds=rounds, batch_size=BATCH, seed=seed, out=out, progress=False
    )  # fmt: skip
    return run.metrics


def demo(out: Path, seeds: Sequence[int] = SEEDS, rounds: int = ROUNDS) -> Path:
    """Train everything into the folder `out`, print the table, and return the path of the report."""
    optional_import("plotly", "the demo", "report")  # before the work, not after it
    _make_room(out)
    sites = federation()
    _tell(
        f"{len(METHODS)} methods x {len(seeds)} seeds, {rounds} rounds of {LOCAL_STEPS} local steps: {sites}"
    )
    folders: dict[str, list[Path]] = {name: [] for name in METHODS}
    results: dict[str, list[Record]] = {name: [] for name in METHODS}
    runs = [(name, seed) for name in METHODS for seed in seeds]
    for i, (name, seed) in enumerate(runs):
        folder = out / "runs" / f"{METHODS[name].folder}-seed{seed}"
        final = train_one(METHODS[name], sites, seed, rounds, folder)
        _tell(
            f"[{i + 1:2d}/{len(runs)}] {name}, seed {seed}: test AUC {final['auc']:.4f} ({final['seconds']:.1f} s)"
        )
        folders[name].append(folder)
        results[name].append(final)
    print(f"{_table(results)}\n\n{textwrap.fill(NOTE, 88)}")
    write_report(folders["CODASCA"][0])
    return write_comparison(folders, out / "report.html", note=NOTE)


def _table(results: dict[str, list[Record]]) -> str:
    rows = [("method", "test AUC", "worst-20 % AUC", "rounds", "bytes")]
    for name, finals in results.items():
        moved = float(np.mean([f["bytes_down"] + f["bytes_up"] for f in finals]))
        auc, worst = (_mean([f[key] for f in finals]) for key in ("auc", "auc_worst20"))
        rows.append((name, auc, worst, str(finals[0]["round"]), human_bytes(moved)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def _mean(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


def _make_room(out: Path) -> None:
    """Make the folder, or empty it of an earlier demo; anybody else's folder is refused."""
    if out.is_dir() and not (out / MARK).is_file() and any(out.iterdir()):
        raise FedsaddleError(
            f"{out}: has other content, which the demo does not replace; choose another --out"
        )
    if out.exists() and not out.is_dir():
        raise FedsaddleError(f"{out}: is a file; choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).write_text("Made by python -m fedsaddle.demo, which replaces runs/ and report.html.\n")
    except OSError as error:
        raise FedsaddleError(f"{out}: cannot be written ({error.strerror}); choose another --out") from error
    if (out / "runs").exists():
        shutil.rmtree(out / "runs")
    (out / "report.html").unlink(missing_ok=True)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")  # one line, without the usage


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, or 2 for bad input."""
    parser = _Arguments(
        prog="fedsaddle.demo", description="Compare four federated methods on imbalanced data."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for runs and report (default: demo)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two seeds and four rounds, to see that it works"
    )
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        if options.quick:
            report = demo(options.out, seeds=SEEDS[:2], rounds=4)
        else:
            report = demo(options.out)
    except FedsaddleError as error:
        _tell(f"fedsaddle.demo: {error}")
        return 2
    _tell(f"done in {time.perf_counter() - started:.0f} s")
    print(f"\nThe report is {report}; open it in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
