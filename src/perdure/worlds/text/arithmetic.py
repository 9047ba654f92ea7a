"""Arithmetic: small sums whose rule and whose answer's form shift with the regime; a correct answer is exactly known.

"sum 3 4 as <N>"  ->  "<7>"        (cued: the prompt names the rule and the form)
"answer 3 4"      ->  "<7>"        (hidden: only the reward tells)
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from perdure.worlds.text import spaces
from perdure.worlds.text.world import TextWorld, Verdict

OPERATORS: tuple[tuple[str, Callable[[int, int], int]], ...] = (
    ("sum", lambda a, b: a + b),
    ("difference", lambda a, b: abs(a - b)),
    ("larger", max),
    ("smaller", min),
    ("product", lambda a, b: a * b % 10),
)
"""What `operator` chooses: its word, and the rule. The difference has no sign; of a product the last digit counts."""
FORMATS = ("N", "=N", "<N>", "N.", '{"answer": N}')
"""What `format` chooses: how the number N is written."""
TIERS = ((2, 10), (2, 100), (3, 10))
"""What `tier` chooses: how many operands, each below what; three are taken from left to right."""
RIGHT_VALUE = 0.5
"""The score of the right number in another form."""

_FORMS = tuple(re.compile(re.escape(form).replace("N", "(-?[0-9]{1,6})")) for form in FORMATS)


class Arithmetic(TextWorld):
    """One question an episode; `turns` above 1 gives hints and further tries.

    An answer scores 1 if it is exactly right (white space around it does not count; of a text with a JSON object
    the object alone does), RIGHT_VALUE if the number
    is right and its form another of FORMATS, 0 if the number is wrong, and costs `invalid_cost` if it has none
    of these forms. Parameters of a regime: `operator` 0-4, `format` 0-4, `tier` 0-2, `cued` 0 or 1.
    """

    name = "perdure/arithmetic"
    cases = {"operator": len(OPERATORS) - 1, "format": len(FORMATS) - 1, "cued": 1, "tier": len(TIERS) - 1}  # noqa: RUF012

    def __init__(
        self,
        operator: int = 0,
        format: int = 0,
        cued: int = 1,
        tier: int = 0,
        turns: int = 1,
        invalid_cost: float = 0.1,
    ):
        super().__init__(turns, invalid_cost, {"operator": operator, "format": format, "cued": cued, "tier": tier})

    def question(self, generator: np.random.Generator, params: Mapping[str, int]) -> tuple[int, ...]:
        """The operands."""
        count, limit = TIERS[params["tier"]]
        return tuple(int(operand) for operand in generator.integers(limit, size=count))

    def prompt(self, question: tuple[int, ...], params: Mapping[str, int]) -> str:
        """The operands, and in the cued variant the rule before and the form after them."""
        operands = " ".join(map(str, question))
        if not params["cued"]:
            return f"answer {operands}"
        return f"{OPERATORS[params['operator']][0]} {operands} as {FORMATS[params['format']]}"

    def answer(self, question: tuple[int, ...], params: Mapping[str, int]) -> str:
        """The right number in the right form."""
        return FORMATS[params["format"]].replace("N", str(value(question, params["operator"])))

    def judge(self, question: tuple[int, ...], params: Mapping[str, int], action: Any) -> Verdict:
        """Exact comparison with the right number and form."""
        found = spaces.as_object(action)
        said = (spaces.as_text(action) or "") if found is None else json.dumps(found)
        matches = [form.fullmatch(said) for form in _FORMS]
        numbers = [int(match.group(1)) for match in matches if match is not None]
        if not numbers:
            return Verdict(0.0, False, False, "No number in a known form. Try again.")
        right, number, formed = value(question, params["operator"]), numbers[0], matches[params["format"]] is not None
        if said == self.answer(question, params):
            return Verdict(1.0, True, True, "Right.")
        if number == right:
            return Verdict(RIGHT_VALUE, True, formed, "The number is right, its form is not. Try again.")
        return Verdict(0.0, True, formed, f"Too {'low' if number < right else 'high'}. Try again.")


def value(operands: tuple[int, ...], operator: int) -> int:
    """The number that a rule makes of the operands, from left to right."""
    result = operands[0]
    for operand in operands[1:]:
        result = OPERATORS[operator][1](result, operand)
    return result
