"""fedsaddle's stacked engine, eager or compiled (`--compile`): CODASCA on the AUC problem, rounds driven directly."""

from __future__ import annotations

import torch
from workloads import POSITIVE, WORKLOADS, Workload, arguments, auc, measure, report

import fedsaddle as fs
from fedsaddle.clients import Task
from fedsaddle.cohort import Batching
from fedsaddle.engines.simulation import Simulation


class Rounds:
    """A run that can be continued."""

    def __init__(self, workload: Workload, compile: bool) -> None:
        x, y = workload.data()
        federation = fs.Federation(
            {"x": x.flatten(0, 1), "y": y.flatten()},
            torch.arange(workload.clients + 1) * workload.samples,
            tuple(f"client {i}" for i in range(workload.clients)),
        )
        self.model = workload.model()
        problem = fs.AUC(self.model, p=POSITIVE)
        self.algorithm = fs.CODASCA(lr=workload.lr, local_steps=workload.steps)
        task = Task(problem, federation, fs.Uniform(workload.cohort), Batching(workload.batch))
        self.clients = Simulation(task, compile=compile)
        z = self.clients.problem.init().unsqueeze(0)
        self.state = self.algorithm.init(z, self.clients.problem)
        self.clients.remember(self.algorithm.memory(z, self.clients.problem))
        self.round = 0

    def run(self, n: int) -> None:
        """Do n rounds."""
        for _ in range(n):
            self.clients.begin(self.round)
            self.state = self.algorithm.round(self.state, self.clients)
            self.round += 1

    def trained(self) -> torch.nn.Module:
        """The model with the server's weights."""
        return self.clients.problem.module(self.state.z[0])


def main() -> None:
    args = arguments(__doc__, "--compile")
    torch.set_num_threads(args.threads)
    workload = WORKLOADS[args.workload]
    rounds = Rounds(workload, args.compile)
    before = auc(rounds.trained(), workload)
    result = measure(rounds.run, args.seconds)
    report(result, before, auc(rounds.trained(), workload))


if __name__ == "__main__":
    main()
