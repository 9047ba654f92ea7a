"""What was run: facts, differences between documents, warnings, events and the documents themselves."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.report import svg, tables
from perdure.report.svg import Safe, element

MOST_EVENTS = 60
"""Rows of the event table; what is left out is counted."""

MOST_DIFFERENCES = 40


def run_table(runs: Sequence[Any]) -> Safe:
    """One row a run: seeds, steps, status, boundary source, wall time, versions."""
    rows = []
    for run in runs:
        meta = run.meta
        rows.append(
            [
                (_text(meta.get("run_id") or run.path.name), _text(run.path)),
                _seeds([stream.seed for stream in run.streams]),
                (_progress(meta, run), _text(meta.get("status", "not recorded"))),
                _text(meta.get("boundary_source", "not recorded")),
                _duration(meta.get("wall_seconds")),
                (_versions(meta.get("versions")), _text(meta.get("created", ""))),
            ]
        )
    header = ["run", "seeds", "steps of each seed", "boundary source", "wall time", "versions"]
    return tables.text_table(header, rows, caption="Runs")


def cautions(runs: Sequence[Any]) -> list[str]:
    """One sentence for each run that did not finish, failed, or came with warnings of its reader."""
    told = []
    for run in runs:
        name = run.meta.get("run_id") or run.path.name
        status = run.meta.get("status")
        if run.meta.get("error"):
            told.append(f"{name} failed: {run.meta['error']}")
        elif status in ("running", "interrupted", "failed"):
            told.append(
                f"{name} is {status} at {_progress(run.meta, run)} steps; every number covers only what was recorded."
            )
        told += [f"{name}: {warning}" for warning in run.warnings]
        raised = [event for event in run.events if event.get("kind") == "warning"]
        told += [f"{name}, step {event.get('step', '?')}: {event.get('message', '')}" for event in raised]
    return told


def event_table(runs: Sequence[Any]) -> Safe:
    """Alarms, shifts told, checkpoints and interruptions in order of run and step."""
    rows = [
        [
            _text(run.meta.get("run_id") or run.path.name),
            _steps(event.get("step")),
            _text(event.get("kind")),
            _text(event.get("message")),
        ]
        for run in runs
        for event in run.events
    ]
    if not rows:
        return element("p", "No events were recorded.", class_="note")
    table = tables.text_table(["run", "step", "kind", "message"], rows[:MOST_EVENTS])
    left = len(rows) - MOST_EVENTS
    more = (
        element("p", f"{left} further events stand in the runs' events.jsonl.", class_="note") if left > 0 else Safe("")
    )
    return element("details", element("summary", f"Events ({len(rows)})"), table, more)


def difference_table(runs: Sequence[Any]) -> Safe | None:
    """The keys in which the runs' documents differ, one column a run; None where they do not."""
    flat = [_flatten(run.meta.get("config") or {}) for run in runs]
    keys = list(dict.fromkeys(key for document in flat for key in document))
    ignored = ("run.output_dir", "run.run_id", "run.seeds")
    differing = [
        key for key in keys if len({document.get(key) for document in flat}) > 1 and not key.startswith(ignored)
    ]
    if len(runs) < 2 or not differing:
        return None
    if len(runs) <= 6:
        header = ["key", *(_text(run.meta.get("run_id") or run.path.name) for run in runs)]
        rows = [[key, *(document.get(key, "·") for document in flat)] for key in differing[:MOST_DIFFERENCES]]
    else:
        header = ["key", "values"]
        rows = [[key, _few(list(dict.fromkeys(d.get(key, "·") for d in flat)))] for key in differing[:MOST_DIFFERENCES]]
    return tables.text_table(header, rows, caption="Where the documents differ")


def documents(runs: Sequence[Any]) -> list[Safe]:
    """Each distinct resolved document as YAML, folded, with the runs that used it."""
    import yaml

    owners: dict[str, list[str]] = {}
    for run in runs:
        config = run.meta.get("config")
        if config:
            text = yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False, allow_unicode=True, width=100)
            owners.setdefault(text, []).append(_text(run.meta.get("run_id") or run.path.name))
    if not owners:
        return [element("p", "The runs record no document.", class_="note")]
    return [
        element("details", element("summary", _few(names)), element("pre", element("code", text)))
        for text, names in owners.items()
    ]


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        return {
            path: text
            for name, item in value.items()
            for path, text in _flatten(item, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: json.dumps(value, ensure_ascii=False, default=str)}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _steps(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else _text(value)


def _seeds(values: list[int]) -> str:
    ordered = sorted(set(values))
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(str(seed) for seed in ordered)


def _progress(meta: Mapping[str, Any], run: Any) -> str:
    done = meta.get("done_steps")
    if done is None:
        done = max((int(stream.step[-1]) + 1 for stream in run.streams if len(stream.step)), default=0)
    total = meta.get("total_steps")
    return _steps(done) if total in (None, done) else f"{_steps(done)} of {_steps(total)}"


def _duration(seconds: Any) -> str:
    if not isinstance(seconds, int | float):
        return "not recorded"
    if seconds < 120:
        return f"{svg.number(float(seconds))} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _versions(versions: Any) -> str:
    if not isinstance(versions, Mapping) or not versions:
        return "not recorded"
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
