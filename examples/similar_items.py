"""Find similar items at other clients: an embedding is learned from pairs of items that lie at different clients.

Ten clients hold images of handwritten digits, most of them of a few digits only. In the contrastive loss, two images of one
digit are drawn together and two of different digits kept a margin apart. A client computes the embeddings of its own images;
what it needs of the others' are the embeddings that the server collected in the round before. Images never travel.

    python examples/similar_items.py
"""

import torch
from torch import nn

import fedsaddle as fs

clients = fs.data.load("digits").federation("dirichlet", clients=10, alpha=0.2).holdout(0.3)

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
problem = fs.Contrastive(network, margin=2.0)
algorithm = fs.RSPairwise(lr=0.2, local_steps=8, bits=8)  # embeddings travel as codes of 8 bits
run = fs.train(problem, algorithm, clients, rounds=100, participation=fs.Uniform(5))

before, after = run.records[0], run.metrics
print("Share of the 10 nearest images at OTHER clients that show the same digit as a test image:")
print(f"  untrained {before['precision_elsewhere']:.2f}, trained {after['precision_elsewhere']:.2f}")
sent, received = after["bytes_up"] / 1e6, after["bytes_down"] / 1e6
print(f"Sent by clients {sent:.1f} MB, received {received:.1f} MB over {after['round']} rounds.")

model = run.model.eval()
query = clients.test.client(0)  # the first client asks with a test image
with torch.no_grad():
    asked = model(query["x"][:1].float())
    others = [(i, clients.client(i)) for i in range(1, clients.n_clients)]
    found = [
        (torch.dist(asked, e).item(), i, int(y))
        for i, items in others
        for e, y in zip(model(items["x"].float()), items["y"], strict=True)
    ]
print(f"A {int(query['y'][0])} of client 0 finds, nearest first:")
for distance, client, digit in sorted(found)[:5]:
    print(f"  a {digit} at client {client}, distance {distance:.2f}")
