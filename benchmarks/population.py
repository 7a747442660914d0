"""Round time and peak memory as the population grows from a thousand clients to a million, at a fixed cohort.

100 clients a round, 5 local steps of batch 4, a small MLP (about 10,000 parameters), 4 samples of 20 features a client
(generated). FedSGDA (STORM) keeps nothing on clients; CODASCA keeps a variate of the model's size on each client that has
worked. Each population runs in a fresh process; the medians of whole rounds (without evaluation) are compared.

    python benchmarks/population.py [--clients 1000 10000 100000 1000000] [--rounds 100] [--threads 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch

import fedsaddle as fs
from fedsaddle.clients import Task
from fedsaddle.cohort import Batching
from fedsaddle.engines.simulation import Simulation
from fedsaddle.models import MLP

SAMPLES, FEATURES, COHORT = 4, 20, 100
ALGORITHMS = {
    "FedSGDA": lambda: fs.FedSGDA(lr=0.01, local_steps=5),
    "CODASCA": lambda: fs.CODASCA(lr=0.01, local_steps=5),
}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, n: int, rounds: int, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = torch.randn(n * SAMPLES, FEATURES), (torch.rand(n * SAMPLES) < 0.3).long()
    federation = fs.Federation({"x": x, "y": y}, torch.arange(n + 1) * SAMPLES, tuple(map(str, range(n))))
    with_data, started = peak_mib(), time.perf_counter()
    problem = fs.AUC(MLP(FEATURES, (128, 56)))
    clients = Simulation(Task(problem, federation, fs.Uniform(COHORT), Batching(4)))
    clients.problem = problem = clients.problem.prepare(clients)
    algorithm, z = ALGORITHMS[name](), problem.init().unsqueeze(0)
    state = algorithm.init(z, problem)
    clients.remember(algorithm.memory(z, problem))
    set_up, times = time.perf_counter() - started, []
    for r in range(rounds):
        started = time.perf_counter()
        clients.begin(r)
        state = algorithm.round(state, clients)
        times.append(time.perf_counter() - started)
    return {
        "clients": n,
        "set_up_s": set_up,
        "round_ms": 1e3 * statistics.median(times[5:]),
        "data_mib": (x.nbytes + y.nbytes) / 2**20,
        "before_mib": with_data,
        "peak_mib": peak_mib(),
        "parameters": problem.n_x,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), args.rounds, args.threads)))
        return
    results: dict[str, list[dict[str, float]]] = {}
    for name in ALGORITHMS:
        rows = results[name] = []
        print(
            f"{name}\n   clients   set-up   round   slower than the first   peak memory   of it data and Python"
        )
        for n in args.clients:
            command = [sys.executable, __file__, "--one", name, str(n), "--rounds", str(args.rounds)]
            done = subprocess.run(
                [*command, "--threads", str(args.threads)], capture_output=True, text=True, check=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            r = rows[-1]
            print(
                f"{n:10,d} {r['set_up_s']:6.1f} s {r['round_ms']:4.1f} ms {r['round_ms'] / rows[0]['round_ms']:23.2f}"
                f" {r['peak_mib']:9,.0f} MiB {r['before_mib']:16,.0f} MiB",
                flush=True,
            )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
