"""Rounds a second of fedsaddle and of what one would use instead, side by side; see README.md.

    python benchmarks/peers/run.py [--workloads W1 W2 W3] [--peers loop pfl ...] [--turns 3] [--threads 2] [--json FILE]

Every contender has a virtual environment of its own. In a turn, all contenders of a workload run one after another, each in
a fresh process; speeds and ratios are medians over the turns. Before the first turn every contender tries one thread and
`--threads` threads and keeps the faster: small tensors are often faster with one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
OURS = ("fedsaddle", "fedsaddle-compiled")
WORKLOADS = ("W1", "W2", "W3")  # workloads.py needs PyTorch, this script does not


@dataclass(frozen=True)
class Contender:
    """A script, the environment that it runs in, and what it runs with."""

    env: str
    script: str
    flags: tuple[str, ...] = ()
    workers: bool = False  # one worker with one thread for each thread, started by torchrun

    def command(self, python: Path, threads: int) -> list[str]:
        if self.workers:
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(threads)]
            return [str(python), *launch, str(HERE / self.script), *self.flags, "--threads", "1"]
        return [str(python), str(HERE / self.script), *self.flags, "--threads", str(threads)]


CONTENDERS = {
    "fedsaddle": Contender("fedsaddle", "fedsaddle_peer.py"),
    "fedsaddle-compiled": Contender("fedsaddle", "fedsaddle_peer.py", ("--compile",)),
    "loop": Contender("loop", "loop.py"),
    "libauc": Contender("libauc", "libauc_peer.py"),
    "pfl": Contender("pfl", "pfl_peer.py"),
    "pfl-workers": Contender("pfl", "pfl_peer.py", workers=True),
    "flower": Contender("flower", "flower_peer.py"),
}


def environment(name: str, envs: Path) -> Path:
    """The interpreter of a contender's environment, which is made anew when its requirements have changed."""
    files = [
        f for f in (HERE / "requirements" / f"{name}{end}.txt" for end in ("", ".no-deps")) if f.exists()
    ]
    wanted = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()
    folder = envs / name
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists() or made.read_text() != wanted:
        print(f"making the environment of {name} in {folder}", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        for file in files:
            alone = ["--no-deps"] if file.stem.endswith(".no-deps") else []
            subprocess.run(
                [python, "-m", "pip", "install", "--quiet", *alone, "-r", file],
                check=True,
                cwd=file.parent,
                stdout=sys.stderr,
            )
        made.write_text(wanted)
    return python


def once(
    contender: Contender, python: Path, workload: str, threads: int, seconds: float, timeout: float
) -> dict:
    """Run a contender in a fresh process; its line as a dictionary with rounds a second, or an error."""
    command = [
        *contender.command(python, threads), "--workload", workload, "--seconds", str(seconds)
    ]  # fmt: skip
    one = 1 if contender.workers or contender.env == "flower" else threads
    env = os.environ | {"OMP_NUM_THREADS": str(one), "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {timeout:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        return {"error": f"exit status {done.returncode}: {last[0]}"}
    result = json.loads(lines[-1])
    return result | {"threads": threads, "rounds_per_second": result["rounds"] / result["seconds"]}


def compare(workload: str, pythons: dict[str, Path], args: argparse.Namespace) -> dict[str, list[dict]]:
    """The results of every contender in every turn; a contender that fails once is left out of later turns."""

    def run(name: str, threads: int, seconds: float) -> dict:
        result = once(CONTENDERS[name], pythons[name], workload, threads, seconds, args.timeout)
        said = result.get("error") or f"{result['rounds_per_second']:.2f} rounds/s, {threads} threads"
        print(f"{workload} {name}: {said}", file=sys.stderr, flush=True)
        return result

    def best_threads(name: str) -> int:
        if CONTENDERS[name].workers or args.threads == 1:
            return args.threads
        tried = {n: run(name, n, args.seconds / 2) for n in (1, args.threads)}
        return max(tried, key=lambda n: tried[n].get("rounds_per_second", 0.0))

    threads = {name: best_threads(name) for name in pythons}
    turns: dict[str, list[dict]] = {name: [] for name in pythons}
    for _ in range(args.turns):
        for name in pythons:
            if not any("error" in result for result in turns[name]):
                turns[name].append(run(name, threads[name], args.seconds))
    return turns


def summary(turns: dict[str, list[dict]]) -> dict[str, dict]:
    """Medians over the turns of each contender's speed and of our speeds divided by it."""

    def speeds(name: str) -> list[float]:
        results = turns.get(name, [])
        return [] if any("error" in r for r in results) else [r["rounds_per_second"] for r in results]

    out: dict[str, dict] = {}
    for name, results in turns.items():
        if not speeds(name):
            out[name] = {"error": next(r["error"] for r in results if "error" in r)}
            continue
        out[name] = {
            "rounds_per_second": statistics.median(speeds(name)),
            "threads": results[0]["threads"],
            "auc_after": statistics.median(r["auc_after"] for r in results),
            "ratio": {
                ours: statistics.median(a / b for a, b in zip(speeds(ours), speeds(name), strict=True))
                for ours in OURS
                if speeds(ours)
            },
        }
    return out


def table(workload: str, rows: dict[str, dict]) -> str:
    """A workload's summary in Markdown."""
    lines = [
        f"### {workload}",
        "",
        "| contender | rounds/s | threads | fedsaddle / it | fedsaddle compiled / it |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error']} | | | |")
            continue
        ratios = [f"{row['ratio'][ours]:.1f}" if ours in row["ratio"] else "" for ours in OURS]
        lines.append(f"| {name} | {row['rounds_per_second']:.2f} | {row['threads']} | {' | '.join(ratios)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--peers", nargs="+", choices=CONTENDERS, default=tuple(CONTENDERS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="the most threads that a contender may use")
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring, for a contender in a turn")
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="seconds for one process, start included"
    )
    parser.add_argument("--envs", type=Path, default=Path.home() / ".cache" / "fedsaddle-peers")
    parser.add_argument(
        "--python", type=Path, help="an interpreter that has fedsaddle, in place of making one"
    )
    parser.add_argument("--json", type=Path, help="write every turn and the medians to this file")
    args = parser.parse_args()
    envs = args.envs.expanduser().absolute()

    pythons: dict[str, Path] = {}
    for name in args.peers:
        env = CONTENDERS[name].env
        reuse = args.python if env == "fedsaddle" else None
        pythons[name] = reuse.absolute() if reuse else environment(env, envs)
    report: dict[str, dict] = {}
    for workload in args.workloads:
        turns = compare(workload, pythons, args)
        report[workload] = {"turns": turns, "summary": summary(turns)}
        print(table(workload, report[workload]["summary"]), flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"threads": args.threads, "seconds": args.seconds, "workloads": report}, indent=1)
        )


if __name__ == "__main__":
    main()
