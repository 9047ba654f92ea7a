"""Orders: words are turned into one JSON object, of a schema that drifts with the regime.

    "12 red bolts for Ada, by Friday"
    ->  {"item": "bolt", "colour": "red", "quantity": 12, "customer": "Ada", "day": "Friday"}

In the cued variant the prompt describes the schema and shows an example; hidden, only the verifier's hints tell.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from perdure.worlds.text import spaces
from perdure.worlds.text.world import TextWorld, Verdict

ITEMS = ("bolt", "nut", "screw", "nail", "hinge", "bracket", "pipe", "valve")
COLOURS = ("red", "green", "blue", "black", "white")
CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
MOST = 20
"""The largest quantity."""
NAMES = (
    ("item", "colour", "quantity", "customer", "day", "urgent"),
    ("product", "color", "count", "client", "due", "rush"),
    ("part", "paint", "pieces", "buyer", "deadline", "express"),
)
"""What `names` chooses: the fields' names, in the order of `Order`."""
NESTED = "delivery"
"""The field that holds customer and day where `nested` is 1."""
WORDS = {
    "colours": (COLOURS, tuple(map(str.upper, COLOURS)), tuple(colour[:3] for colour in COLOURS)),
    "days": (DAYS, tuple(day[:3].upper() for day in DAYS), tuple(range(1, len(DAYS) + 1))),
}
"""What `words` chooses: how colours and days are written."""
ABSENT = object()


class Order(NamedTuple):
    """What is ordered."""

    item: str
    colour: str
    quantity: int
    customer: str
    day: str
    urgent: bool

    def told(self) -> str:
        """The order in words."""
        things = self.item if self.quantity == 1 else f"{self.item}s"
        return f"{self.quantity} {self.colour} {things} for {self.customer}, by {self.day}" + ", urgent" * self.urgent


SHOWN = Order("washer", "blue", 7, "Bo", "Tuesday", True)
"""The order of the prompt's example; its item and customer are never asked for."""


class Orders(TextWorld):
    """An order an episode, up to `turns` tries.

    An answer is the first JSON object of what the model says. Its score is the number of its fields that
    are right over the number of fields that it or the right answer has (nested ones counted alone); 1
    exactly where it equals the right object. Without an object it costs `invalid_cost`. `info["valid"]`: it has the
    fields that the schema requires and no others, each with a value that the schema allows. Parameters of a
    regime: `names` 0-2, `nested` 0-1, `text_numbers` 0-1 (the quantity is text), `words` 0-2 (how colours and
    days are written), `extra` 0-1 (a further required field, whether it is urgent), `cued` 0-1.
    """

    name = "perdure/orders"
    cases = {"names": 2, "nested": 1, "text_numbers": 1, "words": 2, "extra": 1, "cued": 1}  # noqa: RUF012

    def __init__(
        self,
        names: int = 0,
        nested: int = 0,
        text_numbers: int = 0,
        words: int = 0,
        extra: int = 0,
        cued: int = 1,
        turns: int = 3,
        invalid_cost: float = 0.1,
    ):
        params = {"names": names, "nested": nested, "text_numbers": text_numbers, "words": words}
        super().__init__(turns, invalid_cost, {**params, "extra": extra, "cued": cued})

    def question(self, generator: np.random.Generator, params: Mapping[str, int]) -> Order:
        """An order; the same numbers give the same order under every schema."""
        item, colour, customer, day = (
            names[int(generator.integers(len(names)))] for names in (ITEMS, COLOURS, CUSTOMERS, DAYS)
        )
        return Order(item, colour, int(generator.integers(1, MOST + 1)), customer, day, bool(generator.integers(2)))

    def prompt(self, question: Order, params: Mapping[str, int]) -> str:
        """The task, in the cued variant with schema and example."""
        schema = described(params) if params["cued"] else ""
        return f"Write the order as one JSON object.\n{schema}Order: {question.told()}"

    def answer(self, question: Order, params: Mapping[str, int]) -> str:
        """The right object, its fields in the schema's order."""
        return json.dumps(record(question, params))

    def judge(self, question: Order, params: Mapping[str, int], action: Any) -> Verdict:
        """Field by field; the hint says what the schema wants of the fields that are wrong."""
        given = spaces.as_object(action)
        if given is None:
            return Verdict(0.0, False, False, "No JSON object found. Write one JSON object.")
        right, found = flat(record(question, params)), flat(given)
        correct = [path for path in right if same(found.get(path, ABSENT), right[path])]
        score = len(correct) / len({*right, *found})
        if score == 1:
            return Verdict(1.0, True, True, "Right.")
        allowed = values(params)
        valid = found.keys() == right.keys() and all(
            any(same(found[path], choice) for choice in allowed[path]) for path in right
        )
        wrong = [path for path in right if path not in correct]
        return Verdict(score, True, valid, hint({path: allowed[path] for path in wrong}))


def record(order: Order, params: Mapping[str, int]) -> dict[str, Any]:
    """The right object for an order."""
    item, colour, quantity, customer, day, urgent = NAMES[params["names"]]
    colours, days = (WORDS[kind][params["words"]] for kind in ("colours", "days"))
    delivery = {customer: order.customer, day: days[DAYS.index(order.day)]}
    made: dict[str, Any] = {
        item: order.item,
        colour: colours[COLOURS.index(order.colour)],
        quantity: str(order.quantity) if params["text_numbers"] else order.quantity,
    }
    made |= {NESTED: delivery} if params["nested"] else delivery
    return made | ({urgent: order.urgent} if params["extra"] else {})


def described(params: Mapping[str, int]) -> str:
    """The schema in words, and an example of it."""
    _, colour, quantity, _, day, urgent = NAMES[params["names"]]
    colours, days = (WORDS[kind][params["words"]] for kind in ("colours", "days"))
    lines = [f"{colour}: {', '.join(colours)}; {quantity}: {'text' if params['text_numbers'] else 'number'}"]
    lines.append(f"{day}: {days[0]} to {days[-1]}" + f"; {urgent}: true or false" * params["extra"])
    example = json.dumps(record(SHOWN, params))
    return "\n".join([*lines, f"Order: {SHOWN.told()}", f"JSON: {example}", ""])


def values(params: Mapping[str, int]) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """Every field of a schema by its path, and what it may hold: what orders that differ in one thing have there."""
    columns = (ITEMS, COLOURS, range(1, MOST + 1), CUSTOMERS, DAYS, (False, True))
    found: dict[tuple[str, ...], tuple[Any, ...]] = {}
    for name, choices in zip(Order._fields, columns, strict=True):
        orders = [SHOWN._replace(**{name: choice}) for choice in choices]
        for rows in zip(*(flat(record(order, params)).items() for order in orders)):
            if len({json.dumps(choice) for _, choice in rows}) > 1:
                found[rows[0][0]] = tuple(choice for _, choice in rows)
    return found


def hint(wrong: Mapping[tuple[str, ...], tuple[Any, ...]]) -> str:
    """What a schema wants of the fields that are wrong, without their right values."""
    if not wrong:
        return "Right but for fields that are not asked for; remove them."
    told = [f"{' in '.join(reversed(path))}, such as {json.dumps(choices[0])}" for path, choices in wrong.items()]
    return f"Wrong or missing: {'; '.join(told)}. Write the whole object again."


def flat(value: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """The fields of an object by their paths: those of an object within it, and no deeper."""
    found: dict[tuple[str, ...], Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            found |= {(name, key): held for key, held in inner.items()}
        else:
            found[(name,)] = inner
    return found


def same(given: Any, right: Any) -> bool:
    """Equal and of one JSON type: true is not 1, and 7.0 is not 7."""
    return type(given) is type(right) and given == right
