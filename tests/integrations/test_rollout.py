"""JSON episodes of a group: limits, one seed, what is aborted, what is refused."""

import pytest

pytest.importorskip("trl", reason="the extra trl is not installed")

import torch

from perdure.core.errors import ConfigError, Refused
from perdure.integrations import _episodes, _groups, trl
from perdure.lm.tiny import tiny_model
from perdure.worlds.concierge.world import Concierge


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_model(tokenizer, width=32, layers=1, heads=2, kv_heads=1, context=2048)


@pytest.fixture
def play(model, tokenizer, watched):
    """Keywords of JsonRollout -> outcomes and trajectories of a group of three."""

    def run(rollout=trl.JsonRollout, make=watched.TERSE, seed=1_000_000, goal=None, **options):
        torch.manual_seed(0)
        tasks = trl.ConciergeTasks(watched.TERSE)
        return rollout(**options)(
            model=model,
            tokenizer=tokenizer,
            goal=goal or tasks(seed=seed, stage=1, language_weights={"en": 1.0}),
            episode_seed=seed,
            num_generations=3,
            env_factory=_episodes.Posed(make, 1, {"en": 1.0}),
        )

    return run


@pytest.mark.parametrize("episode", range(9, 81, 9))
def test_answers_and_episodes_keep_their_limits(play, episode):
    _, trajectories = play(max_turn_tokens=9, max_episode_tokens=episode)
    prompt = trajectories[0].turns[0].start
    for each in trajectories:
        assert all(answer.end - answer.start <= 9 for answer in each.turns)
        assert 0 < len(each) - prompt <= episode
        assert each.ids[:prompt] == trajectories[0].ids[:prompt]


def test_answers_differ_and_are_drawn_from_torchs_generator(play):
    options = {"max_turn_tokens": 8, "max_episode_tokens": 8}
    first, again = play(**options)[1], play(**options)[1]
    assert [each.ids for each in first] == [each.ids for each in again]
    assert first[0].ids != first[1].ids


def test_an_episode_that_limits_cut_short_counts_as_aborted(play):
    outcomes, trajectories = play(max_turn_tokens=8, max_episode_tokens=8)
    assert [each.ended for each in outcomes] == ["ABORT"] * 3
    assert all(each.truncated for each in trajectories)
    assert all(0 < each.reward < 0.4 for each in outcomes)


def test_the_oracle_is_paid_in_full(play, watched):
    outcomes, trajectories = play(watched.JsonOracle, max_turn_tokens=200, max_episode_tokens=1000)
    assert [(each.reward, each.success, each.ended) for each in outcomes] == [(1.0, True, "SUBMIT")] * 3
    assert all(each.terminated for each in trajectories)
    rewards = trl.driftcall_reward(prompts=[], completions=trajectories, _meta=[], episodes=outcomes)
    assert rewards == [1.0] * 3


def test_worlds_of_a_group_that_begin_differently_are_refused(play):
    worlds = iter(range(3))

    class Other(Concierge):
        def reset(self, **given):
            said, info = super().reset(**given)
            return f"{said}{next(worlds)}", info

    with pytest.raises(Refused, match="begin differently, so they are no group"):
        play(make=lambda: Other(terse=True), max_turn_tokens=4, max_episode_tokens=8)


def test_a_world_that_asks_for_something_else_than_the_prompt_is_refused(play):
    goal = trl.GoalSpec("airline", "", {}, {}, "en", "A pizza, please.")
    with pytest.raises(ConfigError, match=r"the goal says 'A pizza, please\.'"):
        play(goal=goal)


def test_a_world_that_stage_and_languages_cannot_reach_is_refused(play):
    class Deaf:
        pass

    with pytest.raises(Refused, match=r"makes a Deaf without set_regime\(params\)"):
        play(make=Deaf)


@pytest.mark.parametrize("when", ["reset", "step"])
def test_a_world_that_fails_leaves_the_others_alone(play, monkeypatch, when):
    made = []

    class Broken(Concierge):
        def __init__(self):
            super().__init__(terse=True)
            made.append(self)

    original = getattr(Concierge, when)

    def fail(self, *given, **named):
        if made.index(self) == 1:
            raise OSError("no disk")
        return original(self, *given, **named)

    monkeypatch.setattr(Broken, when, fail, raising=False)
    outcomes, trajectories = play(make=Broken, max_turn_tokens=4, max_episode_tokens=30)
    assert [each.fault for each in outcomes] == [None, "OSError: no disk", None]
    assert [each.reward is None for each in outcomes] == [False, True, False]
    assert bool(trajectories[1].turns) == (when == "step")
    prompt, completion, mask, logprobs = _groups._parts(trajectories[1], True, empty=7)
    assert len(completion) == len(mask) == len(logprobs) > 0
    assert not any(mask)
    assert len(prompt) > 0


def test_a_prompt_without_room_for_an_answer_is_refused(play):
    with pytest.raises(ConfigError, match=r"the prompt has \d+ tokens, an answer may have 2000"):
        play(max_turn_tokens=2000, max_episode_tokens=4000)


def test_turns_of_which_no_two_fit_into_an_episode_are_refused(watched, tmp_path):
    args = watched.settings(tmp_path, max_completion_length=512)
    assert trl.JsonRollout.of(args).sampling.max_new_tokens == 64
    assert trl.JsonRollout.of(args, max_turn_tokens=256).sampling.max_new_tokens == 256
    with pytest.raises(ConfigError, match="max_turn_tokens is 257 and max_completion_length, the whole episode's, 512"):
        trl.JsonRollout.of(args, max_turn_tokens=257)


def test_a_turn_is_no_longer_than_its_episode():
    with pytest.raises(ConfigError, match="max_turn_tokens is 9 and max_episode_tokens 8"):
        trl.JsonRollout(max_turn_tokens=9, max_episode_tokens=8)


@pytest.mark.parametrize(
    ("rows", "size", "sizes"),
    [("aabb", 2, [2, 2]), ("aaaa", 2, [2, 2]), ("abbc", 2, [1, 2, 1]), ("aaab", 4, [3, 1]), ("", 2, [])],
)
def test_rows_are_grouped_as_this_process_has_them(rows, size, sizes):
    given = [{"episode_seed": ord(each), "stage": 1, "language_weights": {"en": 1.0}} for each in rows]
    assert [len(group) for group in _groups.grouped(given, size)] == sizes
    assert [row for group in _groups.grouped(given, size) for row in group] == given
