"""What an answer is read as: its first JSON object, or its words."""

import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.lm.parsing import first_object_span, parse

FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | FINITE | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"a": 1}', {"a": 1}),
        ('I think {"tool": "ship", "args": {"n": 2}} is best', {"tool": "ship", "args": {"n": 2}}),
        ('{"a": 1} {"b": 2}', {"a": 1}),
        ('{"text": "a } inside \\" { text"}', {"text": 'a } inside " { text'}),
        ("{}", {}),
        ("seven", "seven"),
        ("", ""),
        ("[1, 2]", "[1, 2]"),
        ('{"a": 1', '{"a": 1'),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": -Infinity}', '{"a": -Infinity}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        ("{'a': 1}", "{'a': 1}"),
    ],
)
def test_the_first_whole_strict_object_is_the_action(text, action):
    assert parse(text) == action


def test_an_object_inside_a_refused_one_is_not_taken():
    text = '{"a": 1, "a": {"b": 2}}'
    assert parse(text) == text


def test_objects_up_to_eight_kilobytes_count():
    fits = {"a": "x" * (8192 - len('{"a": ""}'))}
    assert parse(json.dumps(fits)) == fits
    longer = json.dumps({"a": "x" * (8193 - len('{"a": ""}'))})
    assert parse(longer) == longer


@given(PLAIN.filter(lambda value: isinstance(value, dict)), st.text(alphabet="abc \n:,]", max_size=20))
def test_whatever_stands_around_an_object_it_is_found_where_it_stands(value, around):
    told = json.dumps(value)
    text = around + told + around
    assert parse(text) == value
    assert first_object_span(text) == (len(around), len(around) + len(told))


@given(st.text(max_size=200) | st.text(alphabet='{}[]":,\\0aeN-+. \ud800\n', max_size=400))
def test_any_text_is_read_without_an_error(text):
    found, span = parse(text), first_object_span(text)
    if span is None:
        assert found == text
    else:
        assert found == json.loads(text[slice(*span)])


@pytest.mark.parametrize(
    "text",
    [
        "{" * 10_000_000,
        "[" * 10_000_000,
        '{"a":' * 2_000_000,
        '{"' + "x" * 10_000_000,
        '"' * 10_000_000,
        "\\" * 10_000_000,
        "{}" * 3 + "{" * 5_000_000 + "}" * 5_000_000,
        '{"a": ' + "9" * 5000 + "}",
        '{"\ud800": "\udfff"}',
        "\x00{\x00}",
    ],
    ids=lambda text: text[:8].encode("unicode_escape").decode(),
)
def test_hostile_text_takes_no_time(text):
    began = time.process_time()
    parse(text)
    first_object_span(text)
    assert time.process_time() - began < 1


def test_nothing_of_torch_is_needed():
    modules = ("perdure.lm.parsing", "perdure.lm.token_slice", "perdure.lm.prompts", "perdure.lm.preset")
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
