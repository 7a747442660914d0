"""Changes to a federation's training data: fewer positives, wrong labels, thin clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.partitions import in_range, unknown


def remove_positives(federation: Federation, share: float, seed: int = 0) -> Federation:
    """Drop a share of all training positives, drawn at random over all clients (CyCp).

    Of P positives int((1 - share) * P) stay. A client that has positives only keeps at least one of them.

    Args:
        share: part of the positives that is dropped, in [0, 1).
    """
    y = _binary_y("remove_positives", federation)
    in_range("remove_positives", "share", share, 0, 1, open_above=True)
    rng, owner = np.random.default_rng(seed), federation.owners.numpy()
    has_negative = np.bincount(owner, y == 0, minlength=federation.n_clients) > 0
    positives = rng.permutation(np.flatnonzero(y == 1))
    _, first = np.unique(owner[positives], return_index=True)  # one positive of each client, at random
    last = np.isin(np.arange(len(positives)), first) & ~has_negative[owner[positives]]
    removable = positives[~last]
    keep = np.ones(len(y), dtype=bool)
    keep[removable[: len(positives) - int((1 - share) * len(positives) + 1e-9)]] = False
    return federation.keep(keep)


def flip_labels(federation: Federation, share: float, seed: int = 0, of: str = "positive") -> Federation:
    """Turn a share of the training labels into the other class: label noise (CyCp).

    Args:
        share: part of the labels that is flipped, in [0, 1].
        of: `"positive"` (to negative), `"negative"` (to positive) or `"all"` (that share of both).
    """
    y = _binary_y("flip_labels", federation)
    in_range("flip_labels", "share", share, 0, 1)
    classes = {"positive": (1,), "negative": (0,), "all": (0, 1)}
    if of not in classes:
        raise unknown("flip_labels: of", of, classes)
    rng, flipped = np.random.default_rng(seed), y.copy()
    for k in classes[of]:
        rows = rng.permutation(np.flatnonzero(y == k))
        flipped[rows[: int(share * len(rows) + 0.5)]] = 1 - k
    new = torch.from_numpy(flipped).to(federation.data["y"].device)
    return dataclasses.replace(federation, data={**federation.data, "y": new})


def thin_clients(
    federation: Federation, clients: float = 0.3, lose: float = 0.7, seed: int = 0
) -> Federation:
    """Let some clients lose most of their training samples (SCAFF-PD); every client keeps at least one.

    Args:
        clients: part of the clients, drawn at random, in [0, 1].
        lose: part of its samples that such a client loses, drawn at random, in [0, 1].
    """
    in_range("thin_clients", "clients", clients, 0, 1)
    in_range("thin_clients", "lose", lose, 0, 1)
    rng, n_clients, sizes = np.random.default_rng(seed), federation.n_clients, federation.sizes.numpy()
    hit = np.zeros(n_clients, dtype=bool)
    hit[rng.permutation(n_clients)[: int(clients * n_clients + 0.5)]] = True
    stay = np.where(hit, np.maximum(sizes - np.floor(lose * sizes + 0.5), np.minimum(sizes, 1)), sizes)
    owner = federation.owners.numpy()
    shuffled = np.lexsort((rng.random(len(owner)), owner))
    keep = np.zeros(len(owner), dtype=bool)
    keep[shuffled] = np.arange(len(owner)) - federation.offsets.numpy()[owner] < stay[owner]
    return federation.keep(keep)


TRANSFORMS: dict[str, Callable[..., Federation]] = {  # of the training data, not of test sets
    change.__name__: change for change in (remove_positives, flip_labels, thin_clients)
}


def _binary_y(name: str, federation: Federation) -> npt.NDArray[np.int64]:
    if len(federation.classes) != 2:
        got = "regression" if federation.is_regression else f"{len(federation.classes)} classes"
        raise FedsaddleError(f"{name} needs two classes, got {got}: build the federation with positive=")
    y: npt.NDArray[np.int64] = federation.data["y"].cpu().numpy()
    return y
