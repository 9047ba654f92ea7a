"""What DQN learns from beyond single uniform rows, and what it learns with."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.dqn import DQN
from perdure.agents.sac import SAC
from perdure.core.component import component, make
from perdure.core.errors import Refused
from perdure.core.extension import Extension
from perdure.core.records import Spec
from perdure.rl import learner, learning
from perdure.rl.feeds import Prioritised, Replay
from perdure.rl.optim import Adam
from perdure.rl.phases import Clock, Context
from perdure.rl.prior import Prior

# A generous epsilon, so that a gradient of rounding noise moves nothing.
FREE = Adam(learning_rate=1e-2, epsilon=1e-3)


def dueling(written, layers, obs):
    """(values of every action, what the backward pass needs) of a head of a value and advantages."""
    head, kept = written.forward(layers, np.asarray(obs, np.float64), "relu")
    return head[:, :1] + head[:, 1:] - head[:, 1:].mean(-1, keepdims=True), kept


def test_all_options_together_follow_their_equations(written, single):
    agent = DQN(hidden=single.HIDDEN, optimiser=FREE, discount=0.9, double=True, dueling=True, target_period=2)
    state = single.begun(agent, True)
    critic, slow = written.copied(state.params["critic"]), written.copied(state.slow["critic"])
    own, random, at = written.Adam(1e-2, 1e-3), np.random.default_rng(7), np.arange(single.ROWS)
    batches = []
    for seed in (1, 2):
        rows = single.rows(True, seed)
        batches.append(
            rows._replace(
                reward=5 * rows.reward,
                span=jnp.asarray(random.integers(1, 4, single.ROWS), jnp.int32),
                weight=jnp.asarray(random.uniform(0.2, 1.0, single.ROWS), jnp.float32),
                index=jnp.arange(single.ROWS),
            )
        )
    for batch in batches:
        ahead = dueling(written, slow, batch.next_obs)[0]
        choice = dueling(written, critic, batch.next_obs)[0].argmax(-1)
        assert (choice != ahead.argmax(-1)).any()
        future = np.where(batch.terminated, 0.0, ahead[at, choice])
        target = np.asarray(batch.reward, np.float64) + 0.9 ** np.asarray(batch.span) * future
        q, kept = dueling(written, critic, batch.obs)
        error = q[at, np.asarray(batch.action)] - target
        assert 0.1 < (np.abs(error) > 1).mean() < 0.95  # Both halves of the Huber loss are met.
        slope = np.zeros((single.ROWS, single.ACTIONS))
        slope[at, np.asarray(batch.action)] = np.asarray(batch.weight) * np.clip(error, -1, 1) / single.ROWS
        head = np.concatenate([slope.sum(-1, keepdims=True), slope - slope.mean(-1, keepdims=True)], -1)
        gradients = {"critic": written.backward(critic, kept, head)[0]}
        critic = written.put(own.step({"critic": critic}, gradients), {"critic": critic})["critic"]
    found, metrics = single.updated(agent, True, state, batches)
    single.close(written.flat(found.params["critic"]), written.flat(critic))
    single.close(written.flat(found.slow["critic"]), written.flat(critic))  # The second update renews it.
    np.testing.assert_allclose(found.memory, error, rtol=1e-5, atol=1e-5)
    size = np.where(np.abs(error) <= 1, error**2 / 2, np.abs(error) - 0.5)
    assert metrics[-1]["loss/critic"] == pytest.approx((np.asarray(batches[-1].weight) * size).mean(), rel=1e-4)


def test_errors_of_a_uniform_batch_are_not_kept(single):
    agent = DQN(hidden=single.HIDDEN)
    state = single.begun(agent, True)
    assert single.updated(agent, True, state, [single.rows(True, 1)])[0].memory == ()


FEED = Prioritised(capacity=48, batch_size=8, learning_starts=8, steps=2, exponent=0.5, epsilon=0.25)


@pytest.fixture(scope="module")
def trained(tiny):
    """A learner of prioritised two-step rows and its state after 64 steps of two copies."""
    agent = DQN(feed=FEED, hidden=(8,), activation="crelu", dueling=True, double=True, discount=0.9, optimiser=FREE)
    made = learner.JaxLearner(
        learner.trainer(agent, tiny.Clockwork(), n_envs=2, window_steps=16, total_steps=1_000), tiny.SEEDS
    )
    state, _, metrics = tiny.train(made, 64)
    return made, state, metrics


def test_the_loop_turns_errors_into_priorities(trained):
    _, state, metrics = trained
    assert np.isfinite(metrics[-1]["loss/critic"]).all()
    assert state.train.seeds.agent.memory == ()
    held = np.asarray(state.train.seeds.store.priorities.levels[0])[:, :48]
    # Steps 0 to 31 of each copy are written; the last of them, in rows 14 and 15, waits for its successor.
    np.testing.assert_array_equal(np.flatnonzero(held[0] == 0), [14, 15])
    assert len(np.unique(held[0])) > 8
    assert not np.array_equal(held[0], held[1])


def test_an_update_gives_its_rows_their_errors_as_priorities(trained, written):
    made, state, _ = trained
    trainer, clock = made.trainer, state.train.clock
    seed = jax.tree.map(lambda x: x[0], state.train.seeds)
    rows = FEED.sample(seed.store, trainer.context(clock), jax.random.key(0), 0.9)
    after, _ = jax.jit(partial(learning.update_on, trainer))(
        seed, rows, clock, clock._replace(updates=clock.updates + 1)
    )
    before, changed = (np.asarray(each.store.priorities.levels[0]) for each in (seed, after))

    at, index = np.arange(8), np.asarray(rows.index)
    network = trainer.context(clock).nets["critic"]
    q = np.asarray(network.apply(seed.agent.params["critic"], rows.obs))[at, np.asarray(rows.action)]
    choice = np.asarray(network.apply(seed.agent.params["critic"], rows.next_obs)).argmax(-1)
    ahead = np.asarray(network.apply(seed.agent.slow["critic"], rows.next_obs))[at, choice]
    target = np.asarray(rows.reward) + np.where(rows.terminated, 0.0, 0.9 ** np.asarray(rows.span) * ahead)
    np.testing.assert_allclose(changed[index], np.sqrt(np.abs(q - target) + 0.25), rtol=1e-4)
    others = np.setdiff1d(np.arange(48), index)
    np.testing.assert_array_equal(changed[others], before[others])


@pytest.mark.parametrize(
    ("agent", "continuous", "missing"),
    [
        (SAC(feed=Replay(steps=3)), True, "n_step"),
        (SAC(feed=Prioritised(steps=3)), True, "n_step and priorities"),
    ],
)
def test_agents_that_cannot_learn_from_a_feed_refuse_it(agent, continuous, missing, tiny):
    with pytest.raises(Refused, match=f"SAC does not learn from a feed that needs {missing}"):
        learner.trainer(agent, tiny.Clockwork(continuous=continuous))


@component
class Mixing(Extension):
    """Would mix a dataset's rows in."""

    def prior(self, data):
        return Prior({})


@pytest.mark.parametrize(("feed", "what"), [(Replay(steps=3), "n_step"), (Prioritised(), "priorities")])
def test_rows_of_a_dataset_stand_only_beside_single_uniform_ones(feed, what, tiny):
    with pytest.raises(Refused, match=f"DQN has a feed of {what}, but an extension mixes a dataset's rows"):
        learner.trainer(DQN(feed=feed), tiny.Clockwork(), (Mixing(),))


def test_a_document_chooses_the_feed_by_its_kind_or_its_fields():
    assert make(DQN, {"feed": {"kind": "prioritised"}}, "kwargs").feed == Prioritised()
    assert make(DQN, {"feed": {"importance": 0.5, "steps": 3}}, "kwargs").feed == Prioritised(importance=0.5, steps=3)
    assert make(DQN, {"feed": {"steps": 3}}, "kwargs").feed == Replay(100_000, 64, learning_starts=1_000, steps=3)


def test_images_pass_through_convolutions():
    spec = Spec((6, 5, 2), 3, discrete=True)
    agent = make(DQN, {"convolutions": [[4, 3, 1]], "hidden": [7]}, "kwargs")
    network = agent.networks(spec)["critic"]
    clock = Clock(jnp.int32(0), jnp.int32(0), jnp.int32(100))
    ctx = Context(spec, {"critic": network}, 4, clock, noise=jnp.ones((2, 4)))
    state = agent.init(jax.random.key(0), ctx)
    assert [layer["w"].shape for layer in state.params["critic"]] == [(3, 3, 2, 4), (4 * 3 * 4, 7), (7, 3)]
    obs = jax.random.normal(jax.random.key(1), (4, 6, 5, 2))
    best = network.apply(state.params["critic"], obs).argmax(-1)
    np.testing.assert_array_equal(agent.act_greedy(state, obs, ctx), best)
    np.testing.assert_array_equal(agent.act(state, obs, ctx)[0], best)
