"""Drawing rows in proportion to their priorities: sums of groups, of groups of groups, and so on.

A level is read by WIDTH numbers at a time, so a draw from a million rows is four small vector operations,
where a binary tree takes twenty steps. Suffixes: B draws, W numbers of a group.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

WIDTH = 32
TOP = 128
"""Most sums at the highest level."""


class Priorities(NamedTuple):
    """Priorities of the rows of a store, 0 for those that are not to be drawn."""

    levels: tuple[jax.Array, ...]
    """The priorities, then sums of each `WIDTH` numbers of the level below; zeros fill what is not used."""
    maxima: jax.Array
    """The largest priority of each group of rows."""

    @property
    def highest(self) -> jax.Array:
        """The largest of all."""
        return self.maxima.max()


def empty(rows: int) -> Priorities:
    """None of `rows` rows can be drawn."""
    filled = lambda count: -(-count // WIDTH) * WIDTH
    sizes = [filled(rows)]
    groups = sizes[0] // WIDTH
    above = groups
    while above > TOP:
        sizes.append(filled(above))
        above = sizes[-1] // WIDTH
    return Priorities(tuple(jnp.zeros(size) for size in [*sizes, above]), jnp.zeros(groups))


def assign(priorities: Priorities, index: jax.Array, values: jax.Array) -> Priorities:
    """Other priorities for the rows at `index`; where a row is named twice, the values must agree.

    Every sum is taken anew of the numbers it holds, so rounding errors do not gather.
    """
    changed = [priorities.levels[0].at[index].set(values)]
    maxima = priorities.maxima
    for number, sums in enumerate(priorities.levels[1:]):
        index = index // WIDTH
        groups = changed[-1].reshape(-1, WIDTH)[index]
        if number == 0:
            maxima = maxima.at[index].set(groups.max(-1))
        changed.append(sums.at[index].set(groups.sum(-1)))
    return Priorities(tuple(changed), maxima)


def draw(priorities: Priorities, uniform_B: jax.Array) -> jax.Array:
    """The row that each number in [0, 1) falls on, of B equal shares of the sum: [B] (Schaul et al., 2016, B.2.1).

    A number is one share's; that keeps each draw's chance in proportion and spreads them over the rows.
    """
    count, (*below, top) = uniform_B.shape[0], priorities.levels
    share = (jnp.arange(count) + uniform_B) / count
    top_BW = jnp.broadcast_to(top, (count, *top.shape))
    index, rest = _fallen(top_BW, share * top.sum())
    for level in below[::-1]:
        place, rest = _fallen(level.reshape(-1, WIDTH)[index], rest)
        index = index * WIDTH + place
    return index


def _fallen(values_BW, x_B):
    """Where x falls on a line made of the values one after another, and how far into that value."""
    sums_BW = _running(values_BW)
    # Sums of a level and of the level above differ by rounding; what overshoots falls on the last value that is not 0.
    x_B = jnp.clip(x_B, 0.0, sums_BW[:, -1] * (1 - 1e-6))
    number_W = jnp.arange(values_BW.shape[1])
    inside_BW = (sums_BW > x_B[:, None]) & (values_BW > 0)
    place_B = jnp.where(inside_BW, number_W, values_BW.shape[1]).min(-1)
    before_BW = jnp.where(number_W == place_B[:, None], sums_BW - values_BW, 0.0)
    return place_B, x_B - before_BW.sum(-1)


def _running(x_BW):
    """Running sums, by doubling: a few vector operations."""
    shift = 1
    while shift < x_BW.shape[1]:
        x_BW = x_BW + jnp.pad(x_BW[:, :-shift], [(0, 0), (shift, 0)])
        shift *= 2
    return x_BW
