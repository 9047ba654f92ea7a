"""Whether a network can still learn: ranks of its features, and units that no longer fire.

Each function takes a matrix [samples, units] of activations and returns None, and never raises,
for input in which the quantity is undefined: empty, not two-dimensional, all zero, not finite.
"""

# pyright: strict

import numpy as np
import numpy.typing as npt

from perdure.metrics.metric import FloatArray


def effective_rank_entropy(matrix: npt.ArrayLike) -> float | None:
    """exp of the entropy of the normalised singular values, in [1, min(samples, units)].

    Roy and Vetterli 2007. Singular values (2, 1, 1) give 2 sqrt(2).
    """
    values = _singular_values(matrix)
    if values is None:
        return None
    share = values / values.sum()
    share = share[share > 0]
    return float(np.exp(-np.sum(share * np.log(share))))


def stable_rank(matrix: npt.ArrayLike, threshold: float = 0.99) -> int | None:
    """The smallest k whose k largest singular values hold `threshold` of their sum.

    The literature's stable rank, a ratio of norms, is `spectral_stable_rank`.
    """
    values = _singular_values(matrix)
    if values is None:
        return None
    mass = np.cumsum(values) / values.sum()
    # A sum of equal shares may stop a rounding error short of the threshold it meets.
    return min(int(np.searchsorted(mass, threshold - 1e-12)) + 1, len(values))


def threshold_rank(matrix: npt.ArrayLike, delta: float = 0.01) -> int | None:
    """srank_delta: the smallest k whose k largest singular values hold 1 - delta of their sum.

    Kumar et al. 2021 (arXiv 2010.14498).
    """
    return stable_rank(matrix, 1 - delta)


def spectral_stable_rank(matrix: npt.ArrayLike) -> float | None:
    """Squared Frobenius norm over squared spectral norm, in [1, rank]."""
    values = _singular_values(matrix)
    if values is None:
        return None
    return float(((values / values[0]) ** 2).sum())


def dormant_fraction(features: npt.ArrayLike, tau: float = 0.025) -> float | None:
    """The share of units whose mean absolute activation is at most `tau` of the layer's average.

    Sokar et al. 2023 (arXiv 2302.12902), in [0, 1].
    """
    table = _matrix(features)
    if table is None:
        return None
    activity = np.abs(table / np.abs(table).max()).mean(axis=0)
    return float((activity / activity.mean() <= tau).mean())


def _singular_values(matrix: npt.ArrayLike) -> FloatArray | None:
    """Singular values in falling order, in units of the largest entry; those below 1e-7 of the largest are zero.

    They are roots of the eigenvalues of the smaller Gram matrix: a small symmetric problem, which
    stays quick where a threaded decomposition must share the cores with a training run.
    """
    table = _matrix(matrix)
    if table is None:
        return None
    table = table / np.abs(table).max()
    gram = table.T @ table if table.shape[0] >= table.shape[1] else table @ table.T
    try:
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))
    except np.linalg.LinAlgError:
        return None
    return np.where(values < 1e-7 * values[0], 0.0, values)


def _matrix(values: npt.ArrayLike) -> FloatArray | None:
    """A finite, non-zero matrix, or None."""
    try:
        table = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        # Ragged or non-numeric rows are no matrix.
        return None
    if table.ndim != 2 or not table.size or not np.isfinite(table).all() or not table.any():
        return None
    # Entries below the normal range would divide into infinities.
    return table if np.abs(table).max() > 1e-300 else None
