"""`write_report`: runs in, one self-contained HTML page out."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perdure.core.errors import DataError, MissingExtra
from perdure.metrics import matrix
from perdure.metrics.summary import Summary, summarise
from perdure.report import (
    conversations,
    definitions,
    facts,
    figures,
    forest,
    measures,
    sections,
    svg,
    tables,
    theme,
    told,
    training,
    verdicts,
)
from perdure.report.sections import Arm, Section
from perdure.report.svg import Safe, element

MOST_SCHEDULES = 4
"""Schedules told in the lead; the sections show all."""


class Block(NamedTuple):
    """One part of the page under a heading."""

    anchor: str
    short: str
    """Its name in the list of contents."""
    title: str
    parts: tuple[Safe, ...]


def write_report(runs: Sequence[Any], destination: Path, title: str | None = None) -> Path:
    """Write the report of `runs` (harness.runs.Run, one or many) to `destination` and return its path.

    The page needs no network and no script, follows the reader's light or dark theme, and is the
    same bytes for the same runs. Raises DataError for no runs, or two that hold the same arm, task
    and seed, and MissingExtra where jinja2 is absent. Example:

        write_report([load_run(path) for path in find_runs(Path("runs"))], Path("report.html"))
    """
    destination = Path(destination)
    # A lone surrogate in somebody's run id must not cost the report.
    page = render(runs, title).encode("utf-8", "replace")
    partial = destination.with_name(f".{destination.name}.part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(page)
        return partial.replace(destination)
    except OSError as error:
        raise DataError(
            f"the report {destination} cannot be written ({error.strerror}); choose another place"
        ) from error


def render(runs: Sequence[Any], title: str | None = None) -> str:
    """The page of `write_report` as text."""
    if not runs:
        raise DataError("a report needs at least one run; there are none")
    sections.check_distinct(runs)
    streams = [stream for run in runs for stream in run.streams]
    summary = summarise(streams, [row for run in runs for row in run.evaluations])
    slots = _slots(streams, summary)
    drawn = sections.sections(runs, slots)
    blocks = [block for block in _blocks(runs, summary, drawn, slots) if block.parts]
    return _template().render(
        title=title or _title(runs, drawn),
        lead=_lead(runs, drawn),
        style=Safe(theme.style_sheet()),
        verdicts=verdicts.verdicts(summary, list(dict.fromkeys(section.task for section in drawn))),
        cautions=[*facts.cautions(runs), *summary.notes],
        blocks=blocks,
        closing=_closing(runs),
    )


def _blocks(
    runs: Sequence[Any], summary: Summary, drawn: Sequence[Section], slots: dict[tuple[str, str], int]
) -> list[Block]:
    return [
        Block("score", "Score", "Score over time", _figures(drawn, figures.score)),
        Block("metrics", "Six metrics", "The six metrics", _metric_parts(summary, drawn, slots)),
        Block("frozen", "Frozen policy", "What the frozen policy can still do", _frozen_parts(summary, drawn, slots)),
        Block("recovery", "Recovery", "Recovery after each shift", _figures(drawn, figures.recovery)),
        Block("told", "What the world says", "What the world says of the episodes", _told_parts(drawn)),
        Block("answers", "Answers", "What the policy said", _answers(drawn)),
        Block("plasticity", "Plasticity", "Can the networks still learn?", _figures(drawn, figures.plasticity)),
        Block("training", "Training", "What the learners measured", _training_parts(drawn)),
        Block("runs", "Runs", "What was run", _run_parts(runs)),
        Block("definitions", "Definitions", "How each number is defined", (_definitions(),)),
        Block("documents", "Documents", "The resolved documents", tuple(facts.documents(runs))),
    ]


def _figures(drawn: Sequence[Section], draw: Any) -> tuple[Safe, ...]:
    parts = []
    for section in drawn:
        figure = draw(section)
        if figure is not None:
            parts += [*_heading(section, drawn), figures.figure_html(figure, section)]
    return tuple(parts)


def _told_parts(drawn: Sequence[Section]) -> tuple[Safe, ...]:
    parts = list(_figures(drawn, told.figure))
    for section in drawn:
        found = told.breakdowns(section)
        parts += [*_heading(section, drawn), *found] if found else []
    return tuple(parts)


def _answers(drawn: Sequence[Section]) -> tuple[Safe, ...]:
    parts = []
    for section in drawn:
        found = conversations.conversations(section)
        parts += [*_heading(section, drawn), *found] if found else []
    note = "The first episodes of the frozen policy's evaluations, greedy, before training and after."
    return (element("p", note, class_="note"), *parts) if parts else ()


def _training_parts(drawn: Sequence[Section]) -> tuple[Safe, ...]:
    parts = _figures(drawn, training.training)
    return (element("details", element("summary", "Curves of the updates' metrics"), *parts),) if parts else ()


def _metric_parts(summary: Summary, drawn: Sequence[Section], slots: dict[tuple[str, str], int]) -> tuple[Safe, ...]:
    if not summary.groups:
        return ()
    parts = []
    tasks = list(dict.fromkeys(section.task for section in drawn))
    for task in tasks:
        parts += [element("h3", task)] if len(tasks) > 1 else []
        parts.append(forest.forest(summary, task, measures.SIX, slots))
        caption = f"From the training stream, {task}"
        parts.append(measures.metric_table(summary, task, measures.SIX, slots, caption))
    return (*parts, measures.reading_note(summary))


def _frozen_parts(summary: Summary, drawn: Sequence[Section], slots: dict[tuple[str, str], int]) -> tuple[Safe, ...]:
    parts = list(_figures(drawn, figures.evaluations))
    for section in drawn:
        maps = [_heat_map(arm, section) for arm in section.arms if arm.evaluations]
        if maps:
            parts.append(element("h3", _after("Evaluation matrix", section, drawn)))
            parts.append(tables.heat_maps(maps, "mean return of evaluation episodes"))
            parts.append(
                element("p", "Outlined: the configuration trained just before. Means over seeds.", class_="note")
            )
    for task in dict.fromkeys(section.task for section in drawn if any(arm.evaluations for arm in section.arms)):
        parts.append(
            measures.metric_table(summary, task, measures.FROZEN, slots, f"From the evaluation matrix, {task}")
        )
    return tuple(parts)


def _heat_map(arm: Arm, section: Section) -> tables.HeatMap:
    found = [
        matrix.evaluation_matrix([row for row in arm.evaluations if row.seed == stream.seed], section.segments)
        for stream in arm.streams
    ]
    columns = tuple(dict.fromkeys(name for one in found for name in one.regimes))
    cells = np.full((len(found), len(section.segments) + 1, len(columns)), np.nan)
    for i, one in enumerate(found):
        cells[i][:, [columns.index(name) for name in one.regimes]] = one.values
    known = np.isfinite(cells)
    total = np.where(known, cells, 0.0).sum(axis=0)
    values = np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)
    first = found[0]
    labels = ("before training", *(f"after {label}" for label in first.row_labels[1:]))
    trained = np.array([[bool(origin) and origin == name for name in columns] for origin in first.origins])
    return tables.HeatMap(arm.label, arm.slot, labels, columns, values, trained)


def _run_parts(runs: Sequence[Any]) -> tuple[Safe, ...]:
    differing = facts.difference_table(runs)
    return (facts.run_table(runs), *([differing] if differing else []), facts.event_table(runs))


def _definitions() -> Safe:
    entries = [*definitions.SIX.values(), *definitions.OTHERS]
    terms = [part for name, text in entries for part in (element("dt", name), element("dd", text))]
    return element("details", element("summary", "Definitions and constants"), element("dl", *terms))


def _heading(section: Section, drawn: Sequence[Section]) -> list[Safe]:
    return [element("h3", section.title)] if len(drawn) > 1 else []


def _after(text: str, section: Section, drawn: Sequence[Section]) -> str:
    return f"{text}, {section.title}" if len(drawn) > 1 else text


def _slots(streams: Sequence[Any], summary: Summary) -> dict[tuple[str, str], int]:
    order = sections.arm_order(streams)
    crowded = {task for task, _ in order if sum(other == task for other, _ in order) > theme.LINES}
    ranks = {
        (task, group.algorithm_id): place
        for task in crowded
        for place, group in enumerate(verdicts.ranked([g for g in summary.groups if g.task == task], "reward"))
    }
    return sections.colour_slots(sorted(order, key=lambda arm: ranks.get(arm, len(order) if arm[0] in crowded else -1)))


def _title(runs: Sequence[Any], drawn: Sequence[Section]) -> str:
    tasks = list(dict.fromkeys(section.task for section in drawn))
    arms = list(dict.fromkeys(arm.label for section in drawn for arm in section.arms))
    if not drawn:
        return f"{len(runs)} run{'' if len(runs) == 1 else 's'} without a recorded step"
    what = (
        arms[0]
        if len(arms) == 1
        else f"{', '.join(arms[:-1])} and {arms[-1]}"
        if len(arms) <= 4
        else f"{len(arms)} arms"
    )
    return f"{what} on {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}"


def _lead(runs: Sequence[Any], drawn: Sequence[Section]) -> str:
    told: dict[str, list[str]] = {}
    for section in drawn:
        counts = {len(arm.streams) for arm in section.arms}
        seeds = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        length = section.segments[-1].end - section.segments[0].start
        facts_of = f"{svg.steps(length)} steps, {seeds} seed{'' if counts == {1} else 's'} an arm."
        told.setdefault(f"{section.schedule}. {facts_of}", []).append(section.task)
    sentences = [f"{', '.join(dict.fromkeys(tasks))}: {text}" for text, tasks in list(told.items())[:MOST_SCHEDULES]]
    if len(told) > MOST_SCHEDULES:
        sentences.append(f"And {len(told) - MOST_SCHEDULES} further schedules.")
    sources = list(dict.fromkeys(str(run.meta["boundary_source"]) for run in runs if run.meta.get("boundary_source")))
    if sources:
        sentences.append(f"What the algorithms were told of the shifts (boundary source): {', '.join(sources)}.")
    return " ".join(sentences)


def _closing(runs: Sequence[Any]) -> str:
    versions = sorted(
        {str(run.meta["versions"]["perdure"]) for run in runs if (run.meta.get("versions") or {}).get("perdure")}
    )
    made = f" Runs made with perdure {', '.join(versions)}." if versions else ""
    return f"Every number on this page is computed from the runs' own records.{made}"


def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("jinja2", "report") from None
    text = resources.files("perdure.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text)
