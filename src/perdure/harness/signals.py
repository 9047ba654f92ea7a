"""Ctrl-C and SIGTERM during a run: the first asks it to stop after the present step, the second stops it at once."""

import contextlib
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop, and saved a checkpoint first; the message says how to go on."""

    def __init__(self, folder: Path, step: int, number: int):
        super().__init__(f"stopped at step {step}; a checkpoint is in {folder}, go on with --resume")
        self.folder, self.step = folder, step
        self.exit_code = 128 + number


class Stop:
    """Which signal has come, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None


@contextlib.contextmanager
def caught() -> Generator[Stop]:
    """Note SIGINT and SIGTERM in a `Stop` inside the block; a second one has its usual effect.

    Outside the main thread Python takes no signal handlers, and nothing is caught.
    """
    stop = Stop()
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def note(number: int, frame: Any) -> None:
        stop.signal = number
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()
