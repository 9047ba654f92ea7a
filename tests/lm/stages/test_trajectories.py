"""Trajectory files: what is written comes back; what nobody vouches for is read or named by file and line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import DataError
from perdure.lm.chat import ChatTemplate
from perdure.lm.stages import trajectories
from perdure.lm.stages.trajectories import Record
from perdure.lm.tokens import byte_tokenizer
from perdure.lm.trajectory import Sampled, Stop, Trajectory

CHAT = ChatTemplate(byte_tokenizer())
ASKED = [{"role": "user", "content": "sum 1 2 as N"}, {"role": "assistant", "content": "3"}]
GOOD = {"messages": ASKED}


def record(**changes):
    tokens = Trajectory(terminated=True, version=3)
    tokens.observe([1, 2, 3])
    tokens.answer(Sampled([4, 5], [-0.1, -1 / 3], Stop.END)).reward = 0.25
    known = {"regime": "again", "origin": "sum", "params": {"operator": 0.0}, "seed": 2, "tokenizer": "ab"}
    return Record(**{"messages": ASKED, "trajectory": tokens, "reward": 0.25, "verified": True, **known, **changes})


def tokens(**changes):
    row = {"ids": [1, 2, 3], "mask": [0, 1, 1], "logprobs": [0, -1, -1], "turns": [{"start": 1, "end": 3}]}
    return {**GOOD, **row, **changes}


@pytest.fixture
def lines(tmp_path):
    """Write values (or bytes) as lines of a file."""

    def write(*rows):
        file = tmp_path / "trajectories.jsonl"
        file.write_bytes(b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows))
        return file

    return write


def test_what_is_written_is_read_bit_for_bit(tmp_path):
    file = tmp_path / "t.jsonl"
    trajectories.write(file, [record(), record(verified=None, regime=None, origin=None, params=None)])
    first, second = trajectories.read(file)
    assert first == record(place=f"{file}:1")
    assert (second.regime, second.params, second.verified) == (None, None, None)


def test_a_torn_tail_is_left_out_and_told(lines):
    warnings = []
    file = lines(GOOD, b'{"messages": [{"role": "us')
    assert len(trajectories.read(file, warnings)) == 1
    assert warnings == [f"{file}: the last line is torn and left out"]
    assert len(trajectories.read(lines(GOOD, json.dumps(GOOD).encode()))) == 2, "a whole one without newline counts"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"no json\n", "is no JSON object"),
        (b'{"messages": 1, "messages": 2}\n', "a key is given twice"),
        (b'{"messages": [], "reward": NaN}\n', "NaN is no number"),
        (b"\xff\xfe\n", "in UTF-8"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        ([1], "is no JSON object"),
        ({}, "has no messages"),
        ({"messages": [{"role": "user"}]}, 'messages[0] is no message; give "role" and "content"'),
        (GOOD | {"reward": "1"}, "reward must be a number"),
        (GOOD | {"reward": True}, "reward must be a number"),
        (GOOD | {"verified": 1}, "verified must be true or false"),
        (GOOD | {"seed": -1}, "seed must be a whole number"),
        (GOOD | {"regime": {"params": {}}}, 'regime must be an object with "id"'),
        (tokens(mask=[0, 1]), "mask is no list that fits ids"),
        (tokens(mask=[1, 1, 1]), "a 0 for the first token"),
        (tokens(mask=[0, 1, 2]), "mask holds 0 and 1"),
        (tokens(ids=[1, 2, -3]), "what is no token id"),
        (tokens(ids=[1, 2, 10**30]), "what is no token id"),
        (tokens(logprobs=[0, 0, "x"]), "no finite number"),
        (tokens(turns=[{"start": 2, "end": 2}]), "turns[0] is no turn"),
        (tokens(turns=[{"start": 1, "end": 3}, {"start": 2, "end": 3}]), "turns[1] is no turn"),
        (tokens(turns=[{"start": 1, "end": 3, "stop": "never"}]), "stop (one of end,"),
    ],
)
def test_a_line_that_is_no_trajectory_is_named(lines, row, said):
    file = lines(GOOD, row, GOOD)
    with pytest.raises(DataError) as caught:
        trajectories.read(file)
    assert str(caught.value).startswith(f"{file}:2")
    assert said in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
KEYS = [*GOOD, *trajectories.TOKENS, "reward", "verified", "regime", "seed", "tokenizer", "observations", "version"]


@given(st.one_of(st.binary(max_size=60), st.dictionaries(st.sampled_from(KEYS), JSON), JSON))
def test_any_line_is_read_or_refused(tmp_path_factory, line):
    file = tmp_path_factory.mktemp("hostile") / "t.jsonl"
    content = line if isinstance(line, bytes) else json.dumps({**tokens(), **line} if isinstance(line, dict) else line)
    file.write_bytes((content if isinstance(content, bytes) else content.encode()) + b"\n")
    found, refused = [], ""
    try:
        found = trajectories.read(file)
    except DataError as error:
        refused = str(error)
    assert all(isinstance(each, Record) and each.messages for each in found)
    assert found or not content.strip() or str(file) in refused


def test_messages_are_encoded_as_the_policy_hears_and_says_them():
    asked = [{"role": "system", "content": "be exact"}, *ASKED, {"role": "user", "content": "again"}, ASKED[1]]
    made = trajectories.encoded(Record(asked, reward=0.5), CHAT)
    said = [ord("3"), CHAT.eos_id]
    first = [*CHAT.prompt(asked[:2]), *said]
    assert made.ids == [*first, *CHAT.following("again", ended=True), *said]
    assert [made.ids[turn.start : turn.end] for turn in made.turns] == [said, said]
    assert [token for token, own in zip(made.ids, made.mask, strict=True) if own] == said * 2
    assert made.total == 0.5


def test_messages_without_an_answer_are_refused():
    with pytest.raises(DataError, match="no message is the assistant's"):
        trajectories.encoded(Record(ASKED[:1]), CHAT)
    with pytest.raises(DataError, match="2 messages stand before the answer"):
        trajectories.encoded(Record([*ASKED, ASKED[0], ASKED[0], ASKED[1]]), CHAT)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        trajectories.read(tmp_path / "none.jsonl")


def test_episodes_are_made_once(tmp_path):
    file, made = tmp_path / "r.jsonl", []
    for _ in range(2):
        found = trajectories.kept(file, lambda: made.append(1) or [record()])
        assert found == [record(place=f"{file}:1")]
    assert made == [1]
