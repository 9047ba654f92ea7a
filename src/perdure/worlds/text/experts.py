"""Scripted experts of the text worlds: they answer from what a prompt says, else from their fields.

Each is called with an observation and returns the right answer of a question that is open, without seeing
the world. An expert of a hidden regime is one made with that regime's parameters.
"""

import itertools
import re

from perdure.core.component import component
from perdure.core.errors import DataError
from perdure.worlds.text import arithmetic, orders


@component
class ArithmeticExpert:
    """Reads the rule and the form off a cued prompt; of a hidden one it goes by its fields."""

    operator: int = 0
    """The rule of a hidden prompt (see arithmetic.OPERATORS)."""
    format: int = 0
    """The form of its answer (see arithmetic.FORMATS)."""

    def __call__(self, observation: str) -> str:
        """Raises DataError for what is no question of the world."""
        found = re.fullmatch(r"([a-z]+) ([0-9 ]+?)(?: as (.+))?", observation)
        if found is None:
            raise DataError(f"{observation!r} is no question of perdure/arithmetic; give the observation of a reset")
        word, operands, form = found.groups()
        operator, written = self.operator, arithmetic.FORMATS[self.format]
        if form is not None:
            operator, written = [name for name, _ in arithmetic.OPERATORS].index(word), form
        number = arithmetic.value(tuple(int(each) for each in operands.split()), operator)
        return written.replace("N", str(number))


@component
class OrdersExpert:
    """Finds the schema whose description stands in a cued prompt; of a hidden one it goes by its fields."""

    names: int = 0
    nested: int = 0
    text_numbers: int = 0
    words: int = 0
    extra: int = 0

    def __call__(self, observation: str) -> str:
        """Raises DataError for what is no question of the world."""
        told = re.search(r"Order: (\d+) (\w+) (\w+?)s? for (\w+), by (\w+?)(, urgent)?$", observation)
        if told is None:
            raise DataError(f"{observation!r} is no question of perdure/orders; give the observation of a reset")
        quantity, colour, item, customer, day, urgent = told.groups()
        order = orders.Order(item, colour, int(quantity), customer, day, urgent is not None)
        return orders.Orders().answer(order, self._schema(observation))

    def _schema(self, observation: str) -> dict[str, int]:
        if "JSON:" not in observation:
            return {name: getattr(self, name) for name in ("names", "nested", "text_numbers", "words", "extra")}
        cases = {name: range(most + 1) for name, most in orders.Orders.cases.items() if name != "cued"}
        schemas = [dict(zip(cases, choice, strict=True)) for choice in itertools.product(*cases.values())]
        return next(schema for schema in schemas if orders.described(schema) in observation)
