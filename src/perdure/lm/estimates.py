"""Advantages and value targets of a TokenBatch: one a trainable token, or one a turn.

Both walk through the episodes of the batch, which may span several rows; without known lengths every turn is an
episode of its own, so that gamma and lam do nothing between turns. Rows come out as arrays [T] of their own lengths.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perdure.lm.batch import TokenBatch
from perdure.lm.objectives.advantages import gae, standardised
from perdure.lm.trajectory import Turn
from perdure.metrics.advantages import compute_gae

Row = NDArray[np.float64]


class Estimates(NamedTuple):
    """For each row: advantages of its trainable tokens, and the targets of the critic."""

    advantages: list[Row]
    returns: list[Row]
    """At each trainable token; or [1], of the value after the row's last token."""


def by_token(
    batch: TokenBatch, values: Sequence[Row], bootstraps: Sequence[float], gamma: float, lam: float
) -> Estimates:
    """Generalised advantages of trainable tokens: gamma once a turn, lam a token, a reward on the turn's last one.

    `values[r][t]` is the value of the state before token t; `bootstraps` one number an episode. Advantages are
    shifted and scaled to mean 0 and deviation 1 where there are at least two.
    """
    advantages, returns = _zeros(batch), _zeros(batch)
    for episode, bootstrap in zip(_episodes(batch), bootstraps, strict=True):
        places = [(row, np.array(_trainable(batch, row, turn))) for row, turn in episode]
        rewards, ends = zip(*(_last(turn.reward, len(at)) for (_, turn), (_, at) in zip(episode, places, strict=True)))
        held = np.concatenate([values[row][at] for row, at in places])
        found = gae(held, np.concatenate(rewards), np.concatenate(ends), gamma=gamma, lam=lam, bootstrap=bootstrap)
        begin = 0
        for row, at in places:
            part = slice(begin, begin + len(at))
            advantages[row][at], returns[row][at] = found.advantages[part], found.returns[part]
            begin += len(at)
    masks = [np.array(row.mask, bool) for row in batch.rows]
    return Estimates(standardised(advantages, masks), returns)


def by_turn(
    batch: TokenBatch, values: Sequence[float], bootstraps: Sequence[float], gamma: float, lam: float
) -> Estimates:
    """One advantage a turn, for rows of one turn each; `values` are those after the rows' last tokens.

    That is the reference's estimate. Advantages are normalised only if there is more than one.
    """
    lengths = batch.episode_lengths
    known = bootstraps if lengths is not None else None
    found, targets = compute_gae(batch.rewards, list(values), lengths, gamma, lam, bootstrap=known)
    normalised = np.array(found)
    if len(normalised) > 1:
        normalised = (normalised - normalised.mean()) / (normalised.std() + 1e-8)
    advantages = [advantage * np.array(row.mask, np.float64) for advantage, row in zip(normalised, batch.rows)]
    return Estimates(advantages, [np.array([target]) for target in targets])


def explained_variance(values: Row, returns: Row) -> float:
    """1 - var(returns - values) / var(returns); NaN where all returns are the same."""
    spread = float(returns.var())
    return float("nan") if spread < 1e-12 else 1 - float((returns - values).var()) / spread


def _episodes(batch: TokenBatch) -> Iterator[list[tuple[int, Turn]]]:
    turns = [(row, turn) for row, each in enumerate(batch.rows) for turn in each.turns]
    begin = 0
    for length in batch.episode_lengths or [1] * len(turns):
        yield turns[begin : begin + length]
        begin += length


def _trainable(batch: TokenBatch, row: int, turn: Turn) -> list[int]:
    return [at for at in range(turn.start, turn.end) if batch.rows[row].mask[at]]


def _last(reward: float, count: int) -> tuple[Row, NDArray[np.bool_]]:
    rewards, ends = np.zeros(count), np.zeros(count, bool)
    rewards[-1], ends[-1] = reward, True
    return rewards, ends


def _zeros(batch: TokenBatch) -> list[Row]:
    return [np.zeros(len(row)) for row in batch.rows]
