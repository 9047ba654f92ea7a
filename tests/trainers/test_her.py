import math

import pytest
import torch

from perdure.core.errors import ConfigError, Refused
from perdure.lm import off_policy
from perdure.lm.batch import TokenBatch
from perdure.lm.extensions.hindsight import Hindsight, HindsightReplay, relabelled
from perdure.lm.hindsight import GoalRelabeler, Remembered
from perdure.trainers.her import HERBackend, HERBuffer


def test_the_reference_adds_first_and_mixes_from_the_second_update_on(letters, stage):
    backend = HERBackend(letters.policy(), preset="reference", replay_size=100)
    assert isinstance(backend.replay, HERBuffer)
    assert not backend.hooks
    window = stage.window(backend, count=6, turns=3, reward=lambda step, action: 0.0)
    batch = backend.batch_from(window)
    assert backend.mix_replay(batch) is batch
    # One episode of degenerate length: the batch has no structure, so that it is one episode, with one success.
    assert [sample.reward for sample in backend.replay] == [0.5]
    backend.updates = 1
    mixed = backend.mix_replay(batch)
    assert len(backend.replay) == 2
    assert len(mixed) == 6 + 2
    assert mixed.episode_lengths is None
    assert mixed.rewards[6:] == [0.5, 0.5]


def test_keys_of_the_reference_reach_its_store(letters):
    backend = HERBackend(
        letters.policy(), preset="reference", replay_size=0, admission_threshold=0.2, success_reward=0.3,
        strategy="future", replay_seed=4,
    )  # fmt: skip
    store = backend.replay
    assert (store.capacity, store.admission_threshold, store.success_reward, store.strategy) == (0, 0.2, 0.3, "future")
    with pytest.raises(ConfigError, match="did you mean"):
        HERBackend(letters.policy(), sucess_reward=0.3)
    with pytest.raises(ConfigError, match="correction is 'some'"):
        HERBackend(letters.policy(), correction="some")
    with pytest.raises(Refused, match="knows no goals"):
        HERBackend(letters.policy(), preset="reference", goal_reward="math:dist", goal_prompt="math:dist")
    with pytest.raises(ConfigError, match="go together"):
        HERBackend(letters.policy(), goal_reward="math:dist")


def test_corrected_replay_is_a_loss_weighted_for_the_policys_change(letters, stage):
    backend = HERBackend(letters.policy(), rows=1, weight=2.0)
    (hook,) = backend.hooks
    assert not backend.replay.enabled
    row = stage.row([1, 2], [3, 4], 0.0, [-2.0, -6.0])
    batch = TokenBatch((row,), episode_lengths=(1,), tails=((),))
    assert hook.batch(backend, batch) is batch
    assert hook.penalty(backend) is None
    hook.batch(backend, TokenBatch((), (), ()))
    again = relabelled(row, 0.5)
    assert again.turns[0].reward == 0.5
    assert row.turns[0].reward == 0.0
    found = off_policy.losses(backend.score(TokenBatch((again,))), [again], gamma=1.0, lam=1.0)
    expected = 2 * (found.policy + 0.5 * found.critic).item()
    assert hook.penalty(backend).item() == pytest.approx(expected, rel=1e-5)
    assert expected != 0


def test_clamping_goes_by_episodes_whatever_others_mixed_in(letters, stage):
    backend = HERBackend(letters.policy())
    (hook,) = backend.hooks
    fresh = tuple(stage.row([1], [2 + number], 0.0) for number in range(4))
    replayed = stage.row([9], [9], 0.9, lane=-2)
    hook.batch(backend, TokenBatch((*fresh, replayed), (2, 2, 1), ((), (), ())))
    assert [(sample.tokens.ids[-1], sample.reward) for sample in hook.buffer] == [(3, 0.5), (5, 0.5)]


def goal_reward(achieved, goal):
    return 1.0 if achieved == goal else -1.0


def goal_prompt(observation, goal):
    return f"{observation} go to {goal}"


def test_goals_that_were_reached_are_asked_for_anew(letters, stage):
    policy = letters.policy()
    config = Hindsight(goals="final", goal_reward="x:y", goal_prompt="x:y", capacity=50)
    hook = HindsightReplay(config, GoalRelabeler(goal_reward, strategy="final"), goal_prompt)
    backend = stage.Plain(policy)
    policy.attach([hook])
    window = stage.window(backend, count=4, turns=2)
    rows = policy.take_generated()
    batch = TokenBatch(tuple(rows), (2, 2), ((), ()))
    hook.batch(backend, batch)
    # Only the step that reached the episode's last outcome passes the threshold of 0: steps 1 and 3.
    assert [sample.reward for sample in hook.buffer] == [1.0, 1.0]
    for sample, step, episode in zip(hook.buffer, (1, 3), rows, strict=True):
        row, turn = sample.tokens, sample.tokens.turns[0]
        asked = goal_prompt(window.transitions[step].observation, step)
        assert row.ids[: turn.start] == policy.reader.opening(asked, (), 0)
        said = episode.turns[1]
        assert row.ids[turn.start :] == episode.ids[said.start : said.end]
        scored = backend.score(TokenBatch((row,))).logprobs_BT[0].tolist()
        assert row.logprobs == pytest.approx(scored, abs=1e-5)
        assert not any(row.mask[: turn.start])
        assert all(row.mask[turn.start :])


def test_steps_beyond_a_window_wait_for_it(letters, stage):
    policy = letters.policy()
    config = Hindsight(goals="final", goal_reward="x:y", goal_prompt="x:y", admission_threshold=-2.0)
    hook = HindsightReplay(config, GoalRelabeler(goal_reward, strategy="final"), goal_prompt)
    backend = stage.Plain(policy)
    policy.attach([hook])
    stage.window(backend, count=4, turns=2)
    first, second = policy.take_generated()
    hook.batch(backend, TokenBatch((first,), (2,), ((),)))
    assert [sample.reward for sample in hook.buffer] == [-1, 1]
    assert len(hook._steps[0]) == 2
    hook.batch(backend, TokenBatch((second,), (2,), ((),)))
    assert [sample.reward for sample in hook.buffer] == [-1, 1, -1, 1]
    assert not hook._steps[0]


def test_without_a_critic_it_is_refused(letters, stage):
    with pytest.raises(Refused, match="hindsight needs a critic"):
        Hindsight().build(None).begin(stage.Plain(letters.policy(), critic=False))


def test_successes_in_hindsight_become_likelier(letters, stage):
    backend = HERBackend(letters.policy(), rows=4, epochs=4, minibatch=8, learning_rate=3e-3)
    (hook,) = backend.hooks
    row = stage.row([65, 66], [67, 68, 69], 0.0)
    chance = lambda: backend.score(TokenBatch((row,))).logprobs_BT.sum().item()
    row.logprobs = [0.0, 0.0, *backend.score(TokenBatch((row,))).logprobs_BT[0, 2:].tolist()]
    hook.buffer.extend([Remembered(row, 1.0)])
    before = chance()
    for number in range(2):
        backend.update(stage.window(backend, start=8 * number, reward=lambda step, action: math.nextafter(-1.0, 0)))
    assert chance() > before + 0.5


@pytest.mark.parametrize("options", [{"preset": "reference"}, {}, {"correction": "none", "strategy": "future"}])
def test_a_resumed_training_is_the_uninterrupted_one(letters, stage, tmp_path, options):
    options = {"epochs": 1, "learning_rate": 1e-3, "rows": 4, **options}
    first = HERBackend(letters.policy(), **options)
    for number in range(2):
        first.update(stage.window(first, start=8 * number))
    first.save_checkpoint(tmp_path)
    second = HERBackend(letters.policy(seed=1), **options)
    second.load_checkpoint(tmp_path)
    for backend in (first, second):
        backend.update(stage.window(backend, start=16))
    for (name, a), b in zip(first.named_parameters().items(), second.named_parameters().values(), strict=True):
        assert torch.equal(a, b), name
