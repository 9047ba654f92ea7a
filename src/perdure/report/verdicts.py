"""The report's first sentences: who forgot least and who recovered fastest, said from the numbers."""

from collections.abc import Sequence
from typing import NamedTuple

from perdure.metrics.summary import Aggregate, Comparison, Group, Summary
from perdure.report import svg
from perdure.report.svg import Safe, element

MOST_TASKS = 4
"""Verdicts are given for this many tasks; the tables cover all."""

MOST_NAMED = 4
"""Arms named in one sentence."""


class Question(NamedTuple):
    """A question about arms and the metrics that answer it, the first defined one first."""

    compared: str
    """The question for several arms."""
    alone: str
    """The question for one arm."""
    metric: str
    """The metric that answers it."""
    quantity: str
    """What the value is, as in "a loss of 12"."""


class Verdict(NamedTuple):
    """One question with its answer as markup."""

    question: str
    answer: Safe
    detail: str
    """Intervals, probability of improvement and what was censored or undefined."""


QUESTIONS = (
    Question(
        "Which arm forgot least, judged by its score when a configuration came back?",
        "How much had it forgotten when a configuration came back?",
        "forgetting",
        "loss",
    ),
    Question(
        "Which arm forgot least, judged by its frozen policy?",
        "How much has its final frozen policy forgotten?",
        "matrix_forgetting",
        "loss",
    ),
    Question(
        "Which arm recovered fastest after a shift?",
        "How fast did it recover after a shift?",
        "recovery_time",
        "recovery time",
    ),
    Question("Which arm earned most while training?", "What did it earn while training?", "reward", "reward"),
    Question(
        "Which arm's final policy is best over all configurations?",
        "How good is the final policy over all configurations?",
        "average_performance",
        "mean evaluation return",
    ),
)


def verdicts(summary: Summary, tasks: Sequence[str]) -> list[Verdict]:
    """An answer to each question that the runs can answer, for the first of the tasks in turn."""
    found = []
    for task in tasks[:MOST_TASKS]:
        groups = [group for group in summary.groups if group.task == task]
        for question in QUESTIONS if len(tasks) == 1 else QUESTIONS[:3]:
            verdict = _verdict(question, groups, summary.comparisons)
            if verdict is not None:
                found.append(verdict if len(tasks) == 1 else verdict._replace(question=f"{task}: {verdict.question}"))
    return found


def ranked(groups: Sequence[Group], name: str) -> list[Group]:
    """The groups for which a metric is defined, best first."""
    known = [group for group in groups if name in group.metrics and group.metrics[name].value is not None]
    return sorted(known, key=lambda group: _badness(group.metrics[name]))


def separable(first: str, second: str, task: str, name: str, comparisons: Sequence[Comparison]) -> bool:
    """Whether the interval of the probability that one arm beats the other excludes one half."""
    found = _comparison(first, second, task, name, comparisons)
    return (
        found is not None and found.low is not None and found.high is not None and (found.low > 0.5 or found.high < 0.5)
    )


def _verdict(question: Question, groups: Sequence[Group], comparisons: Sequence[Comparison]) -> Verdict | None:
    name = question.metric
    if not any(name in group.metrics for group in groups):
        return None
    order = ranked(groups, name)
    asked = question.alone if len(groups) == 1 else question.compared
    if not order:
        return Verdict(asked, svg.join(["It cannot be said."]), f"The reason: {_reason(groups, name)}.")
    answer, chance = _answer(order, name, question.quantity, comparisons)
    remarks = [_intervals(order, name), chance, _censoring(order, name), _undefined(groups, order)]
    return Verdict(asked, answer, " ".join(remark for remark in remarks if remark))


def _reason(groups: Sequence[Group], name: str) -> str:
    reasons = [group.metrics[name].reason for group in groups if name in group.metrics]
    return next((reason for reason in reasons if reason), "it was not measured")


def _answer(order: Sequence[Group], name: str, quantity: str, comparisons: Sequence[Comparison]) -> tuple[Safe, str]:
    """The sentence, and how sure the best arm is to beat the next."""
    best, task = order[0], order[0].task
    if len(order) == 1:
        value = _value(best.metrics[name])
        return element("b", f"{best.algorithm_id}: a {quantity} of {value}."), ""
    tied = [g for g in order[1:] if not separable(best.algorithm_id, g.algorithm_id, task, name, comparisons)]
    beaten = [group for group in order[1:] if group not in tied]
    chance = _chance(best, order[1], name, comparisons)
    if not tied:
        value = _value(best.metrics[name])
        return svg.join(
            [element("b", best.algorithm_id), f" with a {quantity} of {value}, against {_listed(beaten, name)}."]
        ), chance
    behind = f" Behind them: {_listed(beaten, name)}." if beaten else ""
    text = f" by {quantity}: {_listed([best, *tied], name)}.{behind}"
    return svg.join([element("b", "Not separable"), text]), chance


def _listed(groups: Sequence[Group], name: str) -> str:
    told = [f"{_value(group.metrics[name])} for {group.algorithm_id}" for group in groups[:MOST_NAMED]]
    if len(groups) > MOST_NAMED:
        told.append(f"{len(groups) - MOST_NAMED} more")
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _value(found: Aggregate) -> str:
    assert found.value is not None
    return f"{svg.number(found.value)} steps" if found.unit == "steps" else svg.number(found.value)


def _intervals(order: Sequence[Group], name: str) -> str:
    """The intervals of the first arms, in the order of the answer."""
    told, within = [], False
    for group in order[:MOST_NAMED]:
        found = group.metrics[name]
        if found.low is not None and found.high is not None:
            within = within or found.interval == "within_run"
            name_of = f"{group.algorithm_id} " if len(order) > 1 else ""
            told.append(f"{name_of}{svg.number(found.low)} to {svg.number(found.high)}")
    if not told:
        return "One seed an arm gives no interval."
    return (
        f"95 % interval{'s' if len(told) > 1 else ''}{' within the single run' if within else ''}: {', '.join(told)}."
    )


def _chance(first: Group, second: Group, name: str, comparisons: Sequence[Comparison]) -> str:
    found = _comparison(first.algorithm_id, second.algorithm_id, first.task, name, comparisons)
    if found is None or found.probability is None:
        return ""
    turned = found.first != first.algorithm_id
    chance = 1 - found.probability if turned else found.probability
    if found.low is None or found.high is None:
        return "With a single seed on a side, their order may be chance."
    if chance == 1:
        return f"Every seed of {first.algorithm_id} beats every seed of {second.algorithm_id}."
    low, high = (1 - found.high, 1 - found.low) if turned else (found.low, found.high)
    names = f"{first.algorithm_id} beats one of {second.algorithm_id}"
    return f"A seed of {names} with probability {chance:.2f} ({low:.2f} to {high:.2f})."


def _censoring(order: Sequence[Group], name: str) -> str:
    told = []
    for group in order:
        metrics = [run.metrics[name] for run in group.runs if name in run.metrics]
        late, total = sum(metric.censored for metric in metrics), sum(metric.n for metric in metrics)
        if late and name == "recovery_time":
            told.append(f"{late} of {total} for {group.algorithm_id}")
    if not told:
        return ""
    shown = ", ".join(told[:MOST_NAMED]) + (" and more" if len(told) > MOST_NAMED else "")
    return f"Recoveries not seen before the segment ended, counted at its length: {shown}."


def _undefined(groups: Sequence[Group], order: Sequence[Group]) -> str:
    missing = [group.algorithm_id for group in groups if group not in order]
    return (
        f"Undefined for {', '.join(missing[:MOST_NAMED])}{' and more' if len(missing) > MOST_NAMED else ''}."
        if missing
        else ""
    )


def _comparison(first: str, second: str, task: str, name: str, comparisons: Sequence[Comparison]) -> Comparison | None:
    wanted = {first, second}
    return next((c for c in comparisons if c.task == task and c.metric == name and {c.first, c.second} == wanted), None)


def _badness(found: Aggregate) -> float:
    assert found.value is not None
    return -found.value if found.higher_is_better else found.value
