"""The minibatch sampler with plain Python integers modulo 2**64."""

import math

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MINIBATCH = 1
SERVER = 2
POOL = 3
NORMAL = 1 << 40
SHUFFLE_ROUNDS = 24


def mix(h: int) -> int:
    h &= MASK
    h ^= h >> 30
    h = (h * 0xBF58476D1CE4E5B9) & MASK
    h ^= h >> 27
    h = (h * 0x94D049BB133111EB) & MASK
    h ^= h >> 31
    return h


def absorb(h: int, v: int) -> int:
    return mix((h + (v + 1) * GOLDEN) & MASK)


def below(h: int, n: int) -> int:
    """An integer in 0..n-1 from the top 31 bits of h."""
    return ((h >> 33) * n) >> 31


def key(*values: int) -> int:
    h = 0
    for v in values:
        h = absorb(h, v)
    return h


def shuffled(k: int, x: int, n: int) -> int:
    """Image of x under the keyed permutation of 0..n-1 (24 swap-or-not rounds)."""
    for j in range(SHUFFLE_ROUNDS):
        k_j = absorb(k, j)
        a_j = absorb(k_j, 0) | 1
        s_j = absorb(k_j, 1)
        partner = (below(k_j, n) - x) % n
        m = max(x, partner)
        if ((m * a_j + s_j) >> 31) & 1:  # the top bit of the low 32
            x = partner
    return x


def minibatch(seed, round, phase, step, client, n, batch_size, replacement):
    """(indices, weights) of one client's minibatch; batch_size None means all n samples."""
    if batch_size is None:
        return list(range(n)), [1.0 / n] * n
    k = key(MINIBATCH, seed, round, phase, step, client)
    if replacement:
        return [below(absorb(k, b), n) for b in range(batch_size)], [1.0 / batch_size] * batch_size
    size = min(batch_size, n)
    return [shuffled(k, b, n) for b in range(size)], [1.0 / size] * size


def filled(seed, round, phase, side, step, client, n, batch_size, replacement):
    """Exactly batch_size of the n samples of a side (0 or 1): over and over where n is smaller."""
    k = key(MINIBATCH, seed, round, phase, side, step, client)
    if replacement:
        return [below(absorb(k, b), n) for b in range(batch_size)]
    return [shuffled(k, b % n, n) for b in range(batch_size)]


def from_pool(seed, round, call, position, n, count):
    """Places in a pool of n entries, for the participant at a position."""
    k = key(POOL, seed, round, call, 0, position)
    return [shuffled(k, b % n, n) for b in range(count)]


def normal(seed, round, phase, client, count):
    """Standard normal numbers by Box-Muller, from 31 bits each."""
    k = key(MINIBATCH, seed, round, phase, NORMAL, client)
    out = []
    for i in range(count):
        h = absorb(k, i)
        u, v = ((part >> 33) + 0.5 for part in (h, absorb(h, 0)))
        out.append(math.sqrt(-2 * math.log(u / 2**31)) * math.cos(2 * math.pi * v / 2**31))
    return out


def server_integer(seed, round, n):
    """The run's own integer draw in 0..n-1."""
    return below(key(SERVER, seed, round), n)
