# %% [markdown]
# # Find similar items at other clients
#
# Ten clients hold images of handwritten digits, most of them of a few digits only. An embedding is wanted in which
# images of one digit lie close together, wherever they are, so that a client can ask the others for images like its
# own.
#
# *Why pairs.* In the contrastive loss, two images of one digit are drawn together and two of different digits kept a
# margin apart. A client computes the embeddings of its own images; what it needs of the others' are the embeddings that
# the server collected in the round before. Images never travel. (docs/pairwise.md)

# %%
import torch
from torch import nn

import fedsaddle as fs
from fedsaddle.metrics import retrieval

clients = fs.data.load("digits").federation("dirichlet", clients=10, alpha=0.2).holdout(0.3)
print(clients)

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
problem = fs.Contrastive(network, margin=2.0)
algorithm = fs.RSPairwise(lr=0.2, local_steps=8, bits=8)  # embeddings travel as codes of 8 bits
run = fs.train(problem, algorithm, clients, rounds=100, participation=fs.Uniform(5))

# %% [markdown]
# ## What comes out
#
# The share of the 10 nearest images at *other* clients that show the same digit as a test image, against raw pixels,
# and against the last layer of an ordinary classifier, of the largest client alone and of all by FedAvg. The
# contrastive embedding is about as good as FedAvg's with an eighth of the numbers. This is one split and one seed; on
# two other splits the two were also within a hundredth of each other.

# %%
largest = int(clients.sizes.argmax())
torch.manual_seed(0)
classifier = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
erm, fedavg = fs.ERM(classifier, "cross_entropy"), fs.FedAvg(lr=0.2, local_steps=8)
alone = fs.train(erm, fedavg, clients.alone(largest), rounds=100).model[:-1]
together = fs.train(erm, fedavg, clients, rounds=100, participation=fs.Uniform(5)).model[:-1]
embeddings = {
    "raw pixels": nn.Flatten(),
    "not trained": network,
    "client alone, classifier": alone,
    "FedAvg, classifier": together,
    "contrastive": run.model,
}
for name, embed in embeddings.items():
    with torch.no_grad():
        items, asked = (embed(part.data["x"].float()) for part in (clients, clients.test))
    owners = (clients.test.owners, clients.owners)
    found = retrieval(asked, clients.test.data["y"], items, clients.data["y"], 10, owners=owners)
    print(f"{name:26} {found['precision_elsewhere']:.2f}  ({items.shape[1]} numbers an image)")
sent, received = run.metrics["bytes_up"] / 1e6, run.metrics["bytes_down"] / 1e6
print(f"Sent by clients {sent:.1f} MB, received {received:.1f} MB over {run.metrics['round']} rounds.")

# %% [markdown]
# ## Asking

# %%
model = run.model.eval()
query = clients.test.client(0)  # the first client asks with a test image
with torch.no_grad():
    asked = model(query["x"][:1].float())
    others = [(i, clients.client(i)) for i in range(1, clients.n_clients)]
    near = [
        (torch.dist(asked, e).item(), i, int(y))
        for i, items in others
        for e, y in zip(model(items["x"].float()), items["y"], strict=True)
    ]
print(f"A {int(query['y'][0])} of client 0 finds, nearest first:")
for distance, client, digit in sorted(near)[:5]:
    print(f"  a {digit} at client {client}, distance {distance:.2f}")
