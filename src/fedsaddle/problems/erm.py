"""Empirical risk minimisation: the ordinary training loss, a min-max problem without a dual variable (n_y = 0)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedsaddle import metrics
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.kinds import OF_CLASSES
from fedsaddle.metrics import Evaluation, Split
from fedsaddle.problem import Batch, Data, ModelProblem

LOSSES = ("logistic", "cross_entropy", "squared", "one_hot")


@dataclass(frozen=True, eq=False)
class ERM(ModelProblem):
    """Average loss of a model: min over w of (1/N) sum_i mean_i loss(h(w; x), y).

    Args:
        model: module; one output for "logistic" and "squared", C outputs for "cross_entropy"
            and "one_hot".
        loss: "logistic" log(1 + exp(-t h)), t = +1 for the positive class and -1 for the rest; "cross_entropy";
            "squared" (h - y)^2 / 2, of two classes with y = 1 for the positive one and 0 for the other;
            "one_hot" ||h - (e_y - 1/C)||^2 / 2, squared loss for classes (e_y: 1 at y, else 0).
        positive: which class index counts as positive under "logistic" and "squared", and in the reported AUC.
        monitors: whether an evaluation also goes over the training data, for loss, gradient, accuracy there and, where
            clients own no test data, how they differ (in regression always). With a large network that may take long.

    Example:
        >>> import fedsaddle as fs, torch
        >>> fs.ERM(torch.nn.Linear(30, 1), loss="logistic").n_y
        0
    """

    loss: Literal["logistic", "cross_entropy", "squared", "one_hot"] = "logistic"
    positive: int = 1
    monitors: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise FedsaddleError(f"ERM: loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")

    def scores(self, z: Tensor, x: Tensor) -> Tensor:
        """One score a sample [..., S, B]: the output (that of the positive class), under cross-entropy its log-odds."""
        out = self.outputs(z, x)
        if self.loss == "one_hot":
            return out[..., self.positive]
        if self.loss == "cross_entropy":
            rest = out.clone()
            rest[..., self.positive] = -torch.inf
            return out[..., self.positive] - rest.logsumexp(-1)
        if out.shape[-1] != 1:
            raise FedsaddleError(
                f"ERM: loss {self.loss!r} needs a model with one output, got {out.shape[-1]}; use loss='cross_entropy'"
            )
        return out.squeeze(-1)

    def losses(self, z: Tensor, data: Data) -> Tensor:
        y = data["y"]
        if self.loss == "cross_entropy":
            log_probability = self.outputs(z, data["x"]).log_softmax(-1)
            return -log_probability.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        if self.loss == "one_hot":
            out = self.outputs(z, data["x"])
            target = functional.one_hot(y, out.shape[-1]) - 1 / out.shape[-1]
            return ((out - target) ** 2).sum(-1) / 2
        h = self.scores(z, data["x"])
        if self.loss == "squared":
            target = y if y.is_floating_point() else (y == self.positive).to(h)
            return (h - target) ** 2 / 2
        return functional.softplus(torch.where(y == self.positive, -h, h))

    def correct(self, z: Tensor, split: Split) -> Tensor:
        """1.0 where the predicted class is right, over all samples of a split, at z [R, 1, d]: [R, n]."""

        def hit(z: Tensor, batch: Batch) -> Tensor:
            x, y = batch.data["x"], batch.data["y"]
            if self.loss in OF_CLASSES:
                return self.outputs(z, x).argmax(-1) == y
            threshold = 0.0 if self.loss == "logistic" else 0.5  # squared: targets are 0 and 1
            return (self.scores(z, x) > threshold) == (y == self.positive)

        return self.over_samples(z, split, hit).double()

    def check(self, federation: Federation) -> None:
        y = federation.data.get("y")
        if y is not None and y.is_floating_point() and self.loss != "squared":
            raise FedsaddleError(
                f"ERM: loss {self.loss!r} needs classes, but y holds real numbers; use loss='squared'"
            )
        if (
            y is not None
            and not y.is_floating_point()
            and self.loss == "squared"
            and len(federation.classes) > 2
        ):
            raise FedsaddleError(
                f"ERM: loss 'squared' takes real numbers or two classes, but y holds {len(federation.classes)} classes; use "
                "loss='one_hot' or 'cross_entropy', or task='regression' for the federation"
            )
        super().check(federation)

    def check_outputs(self, n: int, federation: Federation) -> None:
        if self.loss in OF_CLASSES and n != len(federation.classes):
            raise FedsaddleError(
                f"ERM: loss {self.loss!r} needs a model with one output a class ({len(federation.classes)}), got {n}; "
                "give it that many, or use loss='logistic' with one output"
            )

    def evaluate(self, z: Tensor, splits: Mapping[str, Split], federation: Federation) -> list[Evaluation]:
        out = [Evaluation({}, {}) for _ in z]
        if self.monitors or federation.data["y"].is_floating_point():
            loss, F = metrics.objective(self, z, splits["train"])
            norms = F.norm(dim=(-2, -1)).tolist()
            for e, value, norm in zip(out, loss.tolist(), norms, strict=True):
                e.values.update(loss=value, grad_norm=norm)
        if federation.data["y"].is_floating_point():
            return out
        if len(federation.classes) == 2 or self.loss not in OF_CLASSES:
            ranks = metrics.ranking(self, z, splits, self.positive, training=self.monitors)
            for e, (values, by_client) in zip(out, ranks, strict=True):
                e.values.update(values)
                e.by_client.update(by_client)
        look = self.monitors or "test" not in splits
        right = {name: self.correct(z, split) for name, split in splits.items() if look or name != "train"}
        for name, key in (("test", "accuracy"), ("valid", "valid_accuracy"), ("train", "train_accuracy")):
            if name in right:
                for e, value in zip(out, right[name].mean(-1).tolist(), strict=True):
                    e.values[key] = value
        split = metrics.clients_split(splits)
        hits = right.get("test" if split is splits.get("test") else "train")
        if hits is not None:
            for e, shares in zip(out, split.client_means(hits), strict=True):
                e.values.update(metrics.spread(shares, "accuracy"))
                e.by_client["accuracy"] = shares
        if metrics.by_owner(splits, "valid"):
            for e, shares in zip(out, splits["valid"].client_means(right["valid"]), strict=True):
                e.values.update(metrics.spread(shares, "valid_accuracy"))
        return out
