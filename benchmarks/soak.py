"""Resident memory over the rounds of a long run with many clients: it may grow with what new clients remember.

100,000 clients of 4 samples with 20 features (generated), 1,000 of them a round, a linear model and CODASCA, which keeps a
variate of the model's size for each client that has worked. The run is written into a folder with its checkpoints, as any
run is. Memory is read from /proc, after Python and the allocator have given back what is free: Linux (glibc) alone.

    python benchmarks/soak.py [--clients 100000] [--cohort 1000] [--rounds 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import fedsaddle as fs

SAMPLES, FEATURES = 4, 20
EVERY, WARM = 10, 20  # rounds between two looks; rounds after which everything is loaded and allocated once


def resident_mib() -> float:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(clients: int, cohort: int, rounds: int, out: Path) -> dict[str, object]:
    torch.manual_seed(0)
    x, y = torch.randn(clients * SAMPLES, FEATURES), (torch.rand(clients * SAMPLES) < 0.3).long()
    names = tuple(map(str, range(clients)))
    federation = fs.Federation({"x": x, "y": y}, torch.arange(clients + 1) * SAMPLES, names)
    run = fs.train(
        fs.AUC(nn.Linear(FEATURES, 1)), fs.CODASCA(lr=0.01, local_steps=5), federation, rounds=rounds,
        participation=fs.Uniform(cohort), batch_size=4, eval_every=20, out=out, progress=None,
    )  # fmt: skip
    resident: dict[int, float] = {}
    worked: dict[int, int] = {}
    seen = torch.zeros(clients, dtype=torch.bool)
    started = time.perf_counter()
    for record in run:
        seen[record.get("clients", [])] = True
        if record["round"] % EVERY == 0 or record["round"] == rounds:
            resident[record["round"]] = round(resident_mib(), 1)
            worked[record["round"]] = int(seen.sum())
    named = [who for record in run.records[WARM + 1 :] if (who := record.get("clients"))]
    numbers = run.problem.n_x + run.problem.n_y  # that a client remembers
    return {
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "seconds": round(time.perf_counter() - started, 1),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "growth_mib": round(resident[rounds] - resident[WARM], 1),
        "new_clients": worked[rounds] - worked[WARM],
        "their_memory_mib": round((worked[rounds] - worked[WARM]) * numbers * 4 / 2**20, 1),
        "their_names_mib": round(4 * sum(map(len, named)) / 2**20, 1),
        "resident_mib": resident,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.rounds <= WARM:
        parser.error(f"--rounds must be more than {WARM}, got {args.rounds}")
    with tempfile.TemporaryDirectory() as folder:
        found = soak(args.clients, args.cohort, args.rounds, Path(folder) / "run")
    print(
        f"{found['rounds']} rounds in {found['seconds']} s: peak {found['peak_mib']} MiB; from round {WARM} to the end "
        f"{found['growth_mib']:+} MiB; the memory of {found['new_clients']:,} new clients is {found['their_memory_mib']} "
        f"MiB, the participants named in records {found['their_names_mib']} MiB"
    )
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
