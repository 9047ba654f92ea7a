"""What a person sees while a run goes on: a bar on a terminal, plain lines in log.txt and elsewhere."""

import collections
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.records import RegimeSchedule, RolloutWindow
from perdure.harness import directory

SECONDS_BETWEEN_LINES = 5.0
WINDOWS_IN_SCORE = 20


class Progress:
    """A sink that reports steps, speed, time left, the recent score and the regime.

    log.txt always gets plain lines. With `show`, a terminal on standard error gets a live bar, and
    any other standard error the same plain lines. The score is the reward of the last windows divided
    by the episodes finished in them (by the steps, where the score is the reward of each step).
    """

    def __init__(self, log: Path, meta: Mapping[str, Any], schedule: RegimeSchedule, show: bool):
        self._log, self._schedule, self._show = log, schedule, show
        self._returns = meta.get("score", "return") == "return"
        self._name = str(meta.get("run_id", ""))
        seeds = len(meta.get("seeds", ()))
        self._over = f" over {seeds} seeds" if seeds > 1 else ""
        self._recent: collections.deque[tuple[float, int]] = collections.deque(maxlen=WINDOWS_IN_SCORE)
        self._began, self._rows, self._first, self._said = time.monotonic(), 0, None, 0.0
        with directory.disk(log):
            self._file = log.open("a", buffering=1, encoding="utf-8")
        self._bar = _bar(self._name, schedule.total_steps) if show and sys.stderr.isatty() else None

    def window(self, window: RolloutWindow, lines: Sequence[Mapping[str, Any]]) -> None:
        """Count the steps of a window; say so when some seconds have passed."""
        step = window.last_step
        if self._first is None:
            # The first window includes the compiling of the program, which says nothing of the rest.
            self._first, self._began = step, time.monotonic()
        else:
            self._rows += len(window)
        ends = int(np.count_nonzero(window.terminals())) if self._returns else len(window)
        self._recent.append((float(np.sum(window.rewards())), ends))
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=step, told=f"{self._speed():,.0f} steps/s  {self._told(step)}")
        now = time.monotonic()
        if now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            self._say(self._line(step))

    def evaluation(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """One line a mark: the mean return under each regime, over seeds and episodes."""
        means: dict[str, list[float]] = {}
        for line in lines:
            means.setdefault(line["regime"], []).extend(line["returns"])
        if means:
            shown = ", ".join(f"{regime} {np.mean(returns):.4g}" for regime, returns in means.items())
            self._say(f"step {lines[0]['step']:,}: evaluated {shown}")

    def event(self, line: Mapping[str, Any]) -> None:
        """A line an event."""
        self._say(f"step {line['step']:,}: {line['kind']}: {line['message']}")

    def failure(self, text: str) -> None:
        """The traceback of an error that a user sees in one line: for log.txt alone."""
        with directory.disk(self._log):
            self._file.write(text)

    def close(self) -> None:
        """Take the bar down and close the log; a second call does nothing."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None
        self._file.close()

    def _line(self, step: int) -> str:
        total, speed = self._schedule.total_steps, self._speed()
        done = step - (self._first or 0)
        where = f"step {step:,} of {total:,} ({step / total:.0%})"
        if not done:
            return f"{where}  {self._told(step)}"
        left = (time.monotonic() - self._began) / done * (total - step)
        return f"{where}  {speed:,.0f} steps/s{self._over}  {left:.0f} s left  {self._told(step)}"

    def _speed(self) -> float:
        return self._rows / max(time.monotonic() - self._began, 1e-9)

    def _told(self, step: int) -> str:
        regime = self._schedule.segments[int(self._schedule.index_at(max(step - 1, 0)))].id
        reward, ends = (sum(column) for column in zip(*self._recent, strict=True))
        what = "return" if self._returns else "reward"
        return f"{what} {reward / ends:.4g}  {regime}" if ends else regime

    def _say(self, line: str) -> None:
        with directory.disk(self._log):
            self._file.write(f"{time.monotonic() - self._began:9.1f} s  {line}\n")
        if self._show and self._bar is not None:
            self._bar[0].console.print(line, highlight=False, markup=False)
        elif self._show:
            print(f"{self._name}  {line}", file=sys.stderr, flush=True)


def _bar(name: str, total: int) -> tuple[Any, Any]:
    from rich import console, progress

    columns = ("[progress.description]{task.description}", progress.BarColumn(), progress.TaskProgressColumn())
    bar = progress.Progress(
        *columns,
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[told]}", markup=False),
        console=console.Console(stderr=True),
    )
    bar.start()
    return bar, bar.add_task(name.replace("[", r"\["), total=total, told="")
