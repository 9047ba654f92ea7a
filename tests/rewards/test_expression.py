import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError
from perdure.rewards.expression import Expression, parse


def value(text, **values):
    return float(parse(text).compiled(np, {name: np.asarray(x, float) for name, x in values.items()}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x + 2 * y", 7.0),
        ("-(x - y) / 4", 0.5),
        ("x ** 2 - y ** -1", 1 - 1 / 3),
        ("abs(x - y)", 2.0),
        ("max(x, y, 2) + min(x, y)", 4.0),
        ("clip(y, 0, 2)", 2.0),
        ("exp(x) + log(y) + sqrt(y) + tanh(x)", math.e + math.log(3) + math.sqrt(3) + math.tanh(1)),
        ("(x < y) + (x >= y) * 10", 1.0),
        ("(x == 1) - (y != 3)", 1.0),
        ("+x", 1.0),
        ("1e-3 * y", 3e-3),
    ],
)
def test_arithmetic_has_its_usual_value(text, expected):
    names = {"x": 1.0, "y": 3.0}
    assert value(text, **{name: names[name] for name in parse(text).names}) == pytest.approx(expected)


def test_names_are_what_the_text_reads():
    assert parse("speed * 2 - abs(angle) + speed").names == ("angle", "speed")


@pytest.mark.parametrize(
    "text",
    [
        "().__class__",
        "x.__class__.__mro__",
        "x[0]",
        "__import__('os').system('true')",
        "open(x)",
        "abs(x, y=1)",
        "abs(*x)",
        "abs(x, x)",
        "max(x)",
        "(lambda: x)()",
        "[y for y in x]",
        "{x}",
        "x if x else y",
        "x and y",
        "not x",
        "~x",
        "x // 2",
        "x % 2",
        "x @ y",
        "x << 2",
        "1 < x < 2",
        "x is x",
        "x in y",
        "(x := 2)",
        "f'{x}'",
        "'x'",
        "x + True",
        "x + None",
        "x + 1j",
        "x + 1e999",
        "x + 9999999999999999",
        "x ** 9",
        "x ** -9",
        "x ** x",
        "9 ** 9 ** 9 + x",
        "x ** (2 ** 3)",
        "x ** 1e999",
        "abs",
        "abs + x",
        "x; y",
        "x = 1",
        "x +",
        "",
        "   ",
        "x\x00",
        "1 + 1",
        "await x",
        "yield x",
        "...",
    ],
)
def test_anything_but_arithmetic_is_refused(text):
    with pytest.raises(ConfigError, match="text"):
        Expression(text)


@pytest.mark.parametrize(
    "text",
    ["x" + " + x" * 2500, "(" * 5000 + "x" + ")" * 5000, "-" * 10_000 + "x", "9" * 10_000 + " + x"],
)
def test_huge_texts_are_refused_at_once_and_briefly(text):
    began = time.perf_counter()
    with pytest.raises(ConfigError, match="at most 500") as caught:
        Expression(text)
    assert len(str(caught.value)) < 200
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    "text", ["-" * 400 + "x", "(" * 240 + "x" + ")" * 240, "abs(" * 80 + "x" + ")" * 80, "x" + "+x" * 40]
)
def test_deep_nesting_is_refused(text):
    with pytest.raises(ConfigError, match=r"nested more than 30 deep|is not arithmetic"):
        Expression(text)


def test_the_message_says_where():
    with pytest.raises(ConfigError, match=r"^text, character 7: sqr cannot be called; did you mean 'sqrt'\?$"):
        parse("x * 2+sqr(x)")


def test_short_names_stand_for_dotted_keys(info):
    component = Expression("cash - 2 * cost", names={"cash": "ledger.cash"})
    assert component.requires() == ("ledger.cash", "cost")
    _, raw = component.step(np, (), None, info(ledger={"cash": 5.0}, cost=1.0))
    assert raw == 3.0


def test_a_short_name_that_does_not_occur_is_refused():
    with pytest.raises(ConfigError, match=r"names\.cahs does not occur in text; did you mean 'cash'"):
        Expression("cash", names={"cahs": "ledger.cash"})


def test_bounds_hold_the_value(info):
    component = Expression("cost * 10", low=-1.0, high=1.0)
    assert component.bounds() == (-1.0, 1.0)
    assert component.step(np, (), None, info(cost=5.0))[1] == 1.0


OPERATIONS = {
    "({} + {})": lambda a, b: a + b,
    "({} - {})": lambda a, b: a - b,
    "({} * {})": lambda a, b: a * b,
    "min({}, {})": min,
    "max({}, {})": max,
    "({} < {})": lambda a, b: int(a < b),
}


def trees(x):
    """Pairs of a text and its value where the name x stands for the number x."""
    leaves = st.integers(0, 99).map(lambda n: (str(n), n)) | st.just(("x", x))

    def combine(inner):
        chosen = st.tuples(st.sampled_from(list(OPERATIONS)), inner, inner)
        return chosen.map(lambda t: (t[0].format(t[1][0], t[2][0]), OPERATIONS[t[0]](t[1][1], t[2][1])))

    return st.recursive(leaves, combine, max_leaves=8)


@given(data=st.data(), x=st.integers(-50, 50))
def test_random_arithmetic_has_the_value_of_its_parts(data, x):
    text, expected = data.draw(trees(x))
    assert value(f"x + -{text}", x=x) == pytest.approx(x - expected, rel=1e-12)


@given(text=st.text(max_size=80) | st.text(alphabet="xy0123456789+-*/()<>=., abcsqrtminelogp", max_size=80))
def test_any_text_is_either_compiled_or_refused(text):
    try:
        parsed = parse(text)
    except ConfigError:
        return
    assert parsed.names
