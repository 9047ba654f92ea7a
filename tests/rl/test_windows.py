"""Windows of the last observations: what they hold, and that everything else meets single observations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.errors import ConfigError, Refused
from perdure.core.extension import Extension
from perdure.core.records import Spec
from perdure.rl import collect, experts, host, learner, windows
from perdure.rl.dataset import TransitionDataset
from perdure.rl.memory import Memory
from perdure.rl.normalise import Normaliser
from perdure.rl.ops import prng
from perdure.rl.phases import Batch

MEMORY = Memory(size=4, window=3)
ABSENT = [0.0, 0.0, 0.0]


@pytest.fixture(scope="module")
def world(tiny):
    """Windows of three of the clockwork, whose episodes last five steps."""
    return windows.Windowed(tiny.Clockwork(), 3)


def frames(obs):
    return np.asarray(obs).reshape(3, 3)


def test_a_window_holds_the_last_observations_of_the_episode_and_says_which_are_there(world):
    task = world.task(level=2.0)
    state, obs = world.reset(prng.key(0), task)
    mark = float(state.env.mark)
    assert world.spec == world.world.spec._replace(obs_shape=(9,))
    np.testing.assert_allclose(frames(obs), [ABSENT, ABSENT, [0, mark, 1]])
    for t in range(1, 4):
        state, obs, reward, terminated, truncated, info = world.step(prng.key(t), state, jnp.int32(1), task)
        assert (float(reward), bool(terminated), bool(truncated), float(info["pushed"])) == (2.0, False, False, 1.0)
        wanted = [[k, mark, 1] if k >= 0 else ABSENT for k in range(t - 2, t + 1)]
        np.testing.assert_allclose(frames(obs), wanted)
    np.testing.assert_allclose(windows.last(world, obs), [3, mark])


def test_a_policy_of_windows_follows_single_observations(world):
    task, act = world.task(), windows.Following(lambda obs: obs, world)
    for number in range(2):
        state, obs = world.reset(prng.key(number), task)
        for _ in range(4):
            np.testing.assert_array_equal(act(windows.last(world, obs)), obs)
            state, obs, *_ = world.step(prng.key(7), state, jnp.int32(0), task)
        act.reset()


def test_what_else_a_world_has_is_found_behind_the_windows():
    @component
    class Named:
        name: str = "somewhere"

        def bounds(self, task):
            return 0.0, task

    world = windows.Windowed(Named(), 2)
    assert (world.name, world.bounds(7.0), hasattr(world, "bounds_source")) == ("somewhere", (0.0, 7.0), False)
    assert dataclasses.replace(world, window=3).window == 3


def test_only_observations_that_are_there_are_changed(world):
    obs = jnp.array([0.0, 0.0, 0.0, 1.0, 2.0, 1.0, 3.0, 4.0, 1.0])
    seen = windows.framewise(world, lambda frame: frame - jnp.array([1.0, 10.0]), obs)
    np.testing.assert_allclose(frames(seen), [ABSENT, [0.0, -8.0, 1.0], [2.0, -6.0, 1.0]])
    single = windows.framewise(world.world, lambda frame: frame + 1.0, jnp.ones(2))
    np.testing.assert_array_equal(single, [2.0, 2.0])


def test_statistics_are_of_every_observation_once(tiny):
    """Those of an agent with a memory are those of the same agent without: windows repeat observations."""
    rows = {}
    for memory in (None, MEMORY):
        trainer = tiny.made("dqn", memory=memory, normalize_observations=True).trainer
        task, key = trainer.world.task(), prng.key(0)
        state, obs = trainer.world.reset(key, task)
        seen = []
        for _ in range(4):
            seen.append(obs)
            state, obs, *_ = trainer.world.step(key, state, jnp.int32(0), task)
        batch = Batch(jnp.stack(seen)[:, None], *[None] * 5)
        normaliser = Normaliser.begin(trainer).absorb(trainer, batch)
        rows[memory] = normaliser, windows.last(trainer.world, normaliser.look(trainer, seen[-1]))
    np.testing.assert_allclose(rows[MEMORY][0].obs.mean, [1.5, seen[0][-2]], rtol=1e-6)
    for one, other in zip(jax.tree.leaves(rows[None]), jax.tree.leaves(rows[MEMORY]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def episodes():
    """Episodes of two and of three steps, observed by their numbers."""
    return TransitionDataset(
        obs=np.array([[1.0, -1.0], [2.0, -2.0], [5.0, -5.0], [6.0, -6.0], [7.0, -7.0]]),
        action=np.array([0, 1, 2, 0, 1]),
        reward=np.arange(5.0),
        terminated=np.array([False, True, False, False, False]),
        truncated=np.array([False, False, False, False, True]),
        next_obs=np.array([[2.0, -2.0], [3.0, -3.0], [6.0, -6.0], [7.0, -7.0], [8.0, -8.0]]),
    )


def test_a_dataset_of_single_observations_becomes_one_of_windows(world):
    made = windows.dataset(world, episodes())
    seen = lambda *numbers: [[n, -n, 1] if n else ABSENT for n in numbers]
    wanted = [seen(0, 0, 1), seen(0, 1, 2), seen(0, 0, 5), seen(0, 5, 6), seen(5, 6, 7)]
    after = [seen(0, 1, 2), seen(1, 2, 3), seen(0, 5, 6), seen(5, 6, 7), seen(6, 7, 8)]
    np.testing.assert_allclose(made.obs.reshape(5, 3, 3), wanted)
    np.testing.assert_allclose(made.next_obs.reshape(5, 3, 3), after)
    for name in ("action", "reward", "terminated", "truncated", "is_expert"):
        np.testing.assert_array_equal(getattr(made, name), getattr(episodes(), name))
    assert windows.dataset(world, made) is made
    assert windows.dataset(world.world, made) is made


@component
class Marks:
    """Does what it sees second, in world units."""

    def __call__(self, obs):
        return obs[..., 1:2]


@component
class Counts:
    """Does how often it was asked."""

    def init_state(self, n):
        return jnp.zeros(n)

    def __call__(self, state, obs):
        return obs[..., :1] + state[:, None], state + 1.0


@component
class Holder(Extension):
    """Holds an expert and a dataset, and shows what it is given."""

    expert_policy: object = None
    dataset: TransitionDataset | None = None
    strength: float = 1.0

    def post_update(self, agent_state, state, ctx):
        return agent_state, state


@pytest.mark.parametrize("expert", [Marks(), Counts()])
def test_experts_see_the_present_observation(expert, world):
    asked = windows.expert(world, expert)
    obs = jnp.arange(18.0).reshape(2, 9)
    assert experts.is_stateful(asked) == experts.is_stateful(expert)
    state = experts.start(expert, 2)
    found, wanted = experts.ask(asked, state, obs), experts.ask(expert, state, obs[:, 6:8])
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)
    assert hash(asked) == hash(windows.expert(world, expert))


def test_a_run_with_a_memory_gives_its_parts_what_they_know(tiny):
    part = Holder(Marks(), episodes())
    made = tiny.made("sac", (part, tiny.Witness()), memory=MEMORY, rollout={"expert": Marks()})
    trainer = made.trainer
    assert trainer.world == windows.Windowed(tiny.world_for("sac"), 3)
    assert trainer.expert == trainer.extensions[0].expert_policy == windows.LastFrame(Marks(), trainer.world)
    assert trainer.extensions[0].dataset.obs.shape == (5, 9)
    assert trainer.extensions[1] == tiny.Witness()
    nets = trainer.context(None).nets
    assert (nets["actor"].inputs, nets["critic"].inputs, nets["actor"].memory) == (9, 10, MEMORY)
    assert tiny.made("sac", (part,), rollout={"expert": Marks()}).trainer.extensions == (part,)


@component
class Place:
    """A reward that is what is seen first, and remembers what was seen at the start."""

    def start(self, xp, info):
        return info["obs"]

    def step(self, xp, memory, action, info, weights):
        return memory, info["obs"][..., 0] + memory[..., 1], {}, ()


def test_rewards_read_the_present_observation(tiny):
    trainer = tiny.made("dqn", memory=MEMORY, rollout={"reward": Place()}).trainer
    no = jnp.zeros(2, bool)
    first, following = jnp.arange(18.0).reshape(2, 9), 100.0 + jnp.arange(18.0).reshape(2, 9)
    memory = collect.start_memory(trainer, first)
    np.testing.assert_array_equal(memory, [[6, 7], [15, 16]])
    _, reward, _ = collect.rewarded(trainer, memory, (), no, ((), following, jnp.zeros(2), no, no))
    np.testing.assert_array_equal(reward, [106 + 7, 115 + 16])


def test_worlds_that_cannot_be_remembered_are_refused_with_the_remedy(tiny):
    seen = tiny.Clockwork().spec
    there = host.HostWorld(seen, "Somewhere-v0")
    with pytest.raises(Refused, match=r"DQN has a memory, but Screens shows images; set algorithm.kwargs.memory: null"):
        learner.trainer(tiny.agent("dqn", memory=MEMORY), Screens(seen._replace(obs_shape=(4, 4, 1))))
    with pytest.raises(Refused, match=r"DQN has a memory, but Somewhere-v0 .* host; set algorithm.kwargs.memory: null"):
        learner.trainer(tiny.agent("dqn", memory=MEMORY), there)


@component
class Screens:
    """A world of images, as far as a check looks."""

    spec: Spec

    def step(self, key, state, action, task):
        raise AssertionError


def test_a_dataset_of_another_world_is_refused(tiny):
    made = tiny.made("dqn", memory=MEMORY, seeds=(0,))
    other = TransitionDataset(**episodes().columns() | {"obs": np.zeros((5, 4)), "next_obs": np.zeros((5, 4))})
    with pytest.raises(ConfigError, match=r"dataset has observations of shape \[4\]"):
        made.train_offline(learner.LearnerState((), 0), other, 1)
