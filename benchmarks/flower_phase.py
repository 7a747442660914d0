"""Seconds that a phase of a deployment on one machine costs beside the client work: a SuperLink, N sites, TLS and keys.

CODASCA with one local step on linear AUC (breast cancer data), so that a phase is all overhead; and a message of a million
numbers. `--stock` uses Flower's own `flower-supernode` in place of `fedsaddle deploy site`, which starts a process for each
message and looks for the next one every three seconds.

    python benchmarks/flower_phase.py [--sites 4] [--rounds 20] [--stock] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from fedsaddle.config import load
from fedsaddle.deploy import drive
from fedsaddle.deploy.commands import local_sites
from fedsaddle.deploy.home import Home
from fedsaddle.deploy.link import ENVIRONMENT, superlink
from fedsaddle.deploy.trial import trial


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def stock_sites(home: Home) -> Iterator[None]:
    """Flower's own SuperNodes, with the same keys and data."""
    processes = []
    for name in home.manifest.sites:
        place = home.site(name)
        command = ["flower-supernode", "--root-certificates", "ca.crt", "--superlink", home.local,
                   "--auth-supernode-private-key", "key.pem", "--port", str(free_port()),
                   "--node-config", f'site="{place.resolve() / "site.toml"}"']  # fmt: skip
        environment = os.environ | ENVIRONMENT | {"FLWR_HOME": str(place.resolve() / "flower")}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        (place / "flower").mkdir(exist_ok=True)
        with open(place / "site.log", "ab") as output:
            processes.append(
                subprocess.Popen(command, cwd=place, env=environment, stdout=output, stderr=subprocess.STDOUT)
            )
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


def seconds(home: Home, folder: Path, rounds: int, *assignments: str) -> dict[str, Any]:
    """Medians over the phases of a run."""
    settings = [
        f"train.rounds={rounds}",
        f"train.eval_every={rounds}",
        "algorithm.local_steps=1",
        *assignments,
    ]
    run = drive.run(load(home.folder / "run.toml", settings), folder, progress=False)
    phases = run.clients.phase_seconds[1:]  # the first is the set-up, with the session
    return {
        "numbers": int(run.z.numel()),
        "phases": len(phases),
        "median": statistics.median(phases),
        "fastest": min(phases),
        "slowest": max(phases),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--stock", action="store_true", help="Flower's own SuperNode")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = trial(Path(folder) / "federation", options.sites, f"127.0.0.1:{free_port()}")
        started = time.perf_counter()
        with superlink(home), stock_sites(home) if options.stock else local_sites(home):
            results = {"small": seconds(home, Path(folder) / "small", options.rounds)}
            if not options.stock:
                large = ("model.name=mlp", "model.hidden=[1000, 1000]")
                results["a million numbers"] = seconds(home, Path(folder) / "large", options.rounds, *large)
        whole = time.perf_counter() - started
    kind = "flower-supernode" if options.stock else "fedsaddle deploy site"
    for name, r in results.items():
        print(
            f"{options.sites} x {kind}, {name} ({r['numbers']:,} numbers): median {r['median']:.2f} s a phase, "
            f"{r['fastest']:.2f} to {r['slowest']:.2f}, over {r['phases']} phases"
        )
    print(f"load of the machine {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores; {whole:.0f} s in all")
    if options.json:
        report = {"sites": options.sites, "kind": kind, "load": os.getloadavg(), "results": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
