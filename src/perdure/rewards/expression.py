"""A reward written as arithmetic over info values, such as "0.1 * speed - abs(angle)".

The text is parsed with `ast` and every node is checked against a whitelist; nothing is evaluated
as Python. Numbers, names, + - * / **, comparisons (1 or 0) and the functions of `FUNCTIONS`.
"""

import ast
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perdure.core.component import component
from perdure.core.errors import ConfigError, nearest
from perdure.rewards.component import Bounds, RewardComponent, check_range, clip
from perdure.rewards.reading import number, read

LONGEST_TEXT = 500
DEEPEST_NESTING = 30
LARGEST_EXPONENT = 8
LARGEST_NUMBER = 1e12

Compiled = Callable[[Any, Mapping[str, Any]], Any]
"""(xp, values by name) -> array."""


class Function(NamedTuple):
    """A function an expression may call."""

    fewest: int
    most: int
    call: Callable[..., Any]
    """(xp, *arrays) -> array."""


FUNCTIONS: Mapping[str, Function] = {
    "abs": Function(1, 1, lambda xp, x: xp.abs(x)),
    "clip": Function(3, 3, lambda xp, x, low, high: xp.minimum(xp.maximum(x, low), high)),
    "exp": Function(1, 1, lambda xp, x: xp.exp(x)),
    "log": Function(1, 1, lambda xp, x: xp.log(x)),
    "max": Function(2, 8, lambda xp, *xs: functools.reduce(xp.maximum, xs)),
    "min": Function(2, 8, lambda xp, *xs: functools.reduce(xp.minimum, xs)),
    "sqrt": Function(1, 1, lambda xp, x: xp.sqrt(x)),
    "tanh": Function(1, 1, lambda xp, x: xp.tanh(x)),
}

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}

_COMPARE: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}


class Parsed(NamedTuple):
    """An expression that has passed every check."""

    names: tuple[str, ...]
    """The names it reads, sorted."""
    compiled: Compiled


@component
class Expression(RewardComponent):
    """Arithmetic over info values, held within the bounds that are given.

    Values out of a function's domain (a division by zero, the log of a negative number) give NaN
    or infinity, which the collector refuses as it refuses any reward that is not finite.
    """

    text: str
    names: dict[str, str] | None = None
    """Short name -> info key, for keys that are no plain name (`{cash: ledger.cash}`)."""
    low: float | None = None
    high: float | None = None

    def __post_init__(self):
        check_range(self.low, self.high)
        known = parse(self.text).names
        for name in self.names or {}:
            if name not in known:
                raise ConfigError(f"names.{name} does not occur in text; {nearest(name, known)}")

    def requires(self) -> tuple[str, ...]:
        """The info keys behind the names of the text."""
        return tuple(self._key(name) for name in parse(self.text).names)

    def bounds(self) -> Bounds:
        """(low, high) as given."""
        return self.low, self.high

    def step(self, xp: Any, memory: Any, action: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
        """The value of the text."""
        parsed = parse(self.text)
        values = {name: number(xp, read(info, self._key(name))) for name in parsed.names}
        return memory, clip(xp, parsed.compiled(xp, values), self.low, self.high)

    def _key(self, name: str) -> str:
        return (self.names or {}).get(name, name)


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Parsed:
    """Check and compile an expression; ConfigError saying what is not allowed, and where."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"text has {len(text)} characters; at most {LONGEST_TEXT} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"text {_short(text)} is not arithmetic ({type(error).__name__}); mend it") from None
    names: set[str] = set()
    compiled = _compile(tree.body, names, 0)
    if not names:
        raise ConfigError(f"text {_short(text)} reads no info value; use component constant for a fixed reward")
    return Parsed(tuple(sorted(names)), compiled)


def _compile(node: ast.AST, names: set[str], depth: int) -> Compiled:
    if depth > DEEPEST_NESTING:
        raise ConfigError(f"text is nested more than {DEEPEST_NESTING} deep; split it into several components")
    if isinstance(node, ast.Constant):
        return _constant(node)
    if isinstance(node, ast.Name):
        return _name(node, names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        operand = _compile(node.operand, names, depth + 1)
        return operand if isinstance(node.op, ast.UAdd) else lambda xp, values: -operand(xp, values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(node, names, depth)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _pair(_BINARY[type(node.op)], node.left, node.right, names, depth)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        return _pair(_COMPARE[type(node.ops[0])], node.left, node.comparators[0], names, depth)
    if isinstance(node, ast.Call):
        return _call(node, names, depth)
    raise _refused(node, f"{type(node).__name__} is not allowed; write numbers, names, + - * / **, comparisons, calls")


def _constant(node: ast.Constant) -> Compiled:
    value = _plain_number(node)
    if value is None or not abs(value) <= LARGEST_NUMBER:
        raise _refused(node, f"{_short(str(node.value))} is not a number up to {LARGEST_NUMBER:g}")
    return lambda xp, values: number(xp, float(value))


def _plain_number(node: ast.AST) -> int | float | None:
    """The number a node stands for, or None; True and 1j are none."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool) or not isinstance(node.value, int | float):
        return None
    return node.value


def _name(node: ast.Name, names: set[str]) -> Compiled:
    if node.id in FUNCTIONS:
        raise _refused(node, f"{node.id} is a function; call it")
    names.add(node.id)
    return lambda xp, values: values[node.id]


def _power(node: ast.BinOp, names: set[str], depth: int) -> Compiled:
    sign, exponent = 1, node.right
    if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
        sign, exponent = -1, exponent.operand
    value = _plain_number(exponent)
    if value is None or not abs(value) <= LARGEST_EXPONENT:
        raise _refused(node, f"an exponent must be a number within [-{LARGEST_EXPONENT}, {LARGEST_EXPONENT}]")
    base, power = _compile(node.left, names, depth + 1), float(sign * value)
    return lambda xp, values: xp.power(base(xp, values), power)


def _pair(operation: Callable[[Any, Any], Any], left: ast.AST, right: ast.AST, names: set[str], depth: int) -> Compiled:
    first, second = _compile(left, names, depth + 1), _compile(right, names, depth + 1)
    return lambda xp, values: number(xp, operation(first(xp, values), second(xp, values)))


def _call(node: ast.Call, names: set[str], depth: int) -> Compiled:
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
        name = node.func.id if isinstance(node.func, ast.Name) else "this"
        raise _refused(node, f"{name} cannot be called; {nearest(name, FUNCTIONS)}")
    function = FUNCTIONS[node.func.id]
    if node.keywords or not function.fewest <= len(node.args) <= function.most:
        raise _refused(node, f"{node.func.id} takes {function.fewest} to {function.most} plain arguments")
    arguments = [_compile(argument, names, depth + 1) for argument in node.args]
    return lambda xp, values: function.call(xp, *[argument(xp, values) for argument in arguments])


def _refused(node: ast.AST, reason: str) -> ConfigError:
    column = getattr(node, "col_offset", 0)
    return ConfigError(f"text, character {column + 1}: {reason}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
