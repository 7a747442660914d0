"""The ClientApp of the Flower contender, in a module of its own: Ray then pickles it by name, not by value.

The model and all clients' data stay in the actor's process from its first message on.
"""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from workloads import WORKLOADS, rows

app = ClientApp()


@functools.cache
def ready(name: str) -> nn.Module:
    """This process's model; one thread, because every actor has one CPU."""
    torch.set_num_threads(1)
    return WORKLOADS[name].model()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local SGD on binary cross-entropy."""
    name = message.content["config"]["workload"]
    w, model = WORKLOADS[name], ready(name)
    k = context.node_config["partition-id"]
    x, y = (t[k] for t in w.data())
    y = y.float()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=w.lr)
    for _ in range(w.steps):
        at = rows(w.samples, w.batch)
        optimiser.zero_grad()
        binary_cross_entropy_with_logits(model(x[at]).squeeze(-1), y[at]).backward()
        optimiser.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": w.samples}),
    }
    return Message(RecordDict(content), reply_to=message)
