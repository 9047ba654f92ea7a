"""Texts are complete in full and short where they are terse."""

import pytest

from perdure.worlds.concierge import telling
from perdure.worlds.concierge.records import Observation, ToolResult
from perdure.worlds.concierge.world import Concierge

ROWS = [
    {"flight_id": "A", "to": "DEL", "price": 5, "ok": True},
    {"flight_id": "B", "to": "DEL", "price": 7, "ok": False},
]
RESULT = ToolResult("airline.search", "ok", {"results": ROWS, "n": 2}, "v2", 60)


def seen(**changes):
    return Observation(3, 5, "", "hi", None, "", False)._replace(**changes)


def test_full_answers_are_sorted_json_in_any_script():
    told = telling.following(seen(result=RESULT._replace(response={"b": "नमस्ते", "a": 1})), False, {})
    assert told == 'airline.search ok v2 {"a": 1, "b": "नमस्ते"}\nTurns left: 5.'


def test_terse_answers_are_tables_without_what_was_asked_for():
    told = telling.following(seen(result=RESULT), True, {"to": "DEL", "n": 3})
    assert told == "ok v2 n: 2\nprice ok flight_id\n5 yes A\n7 no B\n5 turns left"


def test_errors_and_words_of_the_user_are_told():
    told = telling.following(seen(error="no such tool", user="Haan.", language="hinglish"), False, {})
    assert told == "invalid action: no such tool\nUser (hinglish): Haan.\nTurns left: 5."


def test_signatures_follow_the_contract(data):
    book = data.contract("airline", 2).tools["airline.book"]
    asked = data.contract("airline", 2, ("airline.pax_required",))
    assert "passenger_count?" in telling.signature(book, data.contract("airline", 2))
    assert "passenger_count," in telling.signature(asked.tools["airline.book"], asked)
    assert telling.signature(book, asked, "native").startswith("airline_book(")


def test_openings_name_tools_time_and_turns():
    world = Concierge({"stage": 1})
    text, _ = world.reset(seed=1)
    assert all(f"{name}(" in text for name in world._running().vendors.tools)
    assert f"Now: {world.task.now}. Turns: 8." in text
    assert text.endswith(world.task.goal.utterance)
    short, _ = Concierge({"stage": 1}, terse=True).reset(seed=1)
    assert len(short) < len(text) / 2


@pytest.mark.slow
def test_terse_errands_fit_into_1024_tokens_of_a_small_vocabulary():
    tokenizers = pytest.importorskip("tokenizers")
    world = Concierge({"stage": 1}, terse=True)
    chats = {
        stage: [chat.messages for chat in world.demonstrations(150, seed=0, params={"stage": stage})]
        for stage in (1, 2, 3)
    }
    texts = [message["content"] for each in chats.values() for messages in each[:100] for message in messages]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2048, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    lengths = [
        sum(len(tokenizer.encode(message["content"])) + 5 for message in messages)
        for each in chats.values()
        for messages in each[100:]
    ]
    assert max(lengths) <= 1024
