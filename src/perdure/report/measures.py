"""The tables of metrics: a row an arm, a column a metric, with intervals, censoring and reasons."""

from collections.abc import Mapping, Sequence

from perdure.metrics.summary import Aggregate, Comparison, Group, Summary
from perdure.report import definitions, panels, svg, tables, verdicts
from perdure.report.svg import Safe, element

NAMES = {
    "average_performance": "Average return",
    "matrix_forgetting": "Forgetting",
    "backward_transfer": "Backward transfer",
    "cora_forgetting": "Isolated forgetting",
    "cora_transfer": "Zero-shot transfer",
    "performance_maintenance": "Maintenance",
    "recovery_slope": "Recovery slope",
    **{name: heading for name, (heading, _) in definitions.SIX.items()},
}

SIX = tuple(definitions.SIX)
FROZEN = tuple(name for name in NAMES if name not in SIX and name != "recovery_slope")


def metric_table(
    summary: Summary, task: str, names: Sequence[str], slots: Mapping[tuple[str, str], int], caption: str
) -> Safe:
    """The table of some metrics for one task, with a footnote for each reason why a value is undefined."""
    groups = [group for group in summary.groups if group.task == task]
    shown = [name for name in names if any(name in group.metrics for group in groups)]
    head = [element("th", "arm", scope="col"), *(_heading(name, groups) for name in shown)]
    reasons: dict[str, int] = {}
    rows = []
    for group in groups:
        arm = element(
            "th", panels.key(slots.get((task, group.algorithm_id))), " ", group.algorithm_id, _seeds(group), scope="row"
        )
        cells = [_cell(group, name, groups, summary.comparisons, reasons) for name in shown]
        rows.append(element("tr", arm, *cells))
    body = element("thead", element("tr", *head)), element("tbody", *rows)
    parts = [tables.scroll(element("table", element("caption", caption), *body, class_="metrics"))]
    if reasons:
        parts.append(element("ol", *(element("li", reason) for reason in reasons), class_="footnotes"))
    return svg.join(parts)


def reading_note(summary: Summary) -> Safe:
    """How to read the tables: the statistic, the marks, the arrows."""
    found = [metric for group in summary.groups for metric in group.metrics.values() if metric.value is not None]
    kinds = {metric.statistic for metric in found}
    which = {
        frozenset({"iqm"}): "Values are interquartile means over seeds",
        frozenset({"mean"}): "Values are means over seeds",
    }.get(frozenset(kinds), "Values are interquartile means where at least four seeds are defined, else means")
    compared = " Bold: the best value; ≈: not separable from the best." if summary.comparisons else ""
    within = (
        " The intervals of a single seed come from within its run."
        if any(m.interval == "within_run" for m in found)
        else ""
    )
    text = f"{which}, in brackets the 95 % bootstrap interval.{within}{compared} Arrows point to the better side."
    return element("p", text, class_="note")


def heading(name: str, groups: Sequence[Group]) -> str:
    """A metric's name with an arrow to its better side."""
    metric = next(group.metrics[name] for group in groups if name in group.metrics)
    return f"{NAMES.get(name, name)}\u00a0{'↑' if metric.higher_is_better else '↓'}"


def _heading(name: str, groups: Sequence[Group]) -> Safe:
    metric = next(group.metrics[name] for group in groups if name in group.metrics)
    return element("th", heading(name, groups), element("small", metric.unit), scope="col")


def _seeds(group: Group) -> Safe:
    count = len(group.runs)
    return element("small", f"{count} seed{'' if count == 1 else 's'}")


def _cell(
    group: Group, name: str, groups: Sequence[Group], comparisons: Sequence[Comparison], reasons: dict[str, int]
) -> Safe:
    found = group.metrics.get(name)
    if found is None or found.value is None:
        reason = found.reason if found is not None and found.reason else "it was not measured in this run"
        number = reasons.setdefault(reason, len(reasons) + 1)
        return element("td", "undefined", element("sup", str(number)), class_="missing")
    value = svg.number(found.value)
    parts = [_marked(value, group, name, groups, comparisons)]
    if found.low is not None and found.high is not None:
        parts.append(element("small", f"[{svg.number(found.low)}, {svg.number(found.high)}]"))
    parts += [element("small", text) for text in _remarks(group, name, found)]
    return element("td", *parts)


def _marked(value: str, group: Group, name: str, groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    order = verdicts.ranked(groups, name)
    if len(order) < 2:
        return value
    best = order[0]
    if group.metrics[name].value == best.metrics[name].value:
        return element("strong", value)
    apart = verdicts.separable(best.algorithm_id, group.algorithm_id, group.task, name, comparisons)
    return value if apart else f"≈ {value}"


def _remarks(group: Group, name: str, found: Aggregate) -> list[str]:
    told = []
    if found.censored:
        told.append(
            f"{found.censored} of {sum(run.metrics[name].n for run in group.runs if name in run.metrics)} censored"
        )
    if found.n < len(group.runs):
        told.append(f"defined for {found.n} of {len(group.runs)} seeds")
    return told
