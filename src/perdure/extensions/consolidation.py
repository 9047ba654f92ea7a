"""Penalties that hold parameters near where they stood at a shift, each by how much it mattered before.

All of them keep the present regime's importance in their state, because rows that an update sees
just after a shift may be of the new regime already, and take it over when the boundary source
reports one, with the parameters from before that update as the anchor. Without `critic` only the
policy is held, and the value networks where there is no policy.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension
from perdure.rl import anchors, importance, ranges, views
from perdure.rl.anchors import Anchor


class Consolidated(NamedTuple):
    """An anchor, and the importance in the present regime: a running mean, not yet divided by its weight."""

    anchor: Anchor
    running: Any
    weight: jax.Array


class Integrated(NamedTuple):
    """An anchor, and the present regime's path: what each parameter did for the loss, and where it began."""

    anchor: Anchor
    path: Any
    start: Any


class _Pulled(Extension):
    """What all of them do with an anchor: `scale` times the pull towards it, reported under `log`."""

    log: ClassVar[str]
    strength: float

    def all_needs(self) -> frozenset[str]:
        """A boundary source and a critic; where there is no actor, there is one network less to hold."""
        return frozenset({"critic", "boundary"})

    @property
    def scale(self) -> float:
        """What the pull is multiplied by."""
        return self.strength

    def critic_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The pull on value networks."""
        return self._pull(state, batch, critics=True)

    def actor_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The pull on everything else."""
        return self._pull(state, batch, critics=False)

    def eval_metrics(self, agent_state: Any, state: Any, ctx: Any) -> dict[str, jax.Array]:
        """The whole penalty, and how many shifts it is made of."""
        penalty = self.scale * (anchors.pull(state.anchor, agent_state.params) + state.anchor.residual)
        return {f"{self.log}/penalty": penalty, f"{self.log}/anchors": state.anchor.number}

    def _pull(self, state, batch, critics):
        moving = {name: tree for name, tree in batch.params.items() if (name == "critic") == critics}
        return self.scale * anchors.pull(state.anchor, moving)


@component
class _Measured(_Pulled):
    """Importance that is measured on rows now and then: a running mean over the regime."""

    strength: float = 1.0
    """Lambda, at least 0."""
    critic: bool = False
    """Whether the value networks are held too."""
    rows: int = 32
    """Rows for each measurement; each keeps a gradient of every held parameter in memory."""
    interval: int = 10
    """Updates between two measurements."""
    memory: float = 0.99
    """Share of the running importance that a measurement keeps, in [0, 1)."""

    def __post_init__(self):
        ranges.check(self, strength=ranges.AT_LEAST_ZERO, rows=ranges.COUNT, interval=ranges.COUNT)
        ranges.check(self, memory=(0.0, 0.999999))

    def measure(self, ctx: Any, params: Any, rows: Any) -> Any:
        """The importance of every parameter on these rows: the diagonal Fisher information."""
        return importance.fisher(ctx, params, rows, ctx.key)

    def anchored(self, anchor: Anchor, precision: Any, params: Any) -> Anchor:
        """The anchor after a shift: importance summed, about where the parameters stand now."""
        return anchors.moved(anchor, jax.tree.map(jnp.add, anchor.precision, precision), params)

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Consolidated:
        """No anchor, nothing seen."""
        anchor = anchors.unanchored(importance.held(ctx, agent_state.params, self.critic))
        return Consolidated(anchor, anchor.precision, jnp.zeros(()))

    def post_update(self, agent_state: Any, state: Consolidated, ctx: Any) -> tuple[Any, Consolidated]:
        """At a shift the anchor takes over what was measured; the measuring goes on with the rows of this update."""
        due = jnp.asarray(ctx.shift) & (state.weight > 0)
        state = jax.lax.cond(due, lambda: self._taken_over(state, ctx), lambda: state)
        measured = lambda: self._blended(agent_state, state, ctx)
        return agent_state, jax.lax.cond(ctx.crossed(self.interval), measured, lambda: state)

    def _taken_over(self, state, ctx):
        precision = jax.tree.map(lambda x: x / state.weight, state.running)
        params = {name: ctx.before.params[name] for name in precision}
        nothing = jax.tree.map(jnp.zeros_like, state.running)
        return Consolidated(self.anchored(state.anchor, precision, params), nothing, jnp.zeros(()))

    def _blended(self, agent_state, state, ctx):
        params = {name: agent_state.params[name] for name in state.running}
        new = self.measure(ctx, params, importance.few(ctx.recent, self.rows))
        blend = lambda old, new: self.memory * old + (1 - self.memory) * new
        return state._replace(running=jax.tree.map(blend, state.running, new), weight=blend(state.weight, 1.0))


@component
class EWC(_Measured):
    """Elastic weight consolidation: strength / 2 * sum over shifts and parameters of F (theta - theta*)^2.

    Kirkpatrick et al., 2017 (arXiv:1612.00796, equation 3), with one anchor for each shift and F the
    diagonal Fisher information (`rl.importance.fisher`). The sum of the parabolas is kept as one
    parabola and a constant, so memory does not grow. F is a running mean over the regime's
    updates, where the paper measures it once at the end.
    """

    strength: float = 400.0
    """Lambda, at least 0; 400 is the paper's for Atari games."""

    log: ClassVar[str] = "ewc"

    @property
    def scale(self) -> float:
        """What the pull is multiplied by."""
        return 0.5 * self.strength

    def anchored(self, anchor: Anchor, precision: Any, params: Any) -> Anchor:
        """One parabola more."""
        return anchors.joined(anchor, precision, params)


@component
class OnlineEWC(_Measured):
    """Elastic weight consolidation with one anchor, the last, and importance that fades.

    Schwarz et al., 2018 (arXiv:1805.06370, section 4): strength / 2 * sum of fading * F* (theta - theta*)^2 with
    F* <- fading * F* + F at a shift. F is measured as by EWC.
    """

    strength: float = 400.0
    """Lambda, at least 0."""
    fading: float = 0.95
    """Gamma, the share of the importance that outlives a shift, in [0, 1]."""

    log: ClassVar[str] = "online_ewc"

    def __post_init__(self):
        super().__post_init__()
        ranges.check(self, fading=ranges.SHARE)

    @property
    def scale(self) -> float:
        """What the pull is multiplied by."""
        return 0.5 * self.strength * self.fading

    def anchored(self, anchor: Anchor, precision: Any, params: Any) -> Anchor:
        """Faded importance and the new, about the new anchor."""
        total = jax.tree.map(lambda old, new: self.fading * old + new, anchor.precision, precision)
        return anchors.moved(anchor, total, params)


@component
class MAS(_Measured):
    """Memory aware synapses: strength * sum of Omega (theta - theta*)^2.

    Aljundi et al., 2018 (arXiv:1711.09601, section 4, in the form that takes the squared length of the outputs):
    Omega is the mean over rows of |d ||F(x)||^2 / d theta|, summed over shifts; the anchor is the last.
    F are the network's numbers: logits, means and log deviations, values. A deviation that is no
    network's output (PPO) is free.
    """

    log: ClassVar[str] = "mas"

    def measure(self, ctx: Any, params: Any, rows: Any) -> Any:
        """Omega of these rows."""
        return importance.sensitivity(ctx, params, rows)


@component
class SynapticIntelligence(_Pulled):
    """Synaptic intelligence: strength * sum of Omega (theta - theta*)^2, Omega from the path of learning.

    Zenke et al., 2017 (arXiv:1703.04200, equations 3 to 5): over a regime omega = - sum of gradient
    times step, the parameter's share in the fall of the loss; at a shift Omega grows by
    omega / (distance^2 + damping). The gradient, of the whole loss and clipped where the optimiser
    clips, is read off the optimiser's mean: exactly where one update lies between two looks
    (replay, AVG); over a window of many minibatches it is their mean, the later ones weighing
    more, times the whole step. Departure: negative omega counts as 0, because a negative Omega
    would push the parameter away without bound.
    """

    strength: float = 1.0
    """c, at least 0; the paper's is 1 or less."""
    damping: float = 1e-3
    """xi, positive."""
    critic: bool = False
    """Whether the value networks are held too."""

    log: ClassVar[str] = "synaptic_intelligence"

    def __post_init__(self):
        ranges.check(self, strength=ranges.AT_LEAST_ZERO, damping=ranges.POSITIVE)

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Integrated:
        """No anchor, and a path that begins here."""
        params = importance.held(ctx, agent_state.params, self.critic)
        anchor = anchors.unanchored(params)
        return Integrated(anchor, anchor.precision, params)

    def post_update(self, agent_state: Any, state: Integrated, ctx: Any) -> tuple[Any, Integrated]:
        """At a shift the path becomes importance; then this update's stretch is added to the path."""
        state = jax.lax.cond(jnp.asarray(ctx.shift), lambda: self._taken_over(state, ctx), lambda: state)
        path = dict(state.path)
        for group, after in agent_state.opt.items():
            optimiser = views.optimiser(ctx, group)
            grads = anchors.mean_gradient(optimiser, ctx.before.opt[group], after)
            for name in grads.keys() & path.keys():
                work = lambda w, g, new, old: w - g * (new - old)
                path[name] = jax.tree.map(
                    work, path[name], grads[name], agent_state.params[name], ctx.before.params[name]
                )
        return agent_state, state._replace(path=path)

    def _taken_over(self, state, ctx):
        params = {name: ctx.before.params[name] for name in state.path}
        share = lambda w, new, old: jnp.maximum(w, 0.0) / (jnp.square(new - old) + self.damping)
        fresh = jax.tree.map(share, state.path, params, state.start)
        anchor = anchors.moved(state.anchor, jax.tree.map(jnp.add, state.anchor.precision, fresh), params)
        return Integrated(anchor, jax.tree.map(jnp.zeros_like, state.path), params)
