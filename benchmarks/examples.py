"""How long the example programs take: one thread each, one after another.

    FEDSADDLE_DATA=FOLDER python benchmarks/examples.py      # the table of examples/README.md

CPU time is what a program takes on an idle machine; the wall time is longer where others are at work.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    print(f"{'program':28} CPU s  wall s")
    for program in sorted((Path(__file__).parents[1] / "examples").glob("*.py")):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, program], env=one_thread, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{program.name:28} {cpu:5.0f} {time.perf_counter() - started:7.0f}", flush=True)


if __name__ == "__main__":
    main()
