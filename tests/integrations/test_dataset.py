"""Rows of episodes: seeds, order, what is refused."""

import itertools

import pytest

pytest.importorskip("trl", reason="the extra trl is not installed")

from perdure.core.errors import ConfigError
from perdure.integrations import trl
from perdure.worlds.concierge.world import Concierge


def test_the_seed_of_a_step_is_the_stages_base_and_the_step(watched, tokenizer):
    rows = watched.adapter(tokenizer)
    taken = list(itertools.islice(rows, 3))
    assert [row["_meta"]["episode_seed"] for row in taken] == [1_000_000, 1_000_001, 1_000_002]
    assert taken == [rows[0], rows[1], rows[2]]
    assert set(taken[0]) == {"prompt", "_meta"}
    assert set(taken[0]["_meta"]) == {"goal", "episode_seed", "stage", "language_weights"}


def test_a_record_holds_the_rendered_opening(watched, tokenizer):
    record = watched.adapter(tokenizer).peek(5)
    assert isinstance(record, trl.AdapterRecord)
    assert isinstance(record.goal, trl.GoalSpec)
    assert record.prompt == trl.render_initial_prompt(tokenizer, record.goal)
    system, user = record.prompt.split("<|im_end|>")[:2]
    assert trl.PINNED_SYSTEM_PROMPT in system
    assert user.endswith(record.goal.seed_utterance)
    assert record.prompt.endswith("<|im_start|>assistant\n")
    assert (record.stage, record.episode_seed) == (1, 1_000_005)
    with pytest.raises(AttributeError):
        record.stage = 2


def test_a_goal_without_words_has_an_empty_opening(tokenizer):
    assert "<|im_start|>user\n<|im_end|>" in trl.render_initial_prompt(tokenizer, object())


def test_the_goal_is_what_the_world_wants(watched, tokenizer):
    goal = watched.adapter(tokenizer).peek(0).goal
    world = Concierge({"stage": 1, "language_en": 0.5, "language_hinglish": 0.5}, terse=True)
    world.reset(options={"task": {"seed": 1_000_000}})
    assert goal.seed_utterance == world.task.goal.utterance
    assert (goal.domain, goal.language) == (world.task.goal.domain, world.task.goal.language)
    assert goal.constraints == {each.name: each.value for each in world.task.goal.constraints}


def test_a_data_set_begins_where_it_is_told_to(watched, tokenizer):
    rows = watched.adapter(tokenizer, steps=3, start_step=2)
    assert len(rows) == 3
    assert rows.to_dataset()["step"] == [2, 3, 4]
    assert rows.to_dataset()["episode_seed"] == [1_000_002, 1_000_003, 1_000_004]
    assert rows[0]["_meta"]["episode_seed"] == next(iter(rows))["_meta"]["episode_seed"] == 1_000_002
    assert rows.to_dataset(1).to_list() == watched.adapter(tokenizer, steps=5).to_dataset().to_list()[2:3]


def test_rows_end_with_the_steps(watched, tokenizer):
    rows = watched.adapter(tokenizer, steps=2)
    for index in (-1, 2):
        with pytest.raises(IndexError):
            rows[index]
    endless = watched.adapter(tokenizer)
    with pytest.raises(TypeError, match="has no end"):
        len(endless)
    with pytest.raises(ConfigError, match="needs an end"):
        endless.to_dataset()


def test_the_weights_are_a_copy(watched, tokenizer):
    weights = {"en": 1.0}
    rows = watched.adapter(tokenizer, language_weights=weights)
    weights["en"] = 0.0
    assert rows.language_weights == {"en": 1.0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stage": 4}, "stage is 4; it is one of 1, 2, 3"),
        ({"stage_base_seed": -1}, "stage_base_seed is -1"),
        ({"start_step": -1}, "start_step is -1"),
        ({"steps": 0}, "steps is 0; it is a whole number, 1 or more"),
        ({"stage": True}, "stage is True; it is one of 1, 2, 3"),
        ({"stage_base_seed": 1.5}, "stage_base_seed is 1.5; it is a whole number, 0 or more"),
        ({"stage_base_seed": 2**63}, r"seeds are below 2\*\*63"),
        ({"language_weights": {"english": 1.0}}, "language_weights has 'english'"),
        ({"language_weights": {"en": 1.5, "hi": -0.5}}, r"language_weights\['hi'\] is -0.5"),
        ({"language_weights": {"en": 0.5}}, "add up to 0.5; they must add up to 1"),
    ],
)
def test_options_that_cannot_be_used_are_refused(watched, tokenizer, options, said):
    with pytest.raises(ConfigError, match=said):
        watched.adapter(tokenizer, **options)


def test_a_language_that_the_world_does_not_speak_is_refused(watched, tokenizer):
    with pytest.raises(ConfigError, match=r"language_weights .*'hi': 0.5.*terse users speak en and hinglish"):
        watched.adapter(tokenizer, language_weights={"en": 0.5, "hi": 0.5})[0]


def test_goals_of_unknown_worlds_need_a_generator_of_their_own():
    class Other:
        pass

    with pytest.raises(ConfigError, match="env_factory makes a Other, whose goals are unknown; give task_gen"):
        trl.ConciergeTasks(Other)(seed=1, stage=1, language_weights={"en": 1.0})
