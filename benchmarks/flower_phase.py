"""Seconds that a phase of a deployment on one machine costs beside the client work: a SuperLink, N sites, TLS and keys.

CODASCA with one local step on linear AUC (breast cancer data), so that a phase is all overhead; and a message of a million
numbers. Sites are what `fedsaddle deploy site` starts: Flower's SuperNode and, as its ClientApp, fedsaddle. The SuperNode
pauses for `--interval` between two looks for messages; Flower's own pause is 3 seconds. `--subprocess` leaves the ClientApp
to Flower too, which starts a process for each message.

    python benchmarks/flower_phase.py [--sites 4] [--rounds 20] [--interval 3] [--subprocess] [--small] [--json FILE]
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
from fedsaddle.deploy.link import superlink
from fedsaddle.deploy.program import ENVIRONMENT, STOCK_INTERVAL
from fedsaddle.deploy.trial import trial
from fedsaddle.toml import to_toml


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def subprocess_sites(home: Home) -> Iterator[None]:
    """Flower's SuperNodes alone, with the same keys and data."""
    processes = []
    for name in home.manifest.sites:
        place = home.site(name)
        command = ["flower-supernode", "--root-certificates", "ca.crt", "--superlink", home.local,
                   "--auth-supernode-private-key", "key.pem", "--port", str(free_port()),
                   "--node-config", f'site="{place.resolve() / "site.toml"}"']  # fmt: skip
        environment = os.environ | ENVIRONMENT | {"FLWR_HOME": str(place.resolve() / "flower")}
        environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.05"
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
    parser.add_argument("--interval", type=float, default=STOCK_INTERVAL, help="a site's, as in link.toml")
    parser.add_argument("--subprocess", action="store_true", help="a process for each message, by Flower")
    parser.add_argument("--small", action="store_true", help="the small message only")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = trial(Path(folder) / "federation", options.sites, f"127.0.0.1:{free_port()}")
        for name in home.manifest.sites:
            link = {"address": home.manifest.address, "interval": options.interval}
            (home.site(name) / "link.toml").write_text(to_toml(link))
        started = time.perf_counter()
        with superlink(home), subprocess_sites(home) if options.subprocess else local_sites(home):
            results = {"small": seconds(home, Path(folder) / "small", options.rounds)}
            if not options.small:
                large = ("model.name=mlp", "model.hidden=[1000, 1000]")
                results["a million numbers"] = seconds(home, Path(folder) / "large", options.rounds, *large)
        whole = time.perf_counter() - started
    kind = (
        "flower-supernode"
        if options.subprocess
        else f"fedsaddle deploy site, interval {options.interval:g} s"
    )
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
