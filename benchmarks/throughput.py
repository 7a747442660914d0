"""Client steps a second and TFLOP/s of finished runs, from the journals that `fedsaddle reproduce` writes.

    python benchmarks/throughput.py runs.jsonl ...

Runs that were computed as one have the same seconds, with evaluations and compiling. Where several processes shared a GPU
each line is one process's part of it. A client step is one minibatch of one client; TFLOP/s count the multiplications and
additions of forward and backward passes, as in gpu.py, of local steps alone.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedsaddle import models
from fedsaddle.journal import Journal
from fedsaddle.parse import from_toml

SHAPES = {"cifar10": (3, 32, 32)}


def tflop(model: str, data: str) -> float:
    """Of one sample's forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        models.build(model, SHAPES[data])(torch.zeros(1, *SHAPES[data])).sum().backward()
    return float(counter.get_total_flops()) / 1e12


def client_steps(config: dict[str, Any]) -> int:
    who = config["participation"]
    clients = config["partition"]["clients"] if who["name"] == "full" else who["m"]
    return int(config["train"]["rounds"] * clients * config["algorithm"]["local_steps"])


def main(paths: list[str]) -> None:
    for path in paths:
        groups: dict[tuple[str, str, int, float], list[dict[str, Any]]] = defaultdict(list)
        for text, entry in Journal(Path(path))._done.items():
            config, seconds = from_toml(text), entry["metrics"].get("seconds")
            if seconds is not None and config["data"]["name"] in SHAPES:
                name, batch = config["algorithm"]["name"], config["train"]["batch_size"]
                groups[name, config["model"]["name"], batch, round(seconds, 1)].append(config)
        print(f"{path}\n{'method':20} {'model':10} batch  runs  minutes  client steps/s  TFLOP/s")
        for method in dict.fromkeys(key[:3] for key in groups):
            own = {key: runs for key, runs in groups.items() if key[:3] == method}
            steps = sum(client_steps(c) for runs in own.values() for c in runs)
            seconds = sum(key[3] for key in own)
            each = tflop(method[1], "cifar10") * method[2]
            print(
                f"{method[0]:20} {method[1]:10} {method[2]:5d} {sum(map(len, own.values())):5d} {seconds / 60:8.1f} "
                f"{steps / seconds:15,.0f} {steps * each / seconds:8.1f}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
