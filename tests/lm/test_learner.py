"""Group learners behind the harness's seam: rows, steps, regimes, resume, worlds that cannot be grouped."""

import dataclasses

import numpy as np
import pytest

from perdure.core.errors import ConfigError, DataError, Refused, RunFailed
from perdure.core.records import RegimeSchedule, Segment
from perdure.lm.groups import GroupBackend, GroupTraining
from perdure.lm.hooks import Hooks
from perdure.lm.learner import GroupLearner
from perdure.lm.objectives.table import RECIPES
from perdure.lm.sampling import Sampling
from perdure.lm.step import Optimisation
from perdure.trainers.groups import REINFORCE

TRAINING = GroupTraining(optimisation=Optimisation(learning_rate=3e-3), turns=2)
ONE = RegimeSchedule((Segment("only", "only", 0, 60),))
TWO = RegimeSchedule((Segment("low", "low", 0, 30, {"bias": 0.0}), Segment("high", "high", 30, 60, {"bias": 1.0})))


@pytest.fixture
def learner(letters):
    """`learner(training, groups, size, make_env)`: a GroupLearner of letters, not begun."""

    def make(training=TRAINING, groups=2, size=4, make_env=None):
        make_env = make_env or (lambda lane: letters.Letters())
        return GroupLearner(training, letters.policy, make_env=make_env, groups=groups, group_size=size)

    return make


def trained(learner, schedule, seeds=(0,)):
    """(state, windows, metrics of each) of a whole run."""
    state, windows, metrics = learner.init(seeds), [], []
    while learner.step(state) < schedule.total_steps:
        state, window, found = learner.advance(state, schedule, schedule.total_steps - learner.step(state))
        windows.append(window)
        metrics.append(found)
    return state, windows, metrics


def weights(state):
    return [{name: each.detach().clone() for name, each in arm.backend.named_parameters().items()} for arm in state]


def equal(one, other):
    return all(a[name].equal(b[name]) for a, b in zip(one, other, strict=True) for name in a)


def test_a_window_holds_every_answer_of_an_update_once(learner):
    state, windows, metrics = trained(learner(), ONE)
    steps = np.concatenate([window.columns["step"] for window in windows])
    np.testing.assert_array_equal(steps, np.arange(60))
    assert [len(window) for window in windows] == [16, 16, 16, 12], "the last update goes beyond the end"
    assert metrics[-1]["rollout/overshoot"] == 4
    assert state[0].step == 64
    first = windows[0]
    assert first.columns["lane"].tolist() == [*range(8)] * 2
    assert first.columns["terminated"].tolist() == [False] * 8 + [True] * 8


def test_rows_carry_the_regime_in_which_their_group_began(learner):
    _, windows, _ = trained(learner(), TWO)
    regimes = [set(window.columns["regime"]) for window in windows]
    assert regimes == [{"low"}, {"low"}, {"high"}, {"high"}]
    boundaries = np.concatenate([window.columns["boundary"] for window in windows])
    assert np.flatnonzero(boundaries).tolist() == [0, 32]
    assert windows[1].rewards().max() <= 1 < windows[2].rewards().min() + 1e-9 + 1


def test_the_reward_rises(learner):
    schedule = RegimeSchedule((Segment("only", "only", 0, 3200),))
    _, windows, _ = trained(learner(groups=4, size=8), schedule)
    scores = [window.rewards().mean() for window in windows]
    assert np.mean(scores[-5:]) > np.mean(scores[:5]) + 0.2


def test_seeds_train_as_if_alone(learner):
    together, _, _ = trained(learner(), ONE, (0, 1))
    alone, _, _ = trained(learner(), ONE, (1,))
    assert equal(weights(together[1:]), weights(alone))
    assert not equal(weights(together[:1]), weights(together[1:]))


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(learner, tmp_path):
    training = dataclasses.replace(
        TRAINING,
        objective=dataclasses.replace(RECIPES["grpo"], kl="loss", kl_coefficient=0.05, kl_target=0.01),
        epochs=2,
        minibatches=2,
    )
    whole, _, _ = trained(learner(training), ONE)
    first = learner(training)
    state, _, _ = first.advance(first.init((0,)), ONE, 30)
    first.save(state, tmp_path)
    second = learner(training)
    state = second.load(tmp_path)
    while second.step(state) < 60:
        state, _, _ = second.advance(state, ONE, 60 - second.step(state))
    assert equal(weights(state), weights(whole))
    assert state[0].backend.controller.state_dict() == whole[0].backend.controller.state_dict()


def test_evaluating_changes_nothing_and_repeats_itself(learner):
    made = learner()
    state = made.init((0,))
    one, two = (made.evaluate(state, {"bias": 0.0}, 3) for _ in range(2))
    np.testing.assert_array_equal(one.returns, two.returns)
    biased = made.evaluate(state, {"bias": 1.0}, 3)
    np.testing.assert_allclose(biased.returns, one.returns + 2)
    while made.step(state) < 60:
        state, _, _ = made.advance(state, ONE, 60 - made.step(state))
        made.evaluate(state, None, 2)
    assert equal(weights(state), weights(trained(learner(), ONE)[0]))


def test_a_group_of_one_is_refused_where_episodes_are_compared(learner):
    with pytest.raises(Refused, match="group_size is 1"):
        learner(size=1)
    trained(learner(REINFORCE(turns=2), groups=8, size=1), ONE)


def test_a_constant_reward_leaves_every_weight_as_it_was(learner, letters):
    class Constant(letters.Letters):
        def step(self, action):
            return super().step(action)[0], 0.1 + 0.2, True, False, {}

    made = learner(make_env=lambda lane: Constant())
    before = weights(made.init((0,)))
    state, _, metrics = made.advance(made._arms, ONE, 60)
    assert metrics["advantage/constant_groups"] == 1
    assert equal(before, weights(state))


class Endless:
    """Mixed into a world: it never ends."""

    persistent = True

    def step(self, action):
        seen, reward, _, _, info = super().step(action)
        return seen, reward, False, False, info


def test_a_world_without_common_starts_is_refused_by_name(learner, letters):
    kind = type("Forever", (Endless, letters.Letters), {})
    with pytest.raises(Refused, match="lm/ppo or lm/reinforce"):
        learner(make_env=lambda lane: kind()).init((0,))
    trained(learner(REINFORCE(turns=2), groups=8, size=1, make_env=lambda lane: kind()), ONE)


def test_copies_of_a_living_world_act_and_only_the_first_is_recorded(learner, letters):
    class Forked(Endless, letters.Letters):
        forks = 0

        def fork(self):
            Forked.forks += 1
            copy = Forked()
            copy.turn = self.turn
            return copy

    made = learner(make_env=lambda lane: Forked())
    state, window, _ = made.advance(made.init((0,)), ONE, 60)
    assert Forked.forks == 6
    assert state[0].step == 16
    assert window.columns["lane"].tolist() == [0, 4, 0, 4]
    assert [env.turn for env in state[0].envs] == [2, 2], "the live worlds went on by themselves"


def test_a_critic_is_refused():
    with pytest.raises(ConfigError, match="lm/ppo"):
        GroupTraining(objective=RECIPES["ppo"])


def test_a_fault_is_missing_not_zero(learner, letters):
    made = learner(make_env=lambda lane: letters.Letters(fail_at=2 if lane == 3 else None))
    _, window, metrics = made.advance(made.init((0,)), ONE, 60)
    assert metrics["rollout/faults"] == 1
    assert len(window) == 14
    assert 3 not in window.columns["lane"]


def test_a_group_left_with_one_episode_is_set_aside(learner, letters):
    """Of two groups of two, one loses an episode; what is left of it is recorded, and not trained on."""
    made = learner(size=2, make_env=lambda lane: letters.Letters(fail_at=1 if lane == 0 else None))
    state, window, metrics = made.advance(made.init((0,)), ONE, 60)
    assert metrics["rollout/faults"] == 1
    assert sorted(set(window.columns["lane"])) == [1, 2, 3]
    assert state[0].backend.updates == 1


def test_an_update_without_a_whole_group_says_why(learner, letters):
    made = learner(size=2, make_env=lambda lane: letters.Letters(fail_at=1 if lane % 2 else None))
    with pytest.raises(RunFailed, match="no group of an update had two episodes left"):
        made.advance(made.init((0,)), ONE, 60)


def test_a_failing_evaluation_tells_what_the_world_raised(learner, letters):
    made = learner(make_env=lambda lane: letters.Letters(fail_at=1 if lane == 1 else None))
    with pytest.raises(RunFailed, match=r"1 of 3 episodes of an evaluation failed.*the world broke"):
        made.evaluate(made.init((0,)), None, 3)


def test_a_prompt_longer_than_the_context_is_told_with_both_lengths(learner, letters):
    class Talkative(letters.Letters):
        def reset(self, *, seed=None, options=None):
            return "word " * 50, super().reset(seed=seed)[1]

    made = learner(make_env=lambda lane: Talkative())
    with pytest.raises(RunFailed, match=r"prompt of \d{3} tokens, the model's context is 96"):
        made.advance(made.init((0,)), ONE, 60)


def test_scaling_by_groups_is_refused_where_the_reward_is_a_proper_score(learner, letters):
    class Proper(letters.Letters):
        proper_reward = True

    def begun(training):
        return learner(training, make_env=lambda lane: Proper()).init((0,))

    for name in ("grpo", "maxrl"):
        scaled = dataclasses.replace(TRAINING, objective=RECIPES[name])
        with pytest.raises(Refused, match="recipe: dr_grpo, or allow_improper: true"):
            begun(scaled)
        assert begun(dataclasses.replace(scaled, allow_improper=True))
    batch = dataclasses.replace(RECIPES["grpo"], scale="batch")
    for objective in (RECIPES["dr_grpo"], RECIPES["rloo"], batch):
        assert begun(dataclasses.replace(TRAINING, objective=objective))


def test_a_recipe_stands_for_its_objective():
    assert GroupTraining(recipe="dapo").objective == RECIPES["dapo"]
    for options, named in (
        ({"recipe": "dappo"}, "did you mean 'dapo'"),
        ({"recipe": "ppo"}, "recipe is 'ppo'"),
        ({"recipe": "dapo", "objective": RECIPES["gspo"]}, "keep one"),
    ):
        with pytest.raises(ConfigError, match=named):
            GroupTraining(**options)


def test_two_hooks_of_one_name_are_refused_and_so_is_a_checkpoint_of_others(letters, tmp_path):
    class Named(Hooks):
        def __init__(self, name):
            self.name = name

    with pytest.raises(ConfigError, match="two hooks are called 'a'"):
        GroupBackend(TRAINING, letters.policy(), (Named("a"), Named("a")), 0)
    GroupBackend(TRAINING, letters.policy(), (Named("a"),), 0).save(tmp_path)
    with pytest.raises(DataError, match="saved with hooks"):
        GroupBackend(TRAINING, letters.policy(), (Named("b"),), 0).load(tmp_path)


@pytest.mark.parametrize(
    ("sampling", "named"), [({"top_k": 3}, "top_k"), ({"top_p": 0.9}, "top_p"), ({"greedy": True}, "greedy")]
)
def test_a_distribution_that_ratios_cannot_use_is_refused(letters, sampling, named):
    acting = letters.policy(sampling=Sampling(max_new_tokens=6, **sampling))
    with pytest.raises(Refused, match=f"sampling.{named}"):
        GroupBackend(TRAINING, acting, (), 0)
    if named != "greedy":
        trainer = dataclasses.replace(TRAINING, objective=dataclasses.replace(RECIPES["grpo"], old_logprobs="trainer"))
        GroupBackend(trainer, acting, (), 0)
