"""One update of an agent by itself: specs, batches, contexts and fresh states of a small size."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.records import Spec
from perdure.rl import clipped
from perdure.rl.fold import Extensions
from perdure.rl.optim import Adam
from perdure.rl.phases import Batch, Clock, Context, Occasional

ROWS, SEES, ACTIONS = 32, 3, 4
HIDDEN = (6, 5)
# A generous epsilon, so that a gradient of rounding noise moves nothing.
FREE = Adam(learning_rate=1e-2, epsilon=1e-3)


def spec(discrete):
    """Of a world of four choices, or of two dimensions."""
    return Spec((SEES,), ACTIONS if discrete else 2, discrete, *(() if discrete else ((-1.0,) * 2, (1.0,) * 2)))


def context(agent, discrete, updates=0):
    """What surrounds the update after `updates` others; each has a key of its own."""
    clock = Clock(jnp.int32(7), jnp.int32(updates), jnp.int32(1_000))
    key = jax.random.key(100 + updates)
    return Context(spec(discrete), agent.networks(spec(discrete)), ROWS, clock, key)


def rows(discrete, seed):
    """A batch in which some episodes end either way."""
    random = np.random.default_rng(seed)
    action = random.integers(ACTIONS, size=ROWS) if discrete else random.uniform(-1, 1, size=(ROWS, 2))
    real = lambda x: jnp.asarray(x, jnp.float32)
    return Batch(
        real(random.normal(size=(ROWS, SEES))),
        jnp.asarray(action, jnp.int32 if discrete else jnp.float32),
        real(random.normal(size=ROWS)),
        jnp.asarray(random.random(ROWS) < 0.2),
        jnp.asarray(random.random(ROWS) < 0.2),
        real(random.normal(size=(ROWS, SEES))),
        discount=0.9,
        reset_obs=real(random.normal(size=(ROWS, SEES))),
    )


def begun(agent, discrete):
    """A fresh state whose parameters, the slow ones too, are all moved off their symmetric start."""
    ctx = context(agent, discrete)
    state = agent.init(jax.random.key(0), ctx)
    noise = np.random.default_rng(5)
    shaken = lambda tree: jax.tree.map(lambda x: x + jnp.asarray(0.1 * noise.normal(size=x.shape), x.dtype), tree)
    state = state._replace(params=shaken(state.params), slow=shaken(state.slow))
    for tree in (state.params, state.slow):
        if "critic" in tree and ctx.nets["critic"].members:
            tree["critic"] = _levelled(ctx.nets["critic"], tree["critic"])
    return state


def _levelled(network, critics):
    """The critics, their heads moved so that each is the least for some rows."""
    batch = rows(False, 0)
    means = network.apply(critics, jnp.concatenate([batch.obs, batch.action], -1)).mean((1, 2))
    *hidden, head = critics
    return [*hidden, head | {"b": head["b"] - means[:, None]}]


def updated(agent, discrete, state, batches):
    """(state, [metrics]) after one update on each of the batches."""
    metrics = []
    for number, batch in enumerate(batches):
        ctx = context(agent, discrete, number)
        state, told = _update(agent, discrete, state, batch._replace(discount=None), ctx.key, ctx.clock.updates)
        metrics.append({name: _number(value) for name, value in told.items()})
    return state, metrics


def _number(value):
    """A metric; None where an update did not measure it."""
    if isinstance(value, Occasional):
        return float(value.total) if value.count else None
    return float(value)


@partial(jax.jit, static_argnums=(0, 1))
def _update(agent, discrete, state, batch, key, updates):
    ctx = context(agent, discrete)
    ctx = ctx._replace(key=key, clock=ctx.clock._replace(updates=updates))
    return agent.update(state, batch, ctx, Extensions())


def close(found, wanted):
    """Assert that trees of leaves by path are equal to 1e-5."""
    assert found.keys() == wanted.keys()
    for path, leaf in wanted.items():
        np.testing.assert_allclose(found[path], leaf, rtol=1e-5, atol=1e-5, err_msg=path)


def labelled(discrete, seed):
    """A batch with the labels of a clipped surrogate, and targets."""
    random = np.random.default_rng(seed + 50)
    real = lambda x: jnp.asarray(x, jnp.float32)
    # Close enough to the present policy that some ratios are clipped, above and below, and some are not.
    then = np.log(1 / ACTIONS) if discrete else -2.5
    labels = clipped.Labels(real(then + 0.4 * random.normal(size=ROWS)), real(random.normal(size=ROWS)))
    return rows(discrete, seed)._replace(aux=labels, target=real(random.normal(size=ROWS)))
