"""Observations as messages."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError
from perdure.lm.prompts import PromptBuilder, text_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def user(text):
    return {"role": "user", "content": text}


def test_text_is_told_as_it_is():
    assert PromptBuilder().messages("seven\n") == [user("seven\n")]


@given(JSON.filter(lambda value: not isinstance(value, str)))
def test_json_values_are_told_as_json(value):
    assert json.loads(text_of(value)) == value


def test_arrays_within_are_told_as_lists():
    assert text_of({"stock": np.arange(2), "price": np.float64(0.5)}) == '{"stock": [0, 1], "price": 0.5}'


def test_letters_stay_letters():
    assert text_of(["Öl"]) == '["Öl"]'


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", {"a": {1}}])
def test_what_is_no_json_is_refused_by_name(value):
    with pytest.raises(ConfigError, match=r"an observation is a \w+ that has no JSON form"):
        text_of(value)


def test_endless_nesting_is_refused():
    deep = []
    deep.append(deep)
    with pytest.raises(ConfigError, match="no JSON form"):
        text_of(deep)


def test_the_system_opens_and_the_last_exchanges_stand_between():
    told = [("a", "1"), ("b", "2"), ("c", "3")]
    builder = PromptBuilder("Be brief.", context_turns=2)
    assert builder.messages("d", told) == [
        {"role": "system", "content": "Be brief."},
        user("b"),
        {"role": "assistant", "content": "2"},
        user("c"),
        {"role": "assistant", "content": "3"},
        user("d"),
    ]
    assert PromptBuilder(context_turns=0).messages("d", told) == [user("d")]


def test_the_prefix_opens_the_users_turn_of_its_lane():
    builder = PromptBuilder("s", prefix_provider=lambda lane: f"[REGIME {lane}]" if lane else "")
    assert builder.messages("x", lane=2)[-1] == user("[REGIME 2]\nx")
    assert builder.text("x", 2) == "[REGIME 2]\nx"
    assert builder.messages("x", lane=0)[-1] == user("x")
    assert builder.messages("x", lane=2)[0] == {"role": "system", "content": "s"}


def test_a_negative_memory_is_refused():
    with pytest.raises(ConfigError, match=r"context_turns is -1"):
        PromptBuilder(context_turns=-1)
