"""Where the action begins in an answer's tokens; 7 opens JSON, 8 opens a thought, 9 closes one."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError
from perdure.lm.parsing import first_object_span
from perdure.lm.token_slice import ActionTokens, action_token_start

MARKS = {"json_open_ids": (7,), "think_open_id": 8, "think_close_id": 9}


@pytest.mark.parametrize(
    ("ids", "mode", "expected"),
    [
        ([1, 7, 2], "qwen_think", (1, False)),
        ([1, 7, 2, 7, 3], "qwen_think", (3, False)),  # The trap of nested objects.
        ([1, 7, 2, 7, 3], "first_json", (1, False)),
        ([1, 2, 3], "qwen_think", (0, False)),
        ([1, 2, 3], "first_json", (0, False)),
        ([8, 1, 7], "qwen_think", (0, True)),
        ([1, 9, 7], "qwen_think", (0, True)),
        ([1, 8, 7], "qwen_think", (2, False)),  # A thought that begins later is none.
        ([8, 1, 7], "first_json", (0, True)),
        ([1, 7, 9], "all", (0, False)),
        ([], "qwen_think", (0, False)),
        ([], "first_json", (0, False)),
    ],
)
def test_each_mode_cuts_where_it_says(ids, mode, expected):
    assert action_token_start(ids, mode=mode, **MARKS) == expected


def test_the_defaults_know_no_marks():
    assert action_token_start([8, 7, 9]) == (0, False)
    assert action_token_start([1, 7, 7], json_open_ids={7}) == (2, False)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["so ", "{", '"a"', ":{", '"b"', ":1", "}}"], 1),
        (["{ no", " ", '{"a":', "1}"], 0),  # The first brace never closes as an object, and hides the second.
        (["no {x}", ' {"a', '":1}'], 1),
        (["x", 'y{"a":1}'], 1),
        (["a", "b"], 0),
    ],
)
def test_outermost_json_cuts_at_the_object_that_is_parsed(pieces, expected):
    ids = list(range(len(pieces)))
    assert action_token_start(ids, mode=ActionTokens.OUTERMOST_JSON, pieces=pieces) == (expected, False)


@given(st.lists(st.sampled_from(["{", "}", '"a"', ":", "1", "x", ',"b":', '{"c":2}', ""]), max_size=12))
def test_outermost_json_keeps_the_whole_object(pieces):
    start, _ = action_token_start(range(len(pieces)), mode="outermost_json", pieces=pieces)
    span = first_object_span("".join(pieces))
    ends = list(itertools.accumulate(map(len, pieces)))
    if span is None:
        assert start == 0
    else:
        assert ends[start] > span[0]
        assert start == 0 or ends[start - 1] <= span[0]


@given(st.lists(st.integers(0, 9), max_size=20), st.sampled_from(["qwen_think", "first_json", "all"]))
def test_the_start_lies_in_the_answer_and_opens_json_or_is_its_beginning(ids, mode):
    start, thinks = action_token_start(ids, mode=mode, **MARKS)
    assert start == 0 or ids[start] == 7
    if thinks:
        assert start == 0
        assert 9 in ids or ids[0] == 8


def test_unusable_arguments_are_refused():
    with pytest.raises(ConfigError, match=r"action_tokens is 'last'; it must be one of qwen_think"):
        action_token_start([1], mode="last")
    with pytest.raises(ConfigError, match=r"no pieces for 2 tokens; give the text of each"):
        action_token_start([1, 2], mode="outermost_json")
    with pytest.raises(ConfigError, match=r"1 pieces for 2 tokens"):
        action_token_start([1, 2], mode="outermost_json", pieces=["a"])
