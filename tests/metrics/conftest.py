"""Streams and evaluation rows to measure, built from plain lists."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from perdure.core.records import EvaluationRow, Segment, Stream


def _segments(lengths: Sequence[tuple[str, str, int]]) -> tuple[Segment, ...]:
    segments, start = [], 0
    for name, origin, length in lengths:
        segments.append(Segment(name, origin, start, start + length))
        start += length
    return tuple(segments)


def _stream(rewards, segments=None, ended=(), lanes=1, **fields) -> Stream:
    """Rows at steps 0, 1, ...; `segments` are (id, origin, length), `ended` the steps that terminate."""
    count = len(rewards)
    terminated = np.zeros(count, bool)
    terminated[list(ended)] = True
    given = {
        "run_id": "run",
        "algorithm_id": "agent",
        "task": "world",
        "seed": 0,
        "step": np.arange(count),
        "lane": np.arange(count) % lanes,
        "reward": np.array(rewards, np.float64),
        "terminated": terminated,
        "truncated": np.zeros(count, bool),
        "segments": _segments(segments or [("a", "a", max(count, 1))]),
        "score": "reward",
    }
    return Stream(**{**given, **fields})


@pytest.fixture(scope="session")
def make_segments() -> Callable[..., tuple[Segment, ...]]:
    return _segments


@pytest.fixture(scope="session")
def make_stream() -> Callable[..., Stream]:
    return _stream


@pytest.fixture(scope="session")
def golden_stream() -> Callable[..., Stream]:
    """a: a climb 0..9, then 10; b: 0, then 5; a again: 4, then 10. Each 20 steps, so W = 1, tail = 4 steps."""
    rewards = [*range(10), *[10] * 10, *[0] * 10, *[5] * 10, *[4] * 5, *[10] * 15]

    def build(**fields):
        return _stream(rewards, [("a", "a", 20), ("b", "b", 20), ("a2", "a", 20)], **fields)

    return build


@pytest.fixture(scope="session")
def make_evaluations() -> Callable[..., list[EvaluationRow]]:
    """Rows of evaluations from {step: {regime: return}}."""

    def build(table, **fields):
        given = {"run_id": "run", "algorithm_id": "agent", "task": "world", "seed": 0}
        return [
            EvaluationRow(**{**given, **fields}, step=step, regime=regime, returns=(value,), lengths=(1,), metrics={})
            for step, line in table.items()
            for regime, value in line.items()
        ]

    return build
