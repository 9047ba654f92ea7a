"""The hidden units of a network: how much each does, and how some of them begin anew.

A mask of a layer says yes or no of each of its units: [units], or [N, units] for an ensemble. A unit of a
convolutional layer is a feature, at all places of the image; after crelu a unit is both of its halves.
"""

import itertools

import jax
import jax.numpy as jnp

from perdure.rl import fit
from perdure.rl.nets import Network, joined
from perdure.rl.phases import Batch

Layers = list[dict[str, jax.Array]]


def activity(network: Network, params: Layers, rows: Batch) -> list[jax.Array]:
    """Mean size of what each hidden layer gives the next one, over rows: [inputs], or [N, inputs] for an ensemble.

    Between two convolutional layers, over places too: an input is then a channel.
    """
    hidden = network.trace(params, joined(network, rows.obs, rows.action))[:-1]
    lead = network.members is not None
    sizes = []
    for number, layer in enumerate(hidden):
        size = jnp.abs(layer).mean(int(lead))
        if number < len(network.convolutions):
            places = number < len(network.convolutions) - 1
            size = size.mean((-3, -2)) if places else size.reshape(*size.shape[:-3], -1)
        sizes.append(size)
    return sizes


def by_unit(per_input: jax.Array, units: int) -> jax.Array:
    """The sum of [..., inputs] over the inputs that come from one unit: [..., units]."""
    return per_input.reshape(*per_input.shape[:-1], -1, units).sum(-2)


def dormant_units(network: Network, params: Layers, rows: Batch, threshold: float) -> list[jax.Array]:
    """Which units of each hidden layer are at most `threshold` times as active as its mean.

    Sokar et al., 2023, arXiv:2302.12902, eq. 1.
    """
    sizes = [
        by_unit(size, layer["b"].shape[-1])
        for size, layer in zip(activity(network, params, rows), params[:-1], strict=True)
    ]
    return [size <= threshold * size.mean(-1, keepdims=True) for size in sizes]


def outgoing(network: Network, params: Layers) -> list[jax.Array]:
    """Sum of the sizes of the weights that leave each input of the layers after the first: [inputs] or [N, inputs].

    Inputs beside the units of the layer before (an action that joins the features of an image) are left out.
    """
    sums = []
    for number, (below, layer) in enumerate(itertools.pairwise(params)):
        axes = (-4, -3, -1) if number + 1 < len(network.convolutions) else (-1,)
        inputs = below["b"].shape[-1] * network.repeats[number]
        sums.append(jnp.abs(layer["w"]).sum(axes)[..., :inputs])
    return sums


def recycle(
    network: Network, agent_state: fit.AgentState, name: str, masks: list[jax.Array], fresh: Layers
) -> fit.AgentState:
    """The agent's state with the masked units of network `name` begun anew.

    What enters them becomes as in the parameters `fresh`, what leaves them zero, and optimisers forget the moments
    of both. A weight between two of them is zero.
    """
    layers = agent_state.params[name]
    touched, renewed = [], []
    for number, (old, new) in enumerate(zip(layers, fresh, strict=True)):
        enters = masks[number] if number < len(masks) else jnp.zeros(old["b"].shape, bool)
        into = _against(enters, old["w"], -1)
        out = _against(_inputs(network, layers, masks, number), old["w"], -2)
        # A memory in the first layer stays as it is.
        touched.append(jax.tree.map(lambda x: jnp.zeros(x.shape, bool), old) | {"w": into | out, "b": enters})
        renewed.append(
            old
            | {
                "w": jnp.where(out, 0.0, jnp.where(into, new["w"], old["w"])),
                "b": jnp.where(enters, new["b"], old["b"]),
            }
        )
    return forgotten(agent_state, name, touched)._replace(params=agent_state.params | {name: renewed})


def forgotten(agent_state: fit.AgentState, name: str, touched: Layers) -> fit.AgentState:
    """The agent's state with the moments of network `name` zero where the tree `touched` is true."""
    zeroed = lambda tree: tree | {name: jax.tree.map(lambda x, t: jnp.where(t, 0.0, x), tree[name], touched)}
    opt = {
        group: each._replace(mean=zeroed(each.mean), square=zeroed(each.square)) if name in each.mean else each
        for group, each in agent_state.opt.items()
    }
    return agent_state._replace(opt=opt)


def _inputs(network, layers, masks, number):
    """The mask of the layer below as it lies along the inputs of layer `number`."""
    lead, count = layers[number]["b"].shape[:-1], layers[number]["w"].shape[-2]
    if number == 0:
        return jnp.zeros((*lead, count), bool)
    tiled = jnp.tile(masks[number - 1], (1,) * len(lead) + (network.repeats[number - 1],))
    return jnp.pad(tiled, [(0, 0)] * len(lead) + [(0, count - tiled.shape[-1])])


def _against(mask, weights, axis):
    """The mask [units] or [N, units] as it meets `weights`, whose units lie along `axis`, -1 or -2."""
    lead = mask.shape[:-1]
    between = (1,) * (weights.ndim - len(lead) + axis)
    return mask.reshape(*lead, *between, mask.shape[-1], *(1,) * (-1 - axis))
