"""A goal in the user's words: skeletons, purposes and clauses with places, dates and numbers filled in."""

import datetime
import re
from collections.abc import Mapping
from typing import Any

from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.chance import Draws
from perdure.worlds.concierge.records import Constraint

MOST_UTTERANCE = 280
"""Characters of an utterance at most."""


class Speaker:
    """One way of saying things in a language; `draws` decides variants, numerals and money words."""

    def __init__(
        self, catalogue: Catalogue, domain: str, language: str, now: str, draws: Draws, *, near_days: bool = True
    ):
        self.words, self.spec, self.language = catalogue.words, catalogue.domains[domain], language
        self._today = datetime.date.fromisoformat(now[:10])
        self._money = draws.choice(self.words["money"][language])
        self._native = language in self.words["digits"] and draws.below(3) == 0
        self._draws, self._near = draws, near_days

    def utterance(
        self, template: Mapping[str, Any], slots: Mapping[str, Any], told: list[Constraint], prefer: str
    ) -> str:
        """The user's request: a skeleton with its slots, then the clauses of constraints and preference."""
        skeleton = self._draws.choice(_in(self.spec["skeletons"], self.language))
        filled = skeleton.format(purpose=_in(template["purpose"], self.language), **self._slots(slots))
        clauses = [self.clause(each) for each in told] + [_in(self.spec["phrases"][prefer], self.language)]
        return _sentence(" ".join([filled, *clauses]))

    def clause(self, constraint: Constraint) -> str:
        """A sentence that states one constraint."""
        phrase = self.spec["phrases"][constraint.name]
        return _in(phrase, self.language).format(value=self.value(constraint.name, constraint.value))

    def value(self, name: str, value: Any) -> str:
        """A constraint's value in words."""
        if name == "budget":
            return self.money(value)
        if isinstance(value, str):
            return self.named(value)
        return self.digits(str(value))

    def money(self, rupees: int) -> str:
        """An amount with the Indian comma and a word or sign for rupees."""
        return self._money.format(n=self.digits(grouped(rupees)))

    def digits(self, text: str) -> str:
        """The text with the script's own digits, where this speaker uses them."""
        if not self._native:
            return text
        return text.translate(str.maketrans("0123456789", self.words["digits"][self.language]))

    def named(self, code: str) -> str:
        """What a code (a city, place, part of the day, dish, class) is called."""
        for table in (self.words["city"], self.words["place"], self.words["window"], self.spec.get("names", {})):
            if code in table:
                return _in(table[code], self.language)
        return code

    def date(self, iso: str) -> str:
        """A day of a month; today, tomorrow or this Friday where a near one is said so."""
        day = datetime.date.fromisoformat(iso[:10])
        ahead, days = (day - self._today).days, self.words["days"]
        if self._near and ahead < 2:
            return days["today" if ahead == 0 else "tomorrow"][self.language]
        if self._near and ahead < 7:
            return days["this"][self.language].format(day=self.words["weekdays"][self.language][day.weekday()])
        named = f"{self.digits(str(day.day))} {self.words['months'][self.language][day.month - 1]}"
        return days["on"][self.language].format(date=named)

    def _slots(self, slots: Mapping[str, Any]) -> dict[str, str]:
        said: dict[str, str] = {}
        for name, value in slots.items():
            if name == "items":
                said[name] = ", ".join(f"{self.digits(str(count))} {self.named(dish)}" for dish, count in value)
            elif isinstance(value, list):
                first, second = map(self.date, value)
                said[name] = self.words["days"]["either"][self.language].format(first=first, second=second)
            elif isinstance(value, int):
                phrase = self.spec["phrases"].get(f"{name}_one" if value == 1 else name) or self.spec["phrases"][name]
                said[name] = _in(phrase, self.language).format(n=self.digits(str(value)))
            elif _DATE.match(value):
                said[name] = self.date(value)
                said[f"{name}_time"] = self.digits(value[11:16])
            else:
                said[name] = self.digits(value) if ":" in value else self.named(value)
        return said


def _in(table: Mapping[str, Any], language: str) -> Any:
    """The entry of a language, or the English one where there is none."""
    return table.get(language, table["en"])


def grouped(number: int) -> str:
    """A whole number with Indian commas: 1,23,456."""
    text = str(number)
    head, tail = text[:-3], text[-3:]
    pairs: list[str] = []
    while head:
        head, pairs = head[:-2], [head[-2:], *pairs]
    return ",".join([*pairs, tail])


_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
