"""A compiled agent driven from outside learns what it learns inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.core.records import RolloutWindow, Transition
from perdure.rl import collect, host, learner
from perdure.rl import schedule as schedules
from perdure.rl.phases import Clock

SEED = 3
WINDOW = 16


def outside(tiny, name):
    """An agent to be driven, and the compiled learner of the same sizes."""
    inside = tiny.made(name, seeds=(SEED,))
    sizes = {"n_envs": 2, "window_steps": WINDOW, "total_steps": 1_000}
    trainer = learner.trainer(tiny.agent(name), host.HostWorld(tiny.world_for(name).spec), **sizes)
    return host.HostAgent(trainer, SEED, 1_000, lambda obs, step=None: np.asarray(obs, np.float32)), inside


class Copies:
    """Two copies of the clockwork on the host, whose episodes begin as the compiled ones do."""

    def __init__(self, tiny, made):
        state = made.init((SEED,))
        keys = jax.tree.map(lambda x: x[0], state.train.seeds.keys)
        plan = schedules.traced(tiny.STILL, made.trainer.world)
        window = lambda t: collect.plan(made.trainer, keys, Clock(jnp.int32(t), jnp.int32(0), jnp.int32(1_000)), plan)
        self.fresh = np.concatenate([np.asarray(window(t).fresh[1]) for t in range(0, 4 * WINDOW, WINDOW)])
        self.obs = np.asarray(state.train.seeds.lanes.obs)[0]
        self.t = 0

    def step(self, actions):
        """The transitions of one step of both."""
        result, following = [], self.obs.copy()
        for lane, action in enumerate(actions):
            after = self.obs[lane] + np.float32([1, 0])
            ended = bool(after[0] >= 5)
            step = self.t * 2 + lane
            result.append(
                Transition(step, self.obs[lane], action, 1.0, ended, False, next_observation=after, lane=lane)
            )
            following[lane] = self.fresh[self.t, lane] if ended else after
        self.obs, self.t = following, self.t + 1
        return result


def driven(agent, copies, steps):
    """Actions taken over `steps` steps of both copies, windows handed over as they fill; the last one may be short."""
    taken, rows = [], []
    for number in range(steps):
        actions = agent.act_batch(list(copies.obs))
        taken.append(np.array(actions))
        for transition in copies.step(actions):
            agent.record(transition)
            rows.append(transition)
        if len(rows) == 2 * WINDOW or number == steps - 1:
            agent.update(RolloutWindow(rows))
            rows = []
    return np.array(taken)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_an_agent_outside_learns_as_it_does_inside(name, tiny):
    agent, inside = outside(tiny, name)
    taken = driven(agent, Copies(tiny, inside), 3 * WINDOW)
    state, columns, _ = tiny.train(inside, 6 * WINDOW)
    np.testing.assert_array_equal(taken.ravel(), columns["action"])
    wanted = tiny.host(state.train.seeds.agent)
    found = tiny.host(agent._seed.agent)
    for path, leaf in wanted.items():
        np.testing.assert_allclose(found[path], leaf[0], rtol=1e-3, atol=1e-5, err_msg=path)


def test_a_short_window_teaches_an_on_policy_agent_nothing(tiny):
    agent, inside = outside(tiny, "ppo")
    before = tiny.host(agent._seed.agent)
    driven(agent, Copies(tiny, inside), WINDOW - 1)
    after = tiny.host(agent._seed.agent)
    assert all(np.array_equal(before[path], after[path]) for path in before)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_saved_agent_goes_on_as_if_it_had_not_stopped(name, tiny, tmp_path):
    agent, inside = outside(tiny, name)
    copies = Copies(tiny, inside)
    driven(agent, copies, WINDOW)
    agent.save_checkpoint(tmp_path)
    again, _ = outside(tiny, name)
    again.load_checkpoint(tmp_path)
    resumed = Copies(tiny, inside)
    resumed.obs, resumed.t = copies.obs.copy(), copies.t
    np.testing.assert_array_equal(driven(agent, copies, WINDOW), driven(again, resumed, WINDOW))
    assert tiny.same(agent._seed, again._seed)


def test_another_agents_checkpoint_is_refused(tiny, tmp_path):
    outside(tiny, "dqn")[0].save_checkpoint(tmp_path)
    with pytest.raises(DataError, match="another program"):
        outside(tiny, "ppo")[0].load_checkpoint(tmp_path)


def test_continuous_actions_leave_in_the_worlds_units(tiny):
    agent, inside = outside(tiny, "sac")
    copies = Copies(tiny, inside)
    taken = np.array([agent.act_batch(list(copies.obs))])
    assert taken.shape == (1, 2, 1)
    assert ((taken >= -2.0) & (taken <= 6.0)).all()
    assert np.shape(agent.act_greedy(copies.obs[0])) == (1,)


def test_a_streaming_agent_outside_learns_as_it_does_inside(tiny):
    agent, inside = outside(tiny, "avg")
    taken = driven(agent, Copies(tiny, inside), 2 * WINDOW)
    state, columns, _ = tiny.train(inside, 4 * WINDOW)
    np.testing.assert_allclose(taken.ravel(), columns["action"].ravel(), rtol=1e-3, atol=1e-4)
    found = tiny.host(agent._seed.agent)
    for path, leaf in tiny.host(state.train.seeds.agent).items():
        np.testing.assert_allclose(found[path], leaf[0], rtol=1e-2, atol=1e-4, err_msg=path)


def test_what_follows_a_reset_is_where_the_episode_began(tiny, tmp_path):
    agent, inside = outside(tiny, "asac")
    copies = Copies(tiny, inside)
    first = copies.obs.copy()
    driven(agent, copies, 3)
    rows = agent._seed.store.rows
    np.testing.assert_array_equal(rows.reset_obs[:6], np.tile(first, (3, 1)))
    agent.save_checkpoint(tmp_path)
    other, _ = outside(tiny, "asac")
    other.load_checkpoint(tmp_path)
    for each in (agent, other):
        each.act_batch([obs + 7.0 for obs in first])
    np.testing.assert_array_equal(agent._beginnings, first)
    np.testing.assert_array_equal(other._beginnings, first)
