"""What keeps learning from wearing out: units of little use begun anew, useful weights held, moments forgotten."""

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension
from perdure.rl import ranges, triggers, units, views
from perdure.rl.ops import masks

Tree = dict[str, list[jax.Array]]
"""Network -> one array for each hidden layer."""


class Tended(NamedTuple):
    """What continual backpropagation knows of every hidden unit: [units], or [N, units] for an ensemble."""

    utility: Tree
    """Decaying sums of contributions, as yet without the correction for their youth."""
    age: Tree
    """Updates since the unit began."""
    owed: Tree
    """Units of the layer to be replaced, in fractions: a number, or [N]."""
    replaced: jax.Array
    """Units replaced so far, of all networks."""


@component
class ContinualBackprop(Extension):
    """Replace a few of the least useful units all the time (Dohare et al., 2024, Nature 632; arXiv:2306.13812, alg. 1).

    The contribution of a unit is its mean absolute activation over recent rows times the absolute
    sum of its outgoing weights; utility is a running mean of it, corrected for its
    start at zero. Of the units older than `maturity`, a share `replacement_rate` becomes due at each
    update, in fractions; for every whole one the least useful unit is begun anew: incoming weights as
    at the start, outgoing weights and the moments of both zero.

    Departure: on-policy agents are looked at once a window, where ages, decays and dues count all of its updates.
    """

    replacement_rate: float = 1e-4
    """Share of a layer's mature units replaced at an update, in [0, 1]."""
    decay: float = 0.99
    """Of the running mean, an update; in [0, 1)."""
    maturity: int = 10_000
    """Updates that a unit is left alone at first, at least 0."""

    def __post_init__(self):
        ranges.check(self, replacement_rate=ranges.SHARE, maturity=ranges.AT_LEAST_ZERO)
        if not 0 <= self.decay < 1:
            raise ConfigError(f"decay is {self.decay}; it lies in [0, 1), 1 excluded")

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Tended:
        """Units of no age and no use."""
        hidden = {name: [layer["b"] for layer in agent_state.params[name][:-1]] for name in ctx.nets}
        zeros = jax.tree.map(jnp.zeros_like, hidden)
        ages = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.int32), hidden)
        return Tended(zeros, ages, jax.tree.map(lambda x: jnp.zeros(x.shape[:-1]), hidden), jnp.zeros((), jnp.int32))

    def post_update(self, agent_state: Any, state: Tended, ctx: Any) -> tuple[Any, Tended]:
        """Take the updates just done into account, and replace what is due."""
        elapsed = ctx.clock.updates - ctx.previous.updates
        for position, name in enumerate(ctx.nets):
            state = self._assessed(agent_state, state, name, elapsed, ctx)
            due = jnp.stack([(owed >= 1).any() for owed in state.owed[name]]).any()
            key = jax.random.fold_in(ctx.key, position)
            replace = lambda both, name=name, key=key: self._replaced(both[0], both[1], name, ctx.nets[name], key)
            agent_state, state = triggers.once(due, replace, (agent_state, state))
        return agent_state, state

    def eval_metrics(self, agent_state: Any, state: Tended, ctx: Any) -> dict[str, jax.Array]:
        """How many units were replaced so far, and the share of those that are mature."""
        ages = jnp.concatenate([age.ravel() for age in jax.tree.leaves(state.age)])
        return {
            "continual_backprop/replaced_units": state.replaced.astype(jnp.float32),
            "continual_backprop/mature_fraction": (ages > self.maturity).mean(),
        }

    def _assessed(self, agent_state, state, name, elapsed, ctx):
        """The state after `elapsed` more updates of one network."""
        network, layers = ctx.nets[name], agent_state.params[name]
        keep = self.decay ** elapsed.astype(jnp.float32)
        flows = zip(units.activity(network, layers, ctx.recent), units.outgoing(network, layers), strict=True)
        worth = [
            units.by_unit(size * weight, layer["b"].shape[-1])
            for (size, weight), layer in zip(flows, layers[:-1], strict=True)
        ]
        utility = [keep * old + (1 - keep) * new for old, new in zip(state.utility[name], worth, strict=True)]
        age = [old + elapsed for old in state.age[name]]
        mature = [(each > self.maturity).sum(-1) for each in age]
        owed = [
            old + elapsed * self.replacement_rate * count for old, count in zip(state.owed[name], mature, strict=True)
        ]
        return state._replace(
            utility=state.utility | {name: utility}, age=state.age | {name: age}, owed=state.owed | {name: owed}
        )

    def _replaced(self, agent_state, state, name, network, key):
        """The agent and the state after all whole units that are owed have been begun anew."""
        masks = [
            self._least(*layer) for layer in zip(state.utility[name], state.age[name], state.owed[name], strict=True)
        ]
        agent_state = units.recycle(network, agent_state, name, masks, network.init(key))
        cleared = lambda tree: [jnp.where(mask, 0, old) for mask, old in zip(masks, tree[name], strict=True)]
        owed = [old - mask.sum(-1) for mask, old in zip(masks, state.owed[name], strict=True)]
        return agent_state, Tended(
            state.utility | {name: cleared(state.utility)},
            state.age | {name: cleared(state.age)},
            state.owed | {name: owed},
            state.replaced + sum(mask.sum() for mask in masks),
        )

    def _least(self, utility, age, owed):
        """Which units of a layer are the least useful mature ones, as many as are owed."""
        mature = age > self.maturity
        corrected = utility / (1 - self.decay ** age.astype(jnp.float32))
        order = jnp.where(mature, corrected, jnp.inf)
        rank = jnp.argsort(jnp.argsort(order, axis=-1), axis=-1)
        return mature & (rank < jnp.floor(owed)[..., None])


@component
class UPGD(Extension):
    """Utility-based perturbed gradient descent: useful weights move less, useless ones also at random.

    Elsayed and Mahmood, 2024, arXiv:2404.00781, algorithm 1 with the first-order utility -gradient
    times weight, scaled by its largest value in the network: the optimiser's step, plus its learning
    rate times Normal noise of deviation `noise`, is multiplied by 1 - sigmoid(utility / largest utility).

    Departures: where the paper averages the products of gradient and weight, the optimiser's running
    mean of the gradient is multiplied by the present weight; every member of an ensemble is a network
    of its own. Parameters outside networks (a temperature, a spread) move as always.
    """

    noise: float = 1e-3
    """Deviation of the perturbation, in units of the learning rate; at least 0."""

    def __post_init__(self):
        ranges.check(self, noise=ranges.AT_LEAST_ZERO)

    def step(self, agent_state: Any, state: tuple[()], change: Any, batch: Any, ctx: Any) -> Any:
        """The change of every network, gated and perturbed."""
        for position, (name, network) in enumerate(ctx.nets.items()):
            if name in change:
                moments = next(each for each in agent_state.opt.values() if name in each.mean)
                # An update may move a network several times; the optimiser's count tells the steps apart.
                key = jax.random.fold_in(jax.random.fold_in(ctx.key, position), moments.count)
                free = freedom(agent_state.params[name], moments.mean[name], apart=network.members is not None)
                spread = self.noise * views.optimiser(ctx, name).learning_rate
                change = change | {name: _gated(change[name], free, spread, key)}
        return change


@component
class ResetMoments(Extension):
    """Let every optimiser forget its moments and its count (Asadi et al., 2023, arXiv:2306.17833).

    The paper does so whenever the target network is renewed: set `interval` to that period, or
    wait for shifts of the regime.
    """

    trigger: str = "interval"
    """"interval", or "shift": when the boundary source reports one."""
    interval: int = 10_000
    """Updates between two resets."""

    def __post_init__(self):
        triggers.check(self.trigger, self.interval)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """A boundary source, if it waits for shifts."""
        return triggers.needs(self.trigger)

    def post_update(self, agent_state: Any, state: tuple[()], ctx: Any) -> tuple[Any, tuple[()]]:
        """Forget if it is time."""
        due = triggers.due(ctx, self.trigger, self.interval)
        forget = lambda opt: jax.tree.map(jnp.zeros_like, opt)
        return agent_state._replace(opt=triggers.once(due, forget, agent_state.opt)), state


def freedom(params: Any, gradients: Any, apart: bool) -> Any:
    """1 - sigmoid(u / largest u) with u = -gradient * parameter, for every parameter of a network.

    `apart`: the first axis is that of an ensemble's members, each with a largest value of its own.
    Where nothing has a utility every parameter is half free.
    """
    utility = jax.tree.map(lambda p, g: -g * p, params, gradients)
    largest = reduce(jnp.maximum, [x.max(range(int(apart), x.ndim)) for x in jax.tree.leaves(utility)])
    largest = jnp.maximum(largest, jnp.finfo(jnp.float32).tiny)
    return jax.tree.map(lambda u: 1 - jax.nn.sigmoid(u / masks.widened(largest, u)), utility)


def _gated(change, free, spread, key):
    """free * (change + noise) for every leaf; one draw serves them all, as each costs the compiler its own time."""
    flat, back = ravel_pytree(change)
    return jax.tree.map(jnp.multiply, free, back(flat + spread * jax.random.normal(key, flat.shape)))
