"""A hand-written loop in plain PyTorch: CODASCA's round, one client after another.

Written as one would write it for a paper: every client's tensors lie ready; parameters, dual variable and control
variates are updated in place; gradients come from `torch.autograd.grad` and are used at once; one model serves all
clients. The correction c - c_k does not change within a round, so it is computed once for each client.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from workloads import POSITIVE, WORKLOADS, Workload, arguments, auc, measure, report, rows


class Loop:
    """CODASCA on the min-max AUC loss."""

    def __init__(self, workload: Workload) -> None:
        self.w = workload
        self.x, self.y = (t.unbind() for t in workload.data())
        self.positive = [y == 1 for y in self.y]
        self.model = workload.model()
        self.a, self.b, self.alpha = (nn.Parameter(torch.zeros(())) for _ in range(3))
        self.z = [*self.model.parameters(), self.a, self.b, self.alpha]
        self.signs = [1.0] * (len(self.z) - 1) + [-1.0]  # ascent on alpha
        self.server = [v.detach().clone() for v in self.z]
        self.c = [torch.zeros_like(v) for v in self.server]
        self.c_k: dict[int, list[Tensor]] = {}

    def loss(self, x: Tensor, pos: Tensor) -> Tensor:
        """(1-p)(h-a)^2 1+  +  p(h-b)^2 1-  +  2(1+alpha)(p h 1- - (1-p) h 1+)  -  p(1-p) alpha^2, in few operations."""
        p, h = POSITIVE, self.model(x).squeeze(-1)
        ratio = torch.where(pos, 1 - p, p)
        sign = torch.where(pos, -1.0, 1.0)
        square = (h - torch.where(pos, self.a, self.b)).square()
        terms = torch.dot(ratio, square) + 2 * (1 + self.alpha) * torch.dot(ratio * sign, h)
        return terms / len(h) - p * (1 - p) * self.alpha.square()

    def client(self, k: int, total: list[Tensor], total_dc: list[Tensor]) -> None:
        """Local steps of client k; adds its iterate and the change of its variate to the totals."""
        w, x, pos = self.w, self.x[k], self.positive[k]
        c_k = self.c_k.setdefault(k, [torch.zeros_like(v) for v in self.c])
        with torch.no_grad():
            for v, s in zip(self.z, self.server, strict=True):
                v.copy_(s)
            correction = torch._foreach_sub(self.c, c_k)
        for _ in range(w.steps):
            at = rows(w.samples, w.batch)
            grads = torch.autograd.grad(self.loss(x[at], pos[at]), self.z)
            with torch.no_grad():
                for v, g, sign, fix in zip(self.z, grads, self.signs, correction, strict=True):
                    v.add_(g, alpha=-w.lr * sign).sub_(fix, alpha=w.lr)
        with torch.no_grad():
            for i, v in enumerate(self.z):
                # c_k <- c_k - c + (z_server - z) / (steps lr)
                change = (self.server[i] - v).div_(w.steps * w.lr).sub_(self.c[i])
                c_k[i].add_(change)
                total_dc[i].add_(change)
                total[i].add_(v)

    def run(self, n: int) -> None:
        """Do n rounds."""
        w = self.w
        for _ in range(n):
            total = [torch.zeros_like(v) for v in self.server]
            total_dc = [torch.zeros_like(v) for v in self.server]
            for k in torch.randperm(w.clients)[: w.cohort].tolist():
                self.client(k, total, total_dc)
            for s, c, z, dc in zip(self.server, self.c, total, total_dc, strict=True):
                s.copy_(z.div_(w.cohort))
                c.add_(dc, alpha=1 / w.clients)
        with torch.no_grad():
            for v, s in zip(self.z, self.server, strict=True):
                v.copy_(s)


def main() -> None:
    args = arguments(__doc__)
    torch.set_num_threads(args.threads)
    workload = WORKLOADS[args.workload]
    loop = Loop(workload)
    before = auc(loop.model, workload)
    report(measure(loop.run, args.seconds), before, auc(loop.model, workload))


if __name__ == "__main__":
    main()
