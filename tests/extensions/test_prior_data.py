from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError, Refused
from perdure.extensions.pretrain import MCPretrain
from perdure.extensions.prior_data import PriorData
from perdure.rl.dataset import TransitionDataset
from perdure.rl.ops import prng


@pytest.fixture(scope="module")
def stage(load_module):
    return load_module(Path(__file__).parents[1] / "rl" / "stage.py")


def dataset(rows=12, seen=2, discrete=False, reward=100.0):
    """Episodes of four steps, one observed number of every row being its own."""
    obs = np.tile(np.arange(rows, dtype=np.float32)[:, None], (1, seen))
    ends = np.arange(rows) % 4 == 3
    action = np.zeros(rows, np.int32) if discrete else np.zeros((rows, 1), np.float32)
    return TransitionDataset(
        obs=obs,
        action=action,
        reward=np.full(rows, reward),
        terminated=ends,
        truncated=np.zeros(rows, bool),
        next_obs=np.where(ends[:, None], -1.0, np.roll(obs, -1, axis=0)),
        is_expert=np.ones(rows, bool),
        expert_action=action,
    )


def test_its_rows_are_what_the_program_is_given_and_not_constants_of_it(stage, tiny):
    """Arrays that a program closes over are compiled into it, and every other dataset is another program."""
    told = []

    def learn(state, rows, key, number):
        told.append(rows)
        return state + rows.obs[:, 0].sum() + number, {}

    agent = tiny.agent("sac")
    part = PriorData(dataset(), offline_updates=3)
    data = part.data(SimpleNamespace(agent=agent))
    np.testing.assert_allclose(data["return_to_go"][:4], 100 * np.cumsum(0.99 ** np.arange(4))[::-1], rtol=1e-5)
    ctx = stage.context(agent, stage.Payer(), learn=learn)
    run = jax.jit(lambda data, key: part.pretrain(jnp.zeros(()), (), ctx._replace(data=data, key=key)))
    found, state = run(data, prng.key(0))
    assert state == ()
    rows = told[0]
    assert rows.obs.shape == (16, 2)
    assert rows.expert_action == ()
    assert rows.reset_obs.shape == rows.next_obs.shape == rows.obs.shape
    assert rows.is_expert.shape == rows.return_to_go.shape == (16,)
    # Each update draws its own rows; with all rows alike, just the numbers 0 + 1 + 2 are left.
    assert found > 3
    alike, _ = run(data | {"obs": np.zeros_like(data["obs"])}, prng.key(0))
    assert alike == 3
    other, _ = run(data, prng.key(1))
    assert other != found

    np.testing.assert_array_equal(part.prior(data | {"reward": data["reward"] + 1}).columns["reward"], 101.0)
    assert part.prior(data).share is None
    assert PriorData(dataset(), symmetric=True).prior(data).share == 0.5
    untouched = PriorData(dataset()).pretrain("agent", (), ctx)
    assert untouched == ("agent", ())


def test_the_agent_learns_from_it_before_and_beside_the_run(tiny):
    """The clockwork pays 1 a step, so that errors near 100 in half of each batch are the dataset's."""
    made = tiny.made("dqn", (PriorData(dataset(discrete=True), offline_updates=5, symmetric=True),))
    begun = made.init(made.seeds)
    assert (np.asarray(begun.train.seeds.agent.opt["critic"].count) == 5).all()
    assert begun.train.clock.updates == 0
    _, _, metrics = tiny.train(made, 96, state=begun)
    assert (metrics[-1]["loss/critic"] > 30).all()


@pytest.mark.parametrize(
    ("name", "part", "says"),
    [
        ("ppo", PriorData(dataset(discrete=True)), "needs off_policy, replay, which PPO does not offer"),
        ("avg", PriorData(dataset()), "needs replay, which AVG does not offer"),
        (
            "sac",
            PriorData(dataset(seen=3)),
            r"extensions\[0\].dataset has observations of shape \[3\]",
        ),
        ("sac", PriorData(dataset(discrete=True)), r"extensions\[0\].dataset has discrete actions"),
    ],
)
def test_what_does_not_fit_is_refused(name, part, says, tiny):
    with pytest.raises((Refused, ConfigError), match=says):
        tiny.made(name, (part,))


def test_what_it_cannot_tell_or_comes_too_early_for_is_refused(stage, tiny):
    part = PriorData(dataset(), offline_updates=1)
    with pytest.raises(Refused, match="is there twice"):
        tiny.made("sac", (part, PriorData(dataset())))
    with pytest.raises(Refused, match="the stateful expert"):
        tiny.made("sac", (part,), rollout={"expert": stage.Remembers()})
    expert = {"expert": stage.Ones()}
    with pytest.raises(Refused, match=r"PriorData\) updates the agent before MCPretrain"):
        tiny.made("sac", (part, MCPretrain()), rollout=expert)
    tiny.made("sac", (PriorData(dataset()), MCPretrain()), rollout=expert)
    tiny.made("sac", (MCPretrain(), part), rollout=expert)
    with pytest.raises(ConfigError, match="offline_updates is -1"):
        PriorData(dataset(), offline_updates=-1)
