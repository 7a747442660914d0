"""Client steps a second and TFLOP/s of finished runs, from the journals that `fedsaddle reproduce` writes.

    python benchmarks/throughput.py runs.jsonl ...

Runs that were computed as one end together; their seconds have evaluations and compiling. Where several processes shared a
GPU each line is one process's part of it. A client step is one minibatch of one client; TFLOP/s count the multiplications
and additions of forward and backward passes, as in gpu.py, of local steps alone. Runs that diverged have no seconds and are
left out.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedsaddle import models
from fedsaddle.parse import from_toml

SHAPES = {"cifar10": (3, 32, 32)}


def tflop(model: tuple[tuple[str, Any], ...], data: str) -> float:
    """Of one sample's forward and backward pass."""
    network = models.build(sample_shape=SHAPES[data], **dict(model))
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *SHAPES[data])).sum().backward()
    return float(counter.get_total_flops()) / 1e12


def client_steps(config: dict[str, Any]) -> int:
    who = config["participation"]
    clients = config["partition"]["clients"] if who["name"] == "full" else who["m"]
    return int(config["train"]["rounds"] * clients * config["algorithm"]["local_steps"])


def samples(config: dict[str, Any]) -> int:
    """Whose fields a client step computes: pairs have two sides, FedSGDA's steps two points."""
    twice = config["problem"]["name"] == "pairwise_auc" or config["algorithm"]["name"] == "fedsgda"
    return int(config["train"]["batch_size"]) * (2 if twice else 1)


def together(runs: list[tuple[float, dict[str, Any]]]) -> float:
    """Seconds of all groups of runs: those of a group ended within moments of one another."""
    ends = sorted(seconds for seconds, _ in runs)
    return sum(end for end, after in zip(ends, [*ends[1:], math.inf], strict=True) if after - end > 0.05)


def main(paths: list[str]) -> None:
    for path in paths:
        by_method: dict[tuple[str, tuple[tuple[str, Any], ...], int], list[tuple[float, dict[str, Any]]]] = (
            defaultdict(list)
        )
        for line in Path(path).read_text().splitlines():
            entry = json.loads(line)
            config, seconds = from_toml(entry["config"]), entry["metrics"].get("seconds")
            if seconds is not None and config["data"]["name"] in SHAPES:
                what = config["algorithm"]["name"], tuple(config["model"].items()), samples(config)
                by_method[what].append((seconds, config))
        print(f"{path}\n{'method':20} {'model':10} samples  runs  minutes  client steps/s  TFLOP/s")
        for (method, model, n), runs in by_method.items():
            steps, seconds = sum(client_steps(config) for _, config in runs), together(runs)
            print(
                f"{method:20} {dict(model)['name']:10} {n:7d} {len(runs):5d} {seconds / 60:8.1f} "
                f"{steps / seconds:15,.0f} {steps * n * tflop(model, 'cifar10') / seconds:8.1f}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
