"""The promises of the compiled learner: budgets, independence of how it is called, exact resume, one compile."""

import jax
import numpy as np
import pytest

from perdure.core.errors import ConfigError, DataError, PerdureError, Refused
from perdure.core.records import Shift
from perdure.rl import learner

AGENTS = ("ppo", "dqn", "sac")


@pytest.mark.parametrize("name", AGENTS)
def test_a_thousand_steps_are_a_thousand_rows(name, tiny):
    made = tiny.made(name)
    state, columns, metrics = tiny.train(made, 1_000)
    assert made.step(state) == 1_000
    for seed in tiny.SEEDS:
        own = columns["seed"] == seed
        np.testing.assert_array_equal(columns["step"][own], np.arange(1_000))
        np.testing.assert_array_equal(columns["lane"][own], np.arange(1_000) % 2)
    # Every copy's episodes last five steps, through windows and calls alike.
    np.testing.assert_array_equal(columns["terminated"], columns["step"] // 2 % 5 == 4)
    assert metrics[-1]["step"][-1] == 1_000


def test_a_window_cut_short_is_recorded_and_teaches_an_on_policy_agent_nothing(tiny):
    made = tiny.made("ppo")
    state, _, _ = tiny.train(made, 992)
    before = tiny.host(state.train.seeds.agent)
    state, columns, metrics = tiny.train(made, 8, state=state)
    assert len(columns["step"]) == 2 * 8
    assert np.isnan(metrics[-1]["loss/critic"]).all()
    after = tiny.host(state.train.seeds.agent)
    assert all(np.array_equal(before[path], after[path]) for path in before)
    assert int(state.train.clock.updates) == 992 // 32 * 4


def test_a_window_cut_short_teaches_a_replay_agent_all_it_holds(tiny):
    made = tiny.made("dqn")
    state, _, _ = tiny.train(made, 1_000)
    assert int(state.train.clock.updates) == 1_000 - 20
    assert int(state.train.clock.t) == 500


def test_no_window_fits_before_a_mark_that_is_near(tiny):
    made = tiny.made("ppo")
    state = made.init(tiny.SEEDS)
    after, window, metrics = made.advance(state, tiny.STILL, 30)
    assert (made.step(after), len(window), metrics) == (0, 0, {})


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_how_many_windows_a_call_runs_changes_nothing(name, tiny):
    made = tiny.made(name)
    state, columns, _ = tiny.train(made, 320)
    other, same_columns, _ = tiny.train(made, 320, chunk=32)
    assert tiny.same(state.train, other.train)
    np.testing.assert_array_equal(columns["action"], same_columns["action"])


@pytest.mark.parametrize("name", AGENTS)
def test_half_a_run_saved_and_gone_on_with_is_the_whole_run(name, tiny, tmp_path):
    made = tiny.made(name)
    whole, columns, _ = tiny.train(made, 640)
    half, first, _ = tiny.train(made, 320)
    made.save(half, tmp_path)
    again = tiny.made(name)
    restored = again.load(tmp_path)
    assert again.step(restored) == 320
    rest, second, _ = tiny.train(again, 320, state=restored)
    assert tiny.same(whole.train, rest.train)
    for column in ("action", "reward", "terminated"):
        joined = np.concatenate(
            [np.r_[first[column][first["seed"] == s], second[column][second["seed"] == s]] for s in tiny.SEEDS]
        )
        np.testing.assert_array_equal(columns[column], joined)


def test_another_programs_checkpoint_is_refused(tiny, tmp_path):
    made = tiny.made("dqn")
    made.save(made.init(tiny.SEEDS), tmp_path)
    with pytest.raises(DataError, match="another program"):
        tiny.made("ppo").load(tmp_path)
    with pytest.raises(DataError, match=r"another program.*not float32\[2, 9\]"):
        tiny.made("dqn", hidden=(9, 8)).load(tmp_path)


def test_a_checkpoint_of_other_seeds_is_refused(tiny, tmp_path):
    made = tiny.made("dqn")
    made.save(made.init(tiny.SEEDS), tmp_path)
    with pytest.raises(DataError, match=r"seeds \[0, 1\], not \[0, 2\]"):
        tiny.made("dqn", seeds=(0, 2)).load(tmp_path)


@pytest.mark.parametrize("name", AGENTS)
def test_an_evaluation_touches_nothing_and_repeats(name, tiny):
    made = tiny.made(name)
    state, _, _ = tiny.train(made, 64)
    before = tiny.host(state.train)
    first = made.evaluate(state, {"level": 2.0}, 3)
    second = made.evaluate(state, {"level": 2.0}, 3)
    after = tiny.host(state.train)
    assert all(before[path].tobytes() == after[path].tobytes() for path in before)
    np.testing.assert_array_equal(first.returns, second.returns)
    assert first.returns.shape == (2, 3)
    np.testing.assert_array_equal(first.returns, 10.0)  # Five steps of level 2.
    np.testing.assert_array_equal(first.lengths, 5)
    for network, features in first.features.items():
        assert features.shape[0] == 2
        np.testing.assert_array_equal(features, second.features[network])


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_evaluating_more_often_does_not_change_the_training(name, tiny):
    made = tiny.made(name)
    quiet, _, _ = tiny.train(made, 192)
    state = made.init(tiny.SEEDS)
    for _ in range(6):
        made.evaluate(state, {"level": 2.0}, 3)
        state, _, _ = tiny.train(made, 32, state=state)
    assert tiny.same(quiet.train, state.train)


@pytest.mark.parametrize("name", AGENTS)
def test_a_seed_trains_beside_others_as_it_does_alone(name, tiny):
    """To the last bits of the products, that is: batched and single products may sum in another order."""
    together = tiny.made(name, seeds=(0, 3))
    state, columns, _ = tiny.train(together, 128)
    alone = tiny.made(name, seeds=(3,))
    lone, lone_columns, _ = tiny.train(alone, 128)
    np.testing.assert_array_equal(columns["action"].shape, (256, *lone_columns["action"].shape[1:]))
    np.testing.assert_allclose(columns["action"][columns["seed"] == 3], lone_columns["action"], atol=1e-4)
    first, second = tiny.host(state.train.seeds), tiny.host(lone.train.seeds)
    for path, leaf in second.items():
        np.testing.assert_allclose(first[path][1], leaf[0], rtol=1e-3, atol=1e-4, err_msg=path)


def test_seeds_differ(tiny):
    state, columns, _ = tiny.train(tiny.made("ppo"), 64)
    first, second = (columns["action"][columns["seed"] == seed] for seed in tiny.SEEDS)
    assert (first != second).any()
    weights = tiny.host(state.train.seeds.agent.params["actor"])
    assert all((leaf[0] != leaf[1]).any() for path, leaf in weights.items() if path.endswith("w"))


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_everything_compiles_once(name, tiny):
    made = tiny.made(name)
    tiny.train(made, 64)
    compiled = learner._advance._cache_size(), learner._init._cache_size()
    made = tiny.made(name)  # A second learner of equal components.
    state = made.init(tiny.SEEDS)
    for _ in range(3):
        state, _, _ = tiny.train(made, 64, state=state)
    state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 192, "oracle"))
    longer = tiny.schedule((192, 1.0), (9_808, -3.0), source="oracle")
    state, columns, _ = tiny.train(made, 64, longer, state)
    assert (columns["reward"] == -3.0).all()
    assert (learner._advance._cache_size(), learner._init._cache_size()) == compiled


def test_a_loaded_state_compiles_nothing(tiny, tmp_path):
    made = tiny.made("dqn")
    state, _, _ = tiny.train(made, 64)
    made.save(state, tmp_path)
    compiled = learner._advance._cache_size()
    tiny.train(made, 64, state=made.load(tmp_path))
    assert learner._advance._cache_size() == compiled


def test_the_world_changes_inside_a_window_and_an_episode_exactly_at_the_step(tiny):
    plan = tiny.schedule((46, 1.0), (954, -2.0))
    _, columns, _ = tiny.train(tiny.made("ppo"), 96, plan)
    np.testing.assert_array_equal(columns["reward"], np.where(columns["step"] < 46, 1.0, -2.0))
    np.testing.assert_array_equal(columns["regime"], (columns["step"] >= 46).astype(int))
    np.testing.assert_array_equal(columns["boundary"], np.isin(columns["step"], [0, 46]))


def test_a_drift_is_felt_at_every_step(tiny):
    plan = tiny.schedule((20, 1.0), (80, 2.0, 4.0))
    _, columns, _ = tiny.train(tiny.made("dqn"), 100, plan)
    step = columns["step"] // 2 * 2  # The copies of a vector step share its task.
    np.testing.assert_allclose(columns["reward"], np.where(step < 20, 1.0, 2.0 + 2.0 * (step - 20) / 80), rtol=1e-6)


def test_an_oracle_cuts_the_window_at_the_boundary(tiny):
    plan = tiny.schedule((46, 1.0), (954, -2.0), source="oracle")
    made = tiny.made("ppo", rollout={"boundary_source": "oracle"})
    state, columns, metrics = tiny.train(made, 46, plan)
    assert made.step(state) == 46
    assert metrics[-1]["step"][-1] == 46
    assert len(columns["step"]) == 2 * 46


def test_exported_weights_are_those_of_the_policy(tiny, tmp_path):
    from perdure.core import arrays

    made = tiny.made("ppo")
    state, _, _ = tiny.train(made, 32)
    description = made.export(state, tmp_path)
    found, meta = arrays.load(tmp_path)
    assert description["agent"] == meta["agent"] == "PPO"
    np.testing.assert_array_equal(found["params/actor/0/w"], state.train.seeds.agent.params["actor"][0]["w"])
    assert found["params/actor/0/w"].shape == (2, 2, 8)


@pytest.mark.parametrize(
    ("name", "world", "rollout", "error", "says"),
    [
        ("dqn", {"continuous": True}, {}, Refused, "DQN acts in discrete worlds; Clockwork is continuous"),
        ("sac", {}, {}, Refused, "SAC acts in continuous worlds; Clockwork is discrete"),
        ("ppo", {}, {"window_steps": 15, "n_envs": 1}, ConfigError, "15 rows.*feed.minibatches = 2"),
        ("ppo", {}, {"n_envs": 0}, ConfigError, "n_envs 0"),
    ],
)
def test_what_does_not_fit_is_refused(name, world, rollout, error, says, tiny):
    with pytest.raises(error, match=says):
        tiny.made(name, world=tiny.Clockwork(**world), rollout=rollout)


def test_every_extension_that_does_not_fit_is_named(tiny):
    from perdure.core.component import component
    from perdure.core.extension import Extension
    from perdure.extensions.resets import ReDo, ShrinkPerturb

    @component
    class Pusher(Extension):
        def actor_loss(self, agent_state, state, batch, ctx):
            return 0.0

    with pytest.raises(Refused) as caught:
        tiny.made("dqn", (ShrinkPerturb(trigger="shift"), Pusher(), ReDo(), ReDo(interval=5)))
    text = str(caught.value)
    assert "extensions[0] (ShrinkPerturb) needs boundary" in text
    assert "extensions[1] (Pusher) needs actor, which DQN" in text
    assert "extensions[3] (ReDo) is there twice" in text


def test_a_metric_that_is_logged_twice_raises(tiny):
    from perdure.core.component import component
    from perdure.core.extension import Extension

    @component
    class Repeats(Extension):
        def critic_loss(self, agent_state, state, batch, ctx):
            return 0.0, {"loss/critic": jax.numpy.zeros(())}

    made = tiny.made("dqn", (Repeats(),))
    with pytest.raises(PerdureError, match="'loss/critic' is logged twice"):
        tiny.train(made, 32)
