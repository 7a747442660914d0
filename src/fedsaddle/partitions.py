"""How a data set is split over clients: row indices from labels.

A partition is `name(labels, clients, *, ..., seed=0)` and returns one sorted array of row indices a
client. It depends on its arguments only, gives no row twice, leaves no client empty and, unless its
docstring says what it drops, loses no row.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsaddle.errors import FedsaddleError, nearest_or_all
from fedsaddle.ingest import levels

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
Partition = list[IntArray]

# ------------------------------------------------------------------------------------------- partitions


def iid(labels: npt.ArrayLike, clients: int, *, seed: int = 0) -> Partition:
    """Deal all rows at random, in equal numbers (up to one)."""
    n = len(_labels("iid", labels, clients))
    return _by_owner(_deal(np.random.default_rng(seed).permutation(n), n, clients), clients)


def blocks(labels: npt.ArrayLike, clients: int, *, seed: int = 0) -> Partition:
    """Cut the rows into contiguous blocks in their original order (FedSGDA); the seed changes nothing."""
    n = len(_labels("blocks", labels, clients))
    return _by_owner(_deal(np.arange(n), n, clients), clients)


def sorted_share(
    labels: npt.ArrayLike, clients: int, *, random_share: float = 0.1, seed: int = 0
) -> Partition:
    """Deal a share at random, sort the rest by label and give each client one shard (FedSGDA, Figure 6).

    Args:
        random_share: part of the rows dealt at random, in [0, 1].
    """
    codes = _labels("sorted_share", labels, clients)
    in_range("sorted_share", "random_share", random_share, 0, 1)
    shuffled = np.random.default_rng(seed).permutation(len(codes))
    cut = round(random_share * len(codes))
    rest = np.sort(shuffled[cut:])
    rest = rest[np.argsort(codes[rest], kind="stable")]
    owner = _deal(rest, len(codes), clients)
    # odd rows go where shards are short, so that no client is empty
    owner[shuffled[:cut]] = (clients - 1) - _deal(np.arange(cut), cut, clients)
    return _by_owner(owner, clients)


def dirichlet(
    labels: npt.ArrayLike,
    clients: int,
    *,
    alpha: float = 0.5,
    min_size: int = 1,
    min_per_class: int = 0,
    seed: int = 0,
) -> Partition:
    """Split every class by proportions drawn from a Dirichlet distribution (Li et al. 2022, NIID-Bench).

    A client that already has its n/N rows gets nothing of the next class, as there. Instead of redrawing
    until the smallest client is large enough, rows move from the largest clients, so that alpha = 0.01
    over 100 clients ends too.

    Args:
        alpha: concentration > 0; small means that a client sees few classes.
        min_size: rows that every client has at least.
        min_per_class: rows of every class that every client has at least.
    """
    codes = _labels("dirichlet", labels, clients)
    if not alpha > 0:
        raise FedsaddleError(f"dirichlet: alpha must be > 0, got {alpha}")
    n, n_classes, rng = len(codes), int(codes.max()) + 1, np.random.default_rng(seed)
    if min_size < 1 or min_size * clients > n:
        remedy = f"at most {n // clients} with {clients} clients and {n} rows"
        raise FedsaddleError(f"dirichlet: min_size must be at least 1 and {remedy}, got {min_size}")
    counts = np.bincount(codes)
    if min_per_class < 0 or min_per_class * clients > counts.min():
        rare = int(counts.argmin())
        most = f"at most {counts[rare] // clients}"
        remedy = f"{most}: the rarest class has {counts[rare]} rows for {clients} clients"
        raise FedsaddleError(f"dirichlet: min_per_class must be at least 0 and {remedy}, got {min_per_class}")
    owner, sizes = np.zeros(n, dtype=np.int64), np.zeros(clients, dtype=np.int64)
    for k in range(n_classes):
        rows = rng.permutation(np.flatnonzero(codes == k))
        share = rng.dirichlet(np.full(clients, alpha)) * (sizes < n / clients)
        if not share.sum() > 0:  # all the mass was on full clients
            share = (sizes < n / clients).astype(float)
        cuts = (np.cumsum(share / share.sum())[:-1] * len(rows)).astype(np.int64)
        owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
        sizes += np.bincount(owner[rows], minlength=clients)
    reserved = np.zeros(n, dtype=bool)
    for k in range(n_classes if min_per_class else 0):
        rows = np.flatnonzero(codes == k)
        owner[rows], position = _level(
            owner[rows], clients, min_per_class, np.zeros(len(rows), dtype=bool), rng
        )
        reserved[rows] = position < min_per_class
    owner, _ = _level(owner, clients, min_size, reserved, rng)
    return _by_owner(owner, clients)


def one_class(labels: npt.ArrayLike, clients: int, *, seed: int = 0) -> Partition:
    """Give each client one class only; clients per class in proportion to its rows, at least one (FFMDR)."""
    codes = _labels("one_class", labels, clients)
    counts = np.bincount(codes)
    if clients < len(counts):
        raise FedsaddleError(
            f"one_class: {len(counts)} classes need at least {len(counts)} clients, got {clients}"
        )
    quota = clients * counts / len(codes)
    share = np.clip(np.floor(quota).astype(np.int64), 1, counts)
    while share.sum() < clients:
        share[np.where(share < counts, quota - share, -np.inf).argmax()] += 1
    while share.sum() > clients:
        share[np.where(share > 1, quota - share, np.inf).argmin()] -= 1
    owner, first, rng = np.zeros(len(codes), dtype=np.int64), 0, np.random.default_rng(seed)
    for k, group in enumerate(share):
        rows = rng.permutation(np.flatnonzero(codes == k))
        owner[rows] = first + _deal(np.arange(len(rows)), len(rows), int(group))
        first += int(group)
    return _by_owner(owner, clients)


def disjoint_classes(
    labels: npt.ArrayLike,
    clients: int,
    *,
    positive_classes: Sequence[Any] | None = None,
    imratio: float = 0.1,
    shared: bool = False,
    seed: int = 0,
) -> Partition:
    """Give each client its own positive and negative classes, and thin the positives (CODASCA's "-IH" data).

    Both class lists are shuffled and dealt round robin. Drops rows: of each positive class it keeps
    int(imratio / (1 - imratio) * m), where m is its client's negatives for each of the client's positive
    classes (55 of 500 on CIFAR-100 at 10 %), or the whole class when it is smaller. Train on
    `binary_labels(labels, positive_classes)`.

    With `shared`, more clients than classes are allowed (not in the paper: CIFAR-10 has five a side): classes
    are dealt again from the start, the positive ones one place further each time, so that client i has
    negative class i mod C and positive class i + i // C mod C. C^2 clients have pairs of classes that all
    differ; those that share a class share no row of it.

    Args:
        positive_classes: label values that are positive; the upper half of the sorted values unless given.
        imratio: positive rate that every client gets, in (0, 1).
        shared: whether several clients may have rows of one class, where there are fewer classes than clients.
    """
    _labels("disjoint_classes", labels, clients)
    if not 0 < imratio < 1:
        raise FedsaddleError(f"disjoint_classes: imratio must be in (0, 1), got {imratio}")
    codes = np.unique(np.asarray(labels), return_inverse=True)[1]
    is_positive = binary_labels(labels, positive_classes)
    groups = [np.unique(codes[is_positive == sign]) for sign in (0, 1)]
    for sign, classes in zip(("negative", "positive"), groups, strict=True):
        if len(classes) < clients and not (shared and len(classes)):
            rule = f"{clients} clients need {clients} {sign} classes"
            remedy = f"take at most {len(classes)} clients" + (" or shared=True" if len(classes) else "")
            raise FedsaddleError(f"disjoint_classes: {rule}, got {len(classes)}: {remedy}")
    rng, owner = np.random.default_rng(seed), np.full(len(codes), -1)
    negative, positive = (rng.permutation(classes) for classes in groups)

    def dealt(classes: IntArray, i: int, further: int = 0) -> IntArray:
        """Client i's classes."""
        return classes[i::clients] if len(classes) >= clients else classes[[(i + further) % len(classes)]]

    hands = [(dealt(negative, i), dealt(positive, i, i // len(negative))) for i in range(clients)]
    holders = Counter(k for hand in hands for side in hand for k in side.tolist())
    for k, n in holders.items():
        if (have := int((codes == k).sum())) < n:
            raise FedsaddleError(
                f"disjoint_classes: a class of {have} rows cannot be shared by {n} clients: take fewer clients"
            )
    parts: dict[int, list[IntArray]] = {}  # of each class, those that are left
    for i, hand in enumerate(hands):
        for thinned, classes in enumerate(hand):
            m = (owner == i).sum() / len(classes)
            quota = max(1, int(imratio / (1 - imratio) * m + 1e-9)) if thinned else None
            for k in classes.tolist():
                if k not in parts:
                    rows = np.flatnonzero(codes == k)
                    rows = rng.permutation(rows) if thinned or holders[k] > 1 else rows
                    parts[k] = np.array_split(rows, holders[k])
                owner[parts[k].pop()[:quota]] = i
    return _by_owner(owner, clients)


def positive_rate(
    labels: npt.ArrayLike, clients: int, *, rates: Sequence[float] = (0.05, 0.5), seed: int = 0
) -> Partition:
    """Give all clients equally many rows and each client its own positive rate.

    Drops rows: the size is the largest for which there are positives and negatives enough, and what is
    left over is not used. The rates are met up to rounding to whole rows.

    Args:
        labels: two classes; the larger value is positive.
        rates: one rate a client, or (low, high) for rates evenly spaced between the two.
    """
    codes = _labels("positive_rate", labels, clients)
    if codes.max() != 1:
        remedy = "make them binary first, for example with binary_labels"
        raise FedsaddleError(f"positive_rate: labels must have two classes, got {codes.max() + 1}: {remedy}")
    wanted = np.asarray(rates, dtype=float)
    if len(wanted) == 2:
        wanted = np.linspace(wanted[0], wanted[1], clients)
    if len(wanted) != clients:
        raise FedsaddleError(
            f"positive_rate: rates must be (low, high) or {clients} numbers, got {len(wanted)}"
        )
    if not ((wanted >= 0) & (wanted <= 1)).all():
        raise FedsaddleError(
            f"positive_rate: rates must be in [0, 1], got {wanted[(wanted < 0) | (wanted > 1)][0]}"
        )
    rng = np.random.default_rng(seed)
    negatives, positives = (rng.permutation(np.flatnonzero(codes == k)) for k in (0, 1))
    bounds = (
        (len(positives) + clients) / max(wanted.sum(), 1e-9),
        (len(negatives) + clients) / max((1 - wanted).sum(), 1e-9),
    )
    for size in range(
        int(min(len(codes) // clients, *bounds)), 0, -1
    ):  # rounding costs at most half a row a client
        plus = np.floor(wanted * size + 0.5).astype(np.int64)
        if plus.sum() <= len(positives) and (size - plus).sum() <= len(negatives):
            break
    else:
        have = f"{len(positives)} positives and {len(negatives)} negatives"
        raise FedsaddleError(
            f"positive_rate: {have} cannot meet these rates for {clients} clients: take fewer clients"
        )
    owner = np.full(len(codes), -1)
    owner[positives[: plus.sum()]] = np.repeat(np.arange(clients), plus)
    owner[negatives[: (size - plus).sum()]] = np.repeat(np.arange(clients), size - plus)
    return _by_owner(owner, clients)


def natural(
    labels: npt.ArrayLike,
    clients: int | None = None,
    *,
    groups: npt.ArrayLike,
    leave_out: Sequence[str] = (),
    seed: int = 0,
) -> Partition:
    """Split by given groups, such as the hospital of each row; clients are the sorted group values.

    Args:
        clients: number of distinct groups, checked when given.
        groups: one group value a row.
        leave_out: groups whose rows are dropped.
    """
    values, n = np.asarray(groups), len(np.asarray(labels))
    if values.shape != (n,):
        raise FedsaddleError(
            f"natural: groups must have one value for each of the {n} rows, got {list(values.shape)}"
        )
    found, codes = levels(values, "groups", "drop that row or name its group")
    for name in leave_out:
        if name not in found:
            raise unknown("natural: leave_out", name, found)
    kept = np.array([name not in leave_out for name in found])
    owner = np.where(kept, np.cumsum(kept) - 1, -1)[codes]  # -1: dropped
    found = tuple(name for name in found if name not in leave_out)
    if clients is not None and clients != len(found):
        raise FedsaddleError(
            f"natural: there are {len(found)} groups, got clients={clients}: leave clients out"
        )
    return _by_owner(owner, len(found))


PARTITIONS: dict[str, Callable[..., Partition]] = {
    rule.__name__: rule
    for rule in (iid, dirichlet, sorted_share, blocks, one_class, disjoint_classes, positive_rate, natural)
}


def partition(
    name: str, labels: npt.ArrayLike, clients: int | None, seed: int = 0, **options: Any
) -> Partition:
    """Split rows by the partition of that name in `PARTITIONS`.

    Args:
        name: for example `"dirichlet"`.
        labels: one label a row.
        clients: number of clients (None for `"natural"`).
        seed: the same seed gives the same partition.
        options: the partition's own options, for example `alpha=0.1`.
    """
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    check_options(f"partition {name}", PARTITIONS[name], options, skip=("labels", "clients", "seed"))
    if clients is None and name != "natural":
        raise FedsaddleError(f"{name}: clients must be a whole number >= 1, got None")
    return PARTITIONS[name](labels, clients, seed=seed, **options)


def binary_labels(labels: npt.ArrayLike, positive_classes: Sequence[Any] | None = None) -> IntArray:
    """Labels as 0 and 1.

    Args:
        positive_classes: label values that become 1; the upper half of the sorted values unless given.
    """
    values = np.asarray(labels)
    levels = np.unique(values)
    chosen = levels[len(levels) // 2 :] if positive_classes is None else np.asarray(positive_classes)
    for value in chosen.tolist():
        if value not in levels:
            raise FedsaddleError(f"positive class {value!r} never occurs: choose from {levels[:10].tolist()}")
    return np.isin(values, chosen).astype(np.int64)


def matching(
    labels: npt.ArrayLike, parts: Partition, test_labels: npt.ArrayLike, *, seed: int = 0
) -> Partition:
    """Split a test set so that each client's class proportions follow its training data (SCAFF-PD).

    Every test row whose class occurs in training is given to one client; a client may get none.

    Args:
        labels: training labels.
        parts: the partition of the training rows.
        test_labels: labels of the test rows.
    """
    train, test, rng = np.asarray(labels), np.asarray(test_labels), np.random.default_rng(seed)
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.concatenate(parts)
    owner = np.full(len(test), -1)
    for value in np.unique(test):
        counts = np.bincount(client[train[order] == value], minlength=len(parts))
        rows = rng.permutation(np.flatnonzero(test == value))
        if counts.sum():
            cuts = np.floor(np.cumsum(counts)[:-1] / counts.sum() * len(rows) + 0.5)
            owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    return _by_owner(owner, len(parts))


# ---------------------------------------------------------------------------------------------- helpers


def unknown(kind: str, name: str, known: Iterable[str]) -> FedsaddleError:
    """The error for a name that does not exist, with the nearest one that does, or all."""
    return FedsaddleError(f"{kind} {name!r} is unknown: {nearest_or_all(str(name), known)}")


def check_options(
    what: str, function: Callable[..., Any], options: Iterable[str], skip: Iterable[str]
) -> None:
    """Refuse options that `function` does not take, or lacks; `skip` names what the caller fills in."""
    given = list(options)
    own = {name: p for name, p in inspect.signature(function).parameters.items() if name not in skip}
    for name in given:
        if name not in own:
            raise unknown(f"{what}: option", name, own)
    for name, p in own.items():
        if p.default is p.empty and name not in given:
            raise FedsaddleError(f"{what}: option {name!r} is needed, pass {name}=...")


def _labels(name: str, labels: npt.ArrayLike, clients: int) -> IntArray:
    """Labels as codes 0..C-1, after the checks that all partitions share."""
    values = np.asarray(labels)
    if values.ndim != 1 or len(values) == 0:
        raise FedsaddleError(f"{name}: labels must be one label a row, got shape {list(values.shape)}")
    if not isinstance(clients, (int, np.integer)) or isinstance(clients, bool) or clients < 1:
        raise FedsaddleError(f"{name}: clients must be a whole number >= 1, got {clients!r}")
    if clients > len(values):
        raise FedsaddleError(
            f"{name}: {len(values)} rows cannot fill {clients} clients: take at most {len(values)}"
        )
    codes = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)[1]
    return codes.astype(np.int64)


def in_range(name: str, option: str, value: float, low: float, high: float, open_above: bool = False) -> None:
    """Refuse an option that is not in [low, high], or in [low, high)."""
    if not (low <= value < high or (value == high and not open_above)):
        raise FedsaddleError(
            f"{name}: {option} must be in [{low}, {high}{')' if open_above else ']'}, got {value}"
        )


def _deal(rows: Array, n: int, clients: int) -> IntArray:
    """Owner of each of n rows when `rows` are cut into equal consecutive parts (-1 for rows not in it)."""
    owner = np.full(n, -1)
    short, odd = divmod(len(rows), clients)
    owner[rows] = np.repeat(np.arange(clients), np.where(np.arange(clients) < odd, short + 1, short))
    return owner


def _by_owner(owner: Array, clients: int) -> Partition:
    """Rows of each client, in ascending order; rows whose owner is -1 are dropped."""
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    return [part.astype(np.int64, copy=False) for part in np.split(order, np.cumsum(sizes)[:-1])[1:]]


def _level(
    owner: IntArray, clients: int, minimum: int, reserved: npt.NDArray[np.bool_], rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Move rows from the largest clients until every client has `minimum`; `reserved` rows stay.

    Returns the new owners and each row's position within its client (random, reserved rows first).
    """

    def positions(owner: IntArray) -> IntArray:
        order = np.lexsort((tie, ~reserved, owner))
        position = np.empty(len(owner), dtype=np.int64)
        position[order] = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner[order]]
        return position

    tie, sizes = rng.permutation(len(owner)), np.bincount(owner, minlength=clients)
    need = np.maximum(minimum - sizes, 0)
    position = positions(owner)
    spare = np.flatnonzero(~reserved & (position >= minimum))
    spare = spare[np.argsort(-position[spare], kind="stable")][: need.sum()]
    assert len(spare) == need.sum(), "callers check that there are rows enough"
    owner = owner.copy()
    owner[spare] = np.repeat(np.arange(clients), need)
    sizes = np.bincount(owner, minlength=clients)
    return owner, positions(owner)
