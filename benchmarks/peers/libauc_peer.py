"""LibAUC's AUCMLoss and PESG in a sequential loop over clients, with averaging at the end of a round.

LibAUC has no federated loop, so this is the one that its users write. Its work in a step is less than CODASCA's (no
control variates). PESG's momentum, weight decay and proximal term are off: that is the same mathematics as the others
have, and the fastest; so is one optimiser for all clients, which then carries no state. The loss is version "v1" with a
known class ratio, as in the federated papers; "v2" needs LibAUC's class-balancing sampler.

LibAUC's requirements name torchvision, OpenCV, torch_geometric and more. `libauc.losses` and `libauc.optimizers` import
none of them, so it is installed without its dependencies.
"""

from __future__ import annotations

import torch
from libauc.losses import AUCMLoss
from libauc.optimizers import PESG
from workloads import POSITIVE, WORKLOADS, Workload, arguments, auc, measure, report, rows


class Loop:
    """Local PESG steps and averaging."""

    def __init__(self, workload: Workload) -> None:
        self.w = workload
        self.x, self.y = (t.unbind() for t in workload.data())
        self.y = [y.float().unsqueeze(-1) for y in self.y]
        self.model = workload.model()
        cpu = torch.device("cpu")
        self.loss = AUCMLoss(margin=1.0, imratio=POSITIVE, version="v1", device=cpu)
        self.optimiser = PESG(
            self.model.parameters(),
            loss_fn=self.loss,
            lr=workload.lr,
            momentum=0.0,
            weight_decay=0.0,
            epoch_decay=0.0,
            verbose=False,
            device=cpu,
        )
        self.z = [*self.model.parameters(), self.loss.a, self.loss.b, self.loss.alpha]
        self.server = [v.detach().clone() for v in self.z]

    def load(self) -> None:
        """Put the server's iterate into the model and the loss."""
        with torch.no_grad():
            for v, s in zip(self.z, self.server, strict=True):
                v.copy_(s)

    def client(self, k: int) -> None:
        """Local steps of client k."""
        w, x, y = self.w, self.x[k], self.y[k]
        for _ in range(w.steps):
            at = rows(w.samples, w.batch)
            self.optimiser.zero_grad()
            self.loss.alpha.grad = None  # PESG leaves it out
            self.loss(self.model(x[at]), y[at], auto=False).backward()
            self.optimiser.step()

    def run(self, n: int) -> None:
        """Do n rounds."""
        for _ in range(n):
            total = [torch.zeros_like(v) for v in self.server]
            for k in torch.randperm(self.w.clients)[: self.w.cohort].tolist():
                self.load()
                self.client(k)
                with torch.no_grad():
                    for t, v in zip(total, self.z, strict=True):
                        t.add_(v)
            for s, t in zip(self.server, total, strict=True):
                s.copy_(t.div_(self.w.cohort))
        self.load()


def main() -> None:
    args = arguments(__doc__)
    torch.set_num_threads(args.threads)
    workload = WORKLOADS[args.workload]
    loop = Loop(workload)
    before = auc(loop.model, workload)
    report(measure(loop.run, args.seconds), before, auc(loop.model, workload))


if __name__ == "__main__":
    main()
