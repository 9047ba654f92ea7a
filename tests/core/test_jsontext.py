import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import jsontext

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=4), st.text(st.characters(exclude_characters="{}[]"), max_size=9))
def test_an_object_in_words_is_found_where_it_stands(value, words):
    written = json.dumps(value)
    found = jsontext.first_object(words + written + words)
    assert found == (value, len(words), len(words) + len(written))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "}"} {"b": 1}', {"a": "}"}),
        ('{x} {"a": 1}', {"a": 1}),
        ('{"a": "\\"}"}', {"a": '"}'}),
        ('[{"a": 1}]', {"a": 1}),
        ('{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("{}", {}),
        ('{"a": 1, "a": 2} {"a": 3}', {"a": 3}),
    ],
)
def test_the_first_acceptable_object_counts(text, value):
    found = jsontext.first_object(text)
    assert found is not None
    assert found.value == value
    assert json.loads(text[found.start : found.end]) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        '{"a": {"b": 1}',
        '{"a": 1, "a": 2}',
        '{"o": {"a": 1, "a": 2}}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": "' + "é" * 4100 + '"}',
        "{'a': 1}",
        '{"a": 1,}',
        '{"a": [}]',
    ],
)
def test_what_is_not_acceptable_is_nothing_and_nothing_inside_it_is_taken(text):
    assert jsontext.first_object(text) is None


def test_the_longest_and_deepest_object_are_as_stated():
    longest = json.dumps({"a": "x" * (jsontext.MOST_BYTES - 9)})
    assert len(longest) == jsontext.MOST_BYTES
    assert jsontext.first_object(longest) is not None
    assert jsontext.first_object(longest.replace("x", "xx", 1)) is None
    deep = lambda levels: '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"
    assert jsontext.first_object(deep(jsontext.MOST_DEPTH)) is not None
    assert jsontext.first_object(deep(jsontext.MOST_DEPTH + 1)) is None


@pytest.mark.parametrize("unit", ["{", '{"a":', "[", '"', '{"', "\\", "{}"[::-1], '{"a":1,"a":1}', "\ud800"])
def test_ten_megabytes_take_no_time(unit):
    text = unit * (10**7 // len(unit))
    began = time.process_time()
    assert jsontext.first_object(text) is None or unit == "}{"
    assert time.process_time() - began < 1


@given(
    st.text(st.sampled_from('{}[]",:\\a1 \ud800'), max_size=60), st.text(st.sampled_from('{}[]",:\\a1'), max_size=20)
)
def test_more_text_changes_nothing_that_was_found(text, more):
    found = jsontext.first_object(text)
    if found is not None:
        assert jsontext.first_object(text + more) == found
        assert jsontext.accepted(text[found.start : found.end]) == found.value


@given(st.text())
def test_strict_reading_agrees_with_json_where_both_read(text):
    try:
        value = jsontext.loads(text)
    except ValueError:
        return
    assert json.loads(text) == value


def test_what_is_no_object_is_not_accepted():
    assert jsontext.accepted("[1]") is None
    assert jsontext.accepted("3") is None
    assert jsontext.accepted('{"a": 1} ') == {"a": 1}


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"\uDFFF": 1}', r'["\ude00\ud83d"]', '"\ud800"'])
def test_half_a_surrogate_pair_is_not_exchanged(text):
    assert jsontext.loads(text)
    with pytest.raises(ValueError, match="surrogate"):
        jsontext.exchanged(text)


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_whatever_utf8_carries_is_exchanged_in_either_form(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert jsontext.exchanged(text) == value
