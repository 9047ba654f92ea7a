"""A second head beside a worn one: plasticity given back while every prediction stays as it is."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension, Run
from perdure.rl import fit, ranges, triggers, units

NETWORKS = ("all", "actor", "critic")
REWRITERS = ("ContinualBackprop", "PackNet", "ReDo", "ShrinkPerturb")
"""Extensions that write weights themselves, whatever is frozen."""
EVERY = -1
"""The part of units that all parts share: inputs of the head, and its outputs."""


class Injected(NamedTuple):
    """How far it has got."""

    number: jax.Array
    """Injections so far, int32."""


@component
class PlasticityInjection(Extension):
    """Freeze the head, and learn on in a fresh copy of it (Nikishin et al., 2023, arXiv:2305.15555, section 4).

    Of a network h(e(x)), e its encoder and h its head, an injection freezes h, draws a fresh head h_1 of the same
    distribution with a copy h_2 of it, and goes on with h(e(x)) + h_1(e(x)) - h_2(e(x)). Only h_1 and the encoder learn
    from then on. Predictions are the same at the injection, and the number of parameters that learn never grows; the
    fresh head has no moments. A further injection freezes h_1 too and adds another pair. Slow copies of a network
    get the same pair, so that theirs stay as well.

    The three heads lie side by side in the agent's one network: of a hidden layer of W units in the head, each fresh
    head and each copy has floor(W / (1 + 2 `injections`)), the first head the rest, and no weight leads from one to
    another. So `hidden` counts the units of all of them: [64, 192] is a 64-64 network with one injection. Those that
    are not yet in use are zero, learn nothing, and count as dormant in what diagnostics say.

    Departures: the paper widens the network at the injection, here it has its size from the start; the bias of the
    outputs is one number for all heads, h's + h_1's - h_2's, with the gradient of h_1's; and Adam's count, which is
    shared by all parameters of an optimiser, goes on.
    """

    trigger: str = "interval"
    """"interval", or "shift": when the boundary source reports one."""
    interval: int = 10_000
    """Updates before an injection: the first comes after so many, the second after twice as many."""
    injections: int = 1
    """How many there are, at least 1; later triggers do nothing."""
    head: int = 2
    """Layers of the head, the last one included, at least 2: the output of one layer alone is linear in its weights,
    and a fresh one beside it learns exactly what the old one would. Convolutions are always of the encoder."""
    networks: str = "all"
    """"all", "actor" or "critic"."""

    def __post_init__(self):
        triggers.check(self.trigger, self.interval)
        ranges.check(self, injections=ranges.COUNT)
        if self.head < 2:
            raise ConfigError(
                f"head is {self.head}; give at least 2 layers, as a linear head learns no better for a second one "
                "(reset_moments does what is left of the method)"
            )
        if self.networks not in NETWORKS:
            raise ConfigError(f"networks is {self.networks!r}; give 'all', 'actor' or 'critic'")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """A boundary source if it waits for shifts, and the network that is named."""
        named = frozenset() if self.networks == "all" else frozenset({self.networks})
        return triggers.needs(self.trigger) | named

    def objection(self, run: Run) -> str | None:
        """Networks whose heads cannot lie side by side, and companions that move what is frozen."""
        for name, network in self._held(run.agent.networks(run.spec)).items():
            reason = self._unfit(name, network)
            if reason:
                return reason
        for other in run.extensions:
            kind, phases = type(other).__name__, other.implemented_phases()
            if kind in REWRITERS:
                return f"freezes weights that {kind} writes; keep one of the two"
            if other is not self and "pretrain" in phases:
                return f"lays the networks out before the run, when {kind} trains them too; keep one of the two"
            if "step" in phases and other not in (*run.before(self), self):
                return f"freezes weights that {kind}, which comes after it, moves; list it after {kind}"
        return None

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Injected:
        """No injection yet."""
        return Injected(jnp.zeros((), jnp.int32))

    def pretrain(self, agent_state: fit.AgentState, state: Injected, ctx: Any) -> tuple[fit.AgentState, Injected]:
        """Begin with a network of the first head's size, all else zero."""
        params, slow = dict(agent_state.params), dict(agent_state.slow)
        for position, (name, network) in enumerate(self._held(ctx.nets).items()):
            first = self._drawn(network, 0, jax.random.fold_in(ctx.key, position))
            encoder = len(first) - self.head
            # Whatever a layer has beside its matrix and bias, such as the cell of a memory, is no part of a head.
            zeros = [jax.tree.map(jnp.zeros_like, layer) for layer in params[name][encoder:]]
            blank = [new | {"w": old["w"], "b": old["b"]} for new, old in zip(first[encoder:], zeros, strict=True)]
            params[name] = self._written(network, [*first[:encoder], *blank], first, 0)
            if name in slow:
                slow[name] = params[name]
        return agent_state._replace(params=params, slow=slow), state

    def gradient(self, agent_state: Any, state: Injected, grads: Any, batch: Any, ctx: Any) -> Any:
        """Nothing from what is frozen or not yet in use, so that it has no part in a norm that is clipped."""
        return self._learning(state, grads, ctx)

    def step(self, agent_state: Any, state: Injected, change: Any, batch: Any, ctx: Any) -> Any:
        """What is frozen stays, whatever the optimiser's momentum."""
        return self._learning(state, change, ctx)

    def post_update(self, agent_state: Any, state: Injected, ctx: Any) -> tuple[Any, Injected]:
        """Inject if it is time."""
        due = triggers.due(ctx, self.trigger, self.interval) & (state.number < self.injections)
        return triggers.once(due, lambda both: self._injected(both[0], both[1], ctx), (agent_state, state))

    def eval_metrics(self, agent_state: Any, state: Injected, ctx: Any) -> dict[str, jax.Array]:
        """How many injections there were."""
        return {"plasticity_injection/injections": state.number.astype(jnp.float32)}

    def _held(self, nets):
        """The networks that it concerns, by name."""
        return {name: network for name, network in nets.items() if self.networks in ("all", name)}

    def _unfit(self, name, network):
        """Why a network cannot hold several heads; None: it can."""
        if self.head > len(network.hidden) + 1:
            return f"has head {self.head}, but the {name} has {len(network.hidden) + 1} dense layers; lower head"
        if network.layer_norm:
            return f"cannot part the {name}'s head: layer_norm standardises its units together; set layer_norm: false"
        if network.unit_features:
            return f"cannot part the {name}'s head: its features are scaled to length 1 together"
        least = min(network.hidden[-(self.head - 1) :])
        if least < 1 + 2 * self.injections:
            return f"lays {1 + 2 * self.injections} heads side by side, but the {name} has a layer of {least} units"
        return None

    def _widths(self, network, part):
        """Units of a part in each hidden layer of the head: 0 is the first head, 2k - 1 and 2k the k-th pair."""
        hidden, copies = network.hidden[1 - self.head :], 2 * self.injections
        shares = [width // (1 + copies) for width in hidden]
        return shares if part else [width - copies * share for width, share in zip(hidden, shares, strict=True)]

    def _layout(self, network):
        """For each layer of the head, the part that every input and every output is of; `EVERY` where all share it."""
        fans, numbers = network.fans[-self.head :], np.arange(1 + 2 * self.injections)
        widths = np.array([self._widths(network, part) for part in numbers])
        owners = [np.repeat(numbers, widths[:, depth]) for depth in range(self.head - 1)]
        inputs = [np.full(fans[0][0], EVERY), *(np.tile(owner, network.copies) for owner in owners)]
        return list(zip(inputs, [*owners, np.full(fans[-1][1], EVERY)], strict=True))

    def _masks(self, network, part):
        """Which weights and biases of the head's layers are a part's own; the outputs' bias is nobody's."""
        within = lambda owner: (owner == part) | (owner == EVERY)
        layout = self._layout(network)
        return [{"w": within(ins)[:, None] & within(outs)[None, :], "b": outs == part} for ins, outs in layout]

    def _drawn(self, network, part, key):
        """A fresh network whose head is of a part's size."""
        hidden = (*network.hidden[: 1 - self.head], *self._widths(network, part))
        return dataclasses.replace(network, hidden=hidden).init(key)

    def _written(self, network, layers, drawn, part):
        """The layers with a drawn network's head in the place of a part: of copies with the outputs' sign turned.

        Only the first head brings a bias of the outputs: those of a pair are together zero.
        """
        written, sign = list(layers), -1.0 if part and part % 2 == 0 else 1.0
        for number, (ins, outs) in enumerate(self._layout(network), len(layers) - self.head):
            rows, columns = (np.flatnonzero((owner == part) | (owner == EVERY)) for owner in (ins, outs))
            old, new, last = layers[number], drawn[number], number == len(layers) - 1
            weights = old["w"].at[..., rows[:, None], columns].set(sign * new["w"] if last else new["w"])
            bias = old["b"] if last and part else old["b"].at[..., columns].set(new["b"])
            written[number] = old | {"w": weights, "b": bias}
        return written

    def _learning(self, state, tree, ctx):
        """The tree {network: ...}, zero in the heads that do not learn."""
        live, held = jnp.maximum(2 * state.number - 1, 0), {}
        for name, network in self._held(ctx.nets).items():
            if name in tree:
                masks, encoder = self._masks(network, live), len(tree[name]) - self.head
                masks[-1]["b"] = True
                head = [
                    layer | {kind: jnp.where(mask[kind], layer[kind], 0.0) for kind in mask}
                    for layer, mask in zip(tree[name][encoder:], masks, strict=True)
                ]
                held[name] = [*tree[name][:encoder], *head]
        return tree | held

    def _injected(self, agent_state, state, ctx):
        """The agent with one more pair of heads, whichever of the pairs it is."""
        inject = [lambda pair=pair: self._with_pair(agent_state, pair, ctx) for pair in range(1, self.injections + 1)]
        number = jnp.clip(state.number, 0, self.injections - 1)
        return jax.lax.switch(number, inject), Injected(state.number + 1)

    def _with_pair(self, agent_state, pair, ctx):
        """The agent with the `pair`-th fresh head and its copy, and no moments of them."""
        for position, (name, network) in enumerate(self._held(ctx.nets).items()):
            drawn = self._drawn(network, 2 * pair - 1, jax.random.fold_in(ctx.key, position))

            def extended(layers, network=network, drawn=drawn):
                return self._written(network, self._written(network, layers, drawn, 2 * pair - 1), drawn, 2 * pair)

            layers = agent_state.params[name]
            agent_state = units.forgotten(agent_state, name, self._touched(network, layers, 2 * pair - 1))
            slow = {name: extended(agent_state.slow[name])} if name in agent_state.slow else {}
            params = agent_state.params | {name: extended(layers)}
            agent_state = agent_state._replace(params=params, slow=agent_state.slow | slow)
        return agent_state

    def _touched(self, network, layers, part):
        """A tree like the layers: True where a parameter is of a part, or is the outputs' bias."""
        touched = [jax.tree.map(lambda x: jnp.zeros(x.shape, bool), layer) for layer in layers]
        masks = self._masks(network, part)
        masks[-1]["b"] = True
        for layer, mask in zip(touched[-self.head :], masks, strict=True):
            layer.update({kind: jnp.broadcast_to(mask[kind], layer[kind].shape) for kind in mask})
        return touched
