"""What the policy said: sampled episodes of the evaluations as conversations, before training and after."""

import re
from collections.abc import Sequence

from perdure.core.records import EvaluationRow, Fact
from perdure.report import svg
from perdure.report.sections import Section
from perdure.report.svg import Safe, element

MOST_ARMS = 4
MOST_REGIMES = 6
LONGEST = 2_000
"""Characters of one utterance that are shown."""


def conversations(section: Section) -> list[Safe]:
    """A folded list for each arm and configuration: its first seed's episodes at the first and the last mark."""
    spoken = [arm for arm in section.arms if any(row.samples for row in arm.evaluations)]
    parts = []
    for arm in spoken[:MOST_ARMS]:
        rows = [row for row in arm.evaluations if row.samples and row.seed == arm.evaluations[0].seed]
        regimes = list(dict.fromkeys(row.regime for row in rows))
        parts += [element("h4", arm.label)] if len(section.arms) > 1 else []
        parts += [_regime([row for row in rows if row.regime == regime]) for regime in regimes[:MOST_REGIMES]]
        parts += _left(len(regimes) - MOST_REGIMES, "configuration")
    return [*parts, *_left(len(spoken) - MOST_ARMS, "arm")]


def _regime(rows: Sequence[EvaluationRow]) -> Safe:
    marks = [rows[0]] if len(rows) == 1 else [rows[0], rows[-1]]
    columns = [_mark(row) for row in marks]
    name = f"{rows[0].regime}, seed {rows[0].seed}"
    return element("details", element("summary", name), element("div", *columns, class_="talks"))


def _mark(row: EvaluationRow) -> Safe:
    told = [_episode(row, number) for number in range(len(row.samples))]
    return element("div", element("h5", f"after {row.step:,} steps"), *told)


def _episode(row: EvaluationRow, number: int) -> Safe:
    facts = [_fact(name, values[number]) for name, values in row.facts.items() if values[number] is not None]
    head = element("p", "; ".join([f"score {svg.number(row.returns[number])}", *facts]), class_="note")
    turns = []
    for turn in row.samples[number]:
        turns.append(element("p", _shortened(turn.saw), class_="saw"))
        reward = element("small", f"reward {svg.number(turn.reward)}")
        turns.append(element("p", _shortened(turn.said) or "(nothing)", reward, class_="said"))
    left = row.lengths[number] - len(row.samples[number])
    return element("article", head, *turns, *_left(left, "turn"), class_="talk")


def _fact(name: str, value: Fact) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, list | tuple):
        return f"{name} {', '.join(value) or 'none'}"
    return f"{name} {value if isinstance(value, str) else svg.number(float(value or 0.0))}"


def _left(count: int, what: str) -> list[Safe]:
    if count <= 0:
        return []
    return [element("p", f"{count} further {what}{'' if count == 1 else 's'} not shown.", class_="note")]


def _shortened(text: str) -> str:
    text = re.sub(r"\n{3,}", lambda found: f"\n[{len(found.group())} line breaks]\n", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text) - LONGEST} more characters)"
