"""What the tests of this folder share: returns of a whole run, and pages of results written a row at a time."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from perdure import build
from perdure.harness.config import ExperimentConfig
from perdure.metrics import aggregate


def trained(config: ExperimentConfig) -> dict[int, list[float]]:
    """{step: [mean return of each seed]} of a whole run."""
    result = build.run_experiment(config)
    marks: dict[int, list[float]] = {}
    for line in (result.folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        marks.setdefault(row["step"], []).append(statistics.mean(row["returns"]))
    return marks


def summed_up(values: list[float], digits: int = 1) -> list[str]:
    """The cells of a mean, its interval, and the values from lowest to highest."""
    interval = aggregate.mean_interval(values)
    shown = [f"{value:.{digits}f}" for value in (interval.value, interval.low, interval.high, *sorted(values))]
    return [shown[0], f"{shown[1]} to {shown[2]}", ", ".join(shown[3:])]


def write_row(page: Path, head: str, order: Iterable[str], cells: list[str]) -> None:
    """Put a row, named by its first cell, into a page, in the order given; other rows stay."""
    old = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    rows = {line.split("|")[1].strip(): line for line in old if line.startswith("|")}
    rows[cells[0]] = f"| {' | '.join(cells)} |"
    page.write_text(head + "".join(f"{rows[each]}\n" for each in order if each in rows), encoding="utf-8")
