import pytest

from perdure.core.errors import ConfigError
from perdure.harness.spaces import as_json
from perdure.worlds.text import spaces


def test_text_is_read_without_the_space_around_it_and_up_to_a_length():
    assert spaces.as_text(" a b\n") == "a b"
    assert spaces.as_text("x" * spaces.LONGEST) == "x" * spaces.LONGEST
    assert spaces.as_text("x" * (spaces.LONGEST + 1)) is None


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ({"a": [1, None, True]}, '{"a": [1, null, true]}'),
        (7, "7"),
        (None, "null"),
        ({"a": float("inf")}, None),
        ({1}, None),
    ],
)
def test_a_json_value_is_written_out_and_nothing_else_is(action, text):
    assert spaces.as_text(action) == text


def test_values_that_hold_themselves_or_are_too_deep_are_nothing():
    loop: dict = {}
    loop["loop"] = loop
    deep: list = []
    for _ in range(10**5):
        deep = [deep]
    assert spaces.as_text(loop) is None
    assert spaces.as_object(loop) is None
    assert spaces.as_text(deep) is None
    assert spaces.as_object({"a": deep}) is None


def test_an_object_is_the_same_as_a_value_and_in_words():
    assert spaces.as_object({"a": 1}) == spaces.as_object('so {"a": 1}.') == {"a": 1}
    assert spaces.as_object([{"a": 1}]) is None
    assert spaces.as_object("none") is None


def test_any_text_takes_every_script_and_says_what_kind_it_is():
    space = spaces.AnyText(5)
    assert "héé\n☃" in space
    assert "123456" not in space
    assert 7 not in space
    assert "é" not in spaces.text_space()
    assert as_json(space) == {"kind": "text", "min_length": 0, "max_length": 5}


def test_a_case_is_a_whole_number_in_its_range():
    assert [spaces.whole(value, 2, "x") for value in (0, 2.0, True)] == [0, 2, 1]
    for value in (3, -1, 0.5, "1", None, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"^x is .*; it must be a whole number from 0 to 2$"):
            spaces.whole(value, 2, "x")
