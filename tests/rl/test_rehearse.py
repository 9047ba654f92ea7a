from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.rl import rehearse
from perdure.rl.ops import prng
from perdure.rl.phases import Batch

T, N = 8, 3


@pytest.fixture(scope="module")
def stage(load_module):
    return load_module(Path(__file__).with_name("stage.py"))


def column(*steps):
    """[T, N] of the same numbers in every copy."""
    return np.repeat(np.array(steps, np.float32)[:, None], N, axis=1)


def player(ctx, expert=None):
    """The rows that an expert makes of a key."""
    return jax.jit(lambda key: rehearse.rollout(ctx, expert, key, N, T))


STEP = column(0, 1, 2, 0, 1, 2, 0, 1)
ENDS = STEP == 2


def test_rows_are_those_of_an_expert_alone_in_the_world(stage, tiny):
    world = stage.Payer()
    ctx = stage.context(tiny.agent("asac"), world, stage.Counts(), task=world.task(level=2.0))
    play = player(ctx)
    rows = play(prng.key(1))
    np.testing.assert_array_equal(rows.obs[..., 0], STEP)
    np.testing.assert_array_equal(rows.next_obs[..., 0], STEP + 1)
    np.testing.assert_allclose(rows.action[..., 0], (STEP - 2) / 4)
    np.testing.assert_allclose(rows.reward, 2 * STEP, atol=1e-6)
    np.testing.assert_array_equal(rows.terminated, ENDS)
    assert not rows.truncated.any()
    assert rows.is_expert.all()
    assert (np.asarray(rows.return_to_go) == -np.inf).all()

    # An episode keeps its mark, also in the successor of its last row; every other has its own.
    mark, next_mark = np.asarray(rows.obs[..., 1]), np.asarray(rows.next_obs[..., 1])
    np.testing.assert_array_equal(mark, next_mark)
    assert len(np.unique(mark)) == 3 * N
    np.testing.assert_array_equal(np.asarray(rows.reset_obs)[:-1][ENDS[:-1]], np.asarray(rows.obs)[1:][ENDS[:-1]])

    np.testing.assert_allclose(rows.expert_action, rows.action)
    np.testing.assert_allclose(rows.next_expert_action[..., 0], (STEP - 1) / 4)
    np.testing.assert_allclose(rows.next_action[..., 0], np.where(ENDS, np.nan, (STEP - 1) / 4))

    again = play(prng.key(1))
    np.testing.assert_array_equal(rows.obs, again.obs)
    other = play(prng.key(2))
    assert not np.isin(other.obs[..., 1], mark).any()


def test_a_stateful_expert_begins_anew_with_every_episode(stage, tiny):
    ctx = stage.context(tiny.agent("sac"), stage.Payer(truncates=True), stage.Counts())
    rows = player(ctx, stage.Remembers())(prng.key(1))
    np.testing.assert_allclose(rows.action[..., 0], (STEP - 2) / 4)
    np.testing.assert_allclose(rows.next_expert_action[..., 0], (STEP - 1) / 4)
    np.testing.assert_array_equal(rows.truncated, ENDS)
    assert not rows.terminated.any()
    assert rows.reset_obs == ()


def test_choices_are_indices(stage, tiny):
    ctx = stage.context(tiny.agent("dqn"), stage.Payer(discrete=True), stage.Counts(discrete=True))
    rows = player(ctx)(prng.key(1))
    assert rows.action.dtype == jnp.int32
    np.testing.assert_array_equal(rows.action, STEP)
    np.testing.assert_array_equal(rows.next_action, np.where(ENDS, -1, STEP + 1))


class Counted:
    """A reward that remembers: the number of the step in its episode, weighed, plus a tenth of the world's."""

    def start(self, xp, info):
        return xp.zeros(len(info["obs"]))

    def step(self, xp, memory, action, info, weights):
        return memory + 1, weights[0] * (memory + 1) + 0.1 * info["env_reward"], {}, {}


def test_the_reward_is_the_runs(stage, tiny):
    known = {"reward": Counted(), "weights": jnp.array([10.0])}
    ctx = stage.context(tiny.agent("sac"), stage.Payer(), stage.Counts(), **known)
    rows = player(ctx)(prng.key(1))
    np.testing.assert_allclose(rows.reward, 10 * (STEP + 1) + 0.1 * STEP, rtol=1e-6)


def test_returns_tell_what_was_seen_and_where_it_goes_on():
    yes = lambda *rows: jnp.array(rows, bool)
    rows = Batch(
        *[None] * 2,
        jnp.array([[1.0, 5.0], [2.0, 1.0], [3.0, 1.0], [4.0, 1.0]]),
        yes([0, 0], [1, 0], [0, 0], [0, 0]),
        yes([0, 1], [1, 0], [0, 0], [0, 1]),
        None,
    )
    found = jax.jit(lambda rows: rehearse.returns(rows, 0.5, scale=2.0))(rows)
    # The first copy terminates with row 1 (a limit at once changes nothing) and is open at the end.
    np.testing.assert_allclose(found.seen[:, 0], [2 * (1 + 0.5 * 2), 4, 2 * (3 + 0.5 * 4), 8])
    np.testing.assert_allclose(found.rate[:, 0], [0, 0, 0.25, 0.5])
    np.testing.assert_array_equal(found.last[:, 0], [1, 1, 3, 3])
    # The second is truncated with row 0, and with the last one.
    np.testing.assert_allclose(found.seen[:, 1], [10, 2 * 1.75, 2 * 1.5, 2])
    np.testing.assert_allclose(found.rate[:, 1], [0.5, 0.125, 0.25, 0.5])
    np.testing.assert_array_equal(found.last[:, 1], [0, 3, 3, 3])


def test_rows_are_drawn_from_all_of_them():
    rows = rehearse.flat({"x": jnp.arange(12).reshape(4, 3), "y": 2 * jnp.arange(12).reshape(4, 3)})
    np.testing.assert_array_equal(rows["x"], np.arange(12))
    drawn = rehearse.drawn(rows, prng.key(0), 300)
    assert set(np.asarray(drawn["x"]).tolist()) == set(range(12))
    np.testing.assert_array_equal(drawn["y"], 2 * drawn["x"])


@pytest.mark.parametrize("name", ["td3", "dqn"])
def test_only_the_critics_part_of_an_update_stays(name, stage, tiny):
    """The faulty form lets the actor climb a critic that knows nothing yet."""
    world = stage.Payer(discrete=name == "dqn")
    agent = tiny.agent(name)
    told = []

    def learn(state, rows, key, number):
        told.append((rows.obs.shape, rows.is_expert.shape))
        moved = jax.tree.map(lambda x: x + 1, state)
        return moved, {"loss/critic": 10.0 + number}

    ctx = stage.context(agent, world, learn=learn)
    rows = Batch(jnp.zeros((24, 2)), *[None] * 5, is_expert=jnp.ones(24, bool))

    @jax.jit
    def trained(key):
        state = agent.init(key, ctx)
        after, losses = rehearse.pretrain_critic_bellman(ctx, state, rows, key, 4)
        return jax.tree.map(lambda new, old: new - old, after, state), losses

    shifts, losses = trained(prng.key(0))
    assert told[0] == ((16, 2), (16,))
    np.testing.assert_allclose(losses, [10.0, 13.0])
    shifts = tiny.host(shifts)
    assert any("critic" in path for path in shifts)
    for path, shift in shifts.items():
        np.testing.assert_allclose(shift, 0.0 if "actor" in path else 4.0, atol=1e-5, err_msg=path)
