"""Conversations of one lane: their state, and whose turn it is."""

import json

import pytest

from perdure.lm.conversation import Conversation, Reader, Recorded, part, plain, restored
from perdure.lm.prompts import PromptBuilder
from perdure.lm.trajectory import Sampled, Stop


class Chat:
    """Messages as their lengths: ids that tell what they stand for."""

    def prompt(self, messages):
        return [len(message["content"]) for message in messages]

    def following(self, text, *, ended):
        return [-1 if ended else -2, len(text)]


def reader(context=12, room=2, append=True, context_turns=2):
    return Reader(Chat(), PromptBuilder(context_turns=context_turns), context, room, append)


def say(conversation, length=1, stop=Stop.END):
    conversation.say(Sampled([7] * length, [-1.5] * length, stop), "said", 2)


def test_a_state_survives_json():
    conversation, other = Conversation(3), Conversation(3)
    for observation in ("a", "bb"):
        conversation.hear(observation, reader(), 4)
        say(conversation)
        conversation.settle(5, 0.1 + 0.2, terminated=observation == "a", truncated=False)
    conversation.take()
    conversation.hear("ccc", reader(), 4)
    other.load(json.loads(json.dumps(conversation.state())))
    for each in (conversation, other):
        say(each, 2, Stop.LENGTH)
    assert other.take() == conversation.take()
    assert other.state() == conversation.state()


def test_the_closing_marker_is_appended_only_where_the_model_left_it_out():
    for stop, marker in ((Stop.END, -1), (Stop.LENGTH, -2)):
        conversation = Conversation(0)
        assert conversation.hear("a", reader(), 0) == 0
        say(conversation, stop=stop)
        assert conversation.hear("bb", reader(), 0) == 2
        assert conversation.trajectory.ids == [1, 7, marker, 2]


def test_a_full_context_renders_a_prompt_with_what_fits():
    conversation = Conversation(0)
    for observation in ("a", "bb", "ccc"):
        conversation.hear(observation, reader(context=9), 0)
        say(conversation)
    assert conversation.hear("dddd", reader(context=9), 0) == 0
    assert conversation.trajectory.ids == [2, 4, 3, 4, 4]
    small = reader(context=6, room=2)
    assert small.opening("dddd", conversation.earlier, 0) == [3, 4, 4]


def test_only_new_turns_are_handed_over():
    conversation = Conversation(0)
    conversation.hear("a", reader(), 0)
    assert conversation.take() == []
    say(conversation)
    (first,) = conversation.take()
    assert first.mask == [False, True]
    conversation.close()
    assert conversation.take() == []


def test_records_come_back_from_json_exactly():
    made = Recorded(lane=2, version=3, terminated=True, group=1)
    made.observe([1, 2])
    made.answer(Sampled([3], [-1 / 3], Stop.JSON), step=9).reward = 0.1 + 0.2
    assert restored(json.loads(json.dumps(plain(made)))) == made
    assert restored(plain(part(made, 3))).turns == []


@pytest.mark.parametrize(("terminated", "truncated"), [(True, False), (False, True), (True, True)])
def test_an_end_is_one_of_two(terminated, truncated):
    conversation = Conversation(0)
    conversation.hear("a", reader(), 0)
    say(conversation)
    conversation.settle(0, 1.0, terminated, truncated)
    (row,) = conversation.take()
    assert row.terminated == terminated
    assert row.truncated == (truncated and not terminated)
    assert conversation.earlier == []
