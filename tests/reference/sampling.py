"""The minibatch sampler with plain Python integers modulo 2**64."""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MINIBATCH = 1
SERVER = 2
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


def server_integer(seed, round, n):
    """The run's own integer draw in 0..n-1."""
    return below(key(SERVER, seed, round), n)
