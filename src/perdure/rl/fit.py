"""An agent's learnt state, and one step of gradient descent on part of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl.optim import OptState


class AgentState(NamedTuple):
    """Every agent's state: extensions can find networks and moments without knowing the agent."""

    params: dict[str, Any]
    """Network name (or the name of a free parameter, "log_std") -> parameters."""
    opt: dict[str, OptState]
    """Optimiser name -> moments, shaped as {network name: parameters} of what it moves."""
    slow: dict[str, Any] = {}  # noqa: RUF012 - a tree like any other, replaced and never mutated
    """Target networks."""
    memory: Any = ()
    """Whatever else the agent's target rule keeps."""


def descend(
    state: AgentState,
    optimiser_name: str,
    optimiser: Any,
    loss: Callable[[dict[str, Any]], tuple[jax.Array, Any]],
    batch: Any,
    ctx: Any,
    extensions: Any,
) -> tuple[AgentState, Any]:
    """One step of the named optimiser on `loss(params) -> (value, aux)`; returns the state and aux.

    `params` holds just the parameters that the optimiser moves. Extensions see the gradients and the step.
    """
    opt = state.opt[optimiser_name]
    old = {name: state.params[name] for name in opt.mean}
    grads, aux = jax.grad(loss, has_aux=True)(old)
    grads = extensions.gradient(state, grads, batch, ctx)
    new, opt = optimiser.step(old, opt, grads)
    moved = extensions.step(state._replace(opt=state.opt | {optimiser_name: opt}), old, new, batch, ctx)
    return state._replace(params=state.params | moved, opt=state.opt | {optimiser_name: opt}), aux


def follow(state: AgentState, name: str, rate: float) -> AgentState:
    """Move the slow copy of a network towards it by `rate` (Polyak averaging)."""
    slow = jax.tree.map(lambda s, p: s + rate * (p - s), state.slow[name], state.params[name])
    return state._replace(slow=state.slow | {name: slow})


def renew(state: AgentState, name: str, when: jax.Array) -> AgentState:
    """Copy a network onto its slow copy where `when` is true."""
    slow = jax.tree.map(lambda s, p: jnp.where(when, p, s), state.slow[name], state.params[name])
    return state._replace(slow=state.slow | {name: slow})
