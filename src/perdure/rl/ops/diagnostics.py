"""Whether features can still tell states apart, in compiled programs: the forms of metrics/plasticity.py on arrays."""

import jax
import jax.numpy as jnp

SWEEPS = 16
"""Most sweeps of the rotations; a handful is enough."""


def srank(feats: jax.Array, delta: float = 0.01) -> jax.Array:
    """The smallest k whose k largest singular values hold 1 - delta of their sum; 0 of a matrix of zeros.

    `feats` is [samples, units]. Kumar et al., 2021, arXiv:2010.14498, definition 1.
    """
    values = singular_values(feats)
    mass = jnp.cumsum(values)
    # A sum of equal shares may stop a rounding error short of the threshold it meets.
    short = (mass < (1.0 - delta - 1e-6) * mass[-1]).sum()
    return jnp.where(mass[-1] > 0, short + 1, 0).astype(jnp.int32)


def dormant_fraction(feats: jax.Array, tau: float = 0.025) -> jax.Array:
    """The share of units whose mean absolute activation is at most `tau` of the layer's mean, in [0, 1].

    `feats` is [samples, units]. Sokar et al., 2023, arXiv:2302.12902, equation 1.
    """
    size = jnp.abs(feats).mean(0)
    return (size <= tau * size.mean()).astype(jnp.float32).mean()


def singular_values(matrix: jax.Array) -> jax.Array:
    """Singular values of [m, n], min(m, n) of them, in falling order.

    By one-sided Jacobi rotations (Hestenes, 1958): pairs of columns are made orthogonal, n / 2 pairs at a
    time, until all are. LAPACK's decompositions wait for threads of the pool that runs the program,
    and several of them in one program can wait for ever.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    count = tall.shape[1]
    scale = jnp.maximum(jnp.abs(tall).max(), 1e-30)
    half = max(2, -(-count // 2))
    columns = jnp.pad(tall / scale, ((0, 0), (0, 2 * half - count)))

    def sweep(carry):
        left, right, _, done = carry
        left, right, worst = jax.lax.fori_loop(0, 2 * half - 1, _round, (left, right, jnp.zeros(())))
        return left, right, worst, done + 1

    going = lambda carry: (carry[2] > 1e-5) & (carry[3] < SWEEPS)
    start = (columns[:, :half], columns[:, half:], jnp.ones(()), 0)
    left, right, *_ = jax.lax.while_loop(going, sweep, start)
    lengths = jnp.sqrt(jnp.square(jnp.concatenate([left, right], axis=1)).sum(0))
    return scale * jnp.sort(lengths, descending=True)[:count]


def _round(_, carry):
    """Rotate each column on the left against its partner on the right, then give every column a new partner."""
    left, right, worst = carry
    a, b, c = (left * left).sum(0), (right * right).sum(0), (left * right).sum(0)
    # Columns that are rounding noise beside the largest have no angle worth turning.
    noise = 1e-12 * jnp.maximum(a.max(), b.max())
    angle = jnp.where(jnp.minimum(a, b) > noise, jnp.abs(c) * jax.lax.rsqrt(jnp.maximum(a * b, 1e-30)), 0.0)
    turns = angle > 1e-7
    zeta = (b - a) / jnp.where(turns, 2.0 * c, 1.0)
    tangent = jnp.where(zeta >= 0, 1.0, -1.0) / (jnp.abs(zeta) + jnp.sqrt(1.0 + zeta * zeta))
    tangent = jnp.where(turns, tangent, 0.0)
    cosine = jax.lax.rsqrt(1.0 + tangent * tangent)
    sine = cosine * tangent
    left, right = cosine * left - sine * right, sine * left + cosine * right
    # The first stays, the others move round the table: each pair meets once in a sweep.
    moved_left = jnp.concatenate([left[:, :1], right[:, :1], left[:, 1:-1]], axis=1)
    moved_right = jnp.concatenate([right[:, 1:], left[:, -1:]], axis=1)
    return moved_left, moved_right, jnp.maximum(worst, angle.max())
