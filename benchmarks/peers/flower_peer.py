"""Flower's simulation runtime: ServerApp and ClientApp, FedAvg, Ray, binary cross-entropy.

Settings: one actor with one CPU for each thread, as Flower's guide advises for small clients; no evaluation, dashboard,
telemetry or log lines; the server looks for replies every millisecond in the place of every 100 ms. Rounds are timed
within the ServerApp. Ray serves on the loopback interface alone.
"""

from __future__ import annotations

import logging
import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # read when they are imported

from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import WORKLOADS, arguments, auc, measure, report

app = ServerApp()
args = arguments(__doc__)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train and report."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    grid.pull_interval = 0.001
    workload = WORKLOADS[args.workload]
    strategy = FedAvg(
        fraction_train=workload.cohort / workload.clients,
        fraction_evaluate=0.0,
        min_available_nodes=workload.clients,
    )
    model = workload.model()
    before = auc(model, workload)

    def run(n: int) -> None:
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            num_rounds=n,
            train_config=ConfigRecord({"workload": args.workload}),
        )
        assert len(result.train_metrics_clientapp) == n, "a round without replies"
        model.load_state_dict(result.arrays.to_torch_state_dict())

    report(measure(run, args.seconds), before, auc(model, workload))


if __name__ == "__main__":
    run_simulation(
        server_app=app,
        client_app=client_app,
        num_supernodes=WORKLOADS[args.workload].clients,
        backend_config={
            "init_args": {
                "num_cpus": args.threads,
                "include_dashboard": False,
                "log_to_driver": False,
                "_node_ip_address": "127.0.0.1",
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
