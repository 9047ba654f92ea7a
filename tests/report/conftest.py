"""Synthetic runs: three arms with four seeds each through earth, reversed, heavy and earth again."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from perdure.core.records import EvaluationRow, Segment, Stream
from perdure.harness.runs import Run
from perdure.metrics import aggregate
from perdure.metrics.metric import Metric, Options
from perdure.metrics.summary import Aggregate, Comparison, Group, Summary
from perdure.metrics.summary import Run as SeedRun

REGIMES = (("earth", "earth"), ("reversed", "reversed"), ("heavy", "heavy"), ("earth_again", "earth"))

ARMS = {
    # forgetting per foreign step, speed of learning, loss of plasticity
    "ppo": (3.0, 6.0, 0.35),
    "ppo_l2_init": (0.8, 7.0, 0.1),
    "ppo_redo": (2.2, 12.0, 0.0),
}


class Skills(NamedTuple):
    """What a policy can do over time."""

    step: np.ndarray
    expected: dict[str, np.ndarray]
    """origin -> the expected return there at those steps."""


def make_segments(steps: int) -> tuple[Segment, ...]:
    """Four segments of `steps` each."""
    return tuple(Segment(name, origin, i * steps, (i + 1) * steps, {}) for i, (name, origin) in enumerate(REGIMES))


def make_run(
    arm: str = "ppo",
    seeds: tuple[int, ...] = (0, 1, 2, 3),
    steps: int = 3000,
    marks: int = 4,
    algorithm_id: str | None = None,
    task: str = "perdure/cartpole",
    segments: tuple[Segment, ...] | None = None,
    evaluated: bool = True,
    **meta: Any,
) -> Run:
    """One run of `arm`, `steps` environment steps a segment, evaluated `marks` times a segment."""
    segments = segments or make_segments(steps)
    algorithm_id = algorithm_id or arm
    run_id = f"cartpole-{algorithm_id}-1a2b3c"
    streams, evaluations = [], []
    for seed in seeds:
        skills = _skills(arm, seed, segments)
        streams.append(_stream(run_id, algorithm_id, task, seed, segments, skills))
        if evaluated:
            evaluations += _evaluations(run_id, algorithm_id, task, seed, segments, skills, marks)
    document = {
        "environment": {"id": task},
        "algorithm": {"name": "ppo", "kwargs": {"discount": 0.99}, "extensions": [{"name": arm}]},
        "rollout": {"total_steps": segments[-1].end, "n_envs": 1},
        "run": {"seeds": list(seeds)},
    }
    base = {
        "schema": "perdure.run/1",
        "run_id": run_id,
        "algorithm_id": algorithm_id,
        "task": task,
        "seeds": list(seeds),
        "status": "finished",
        "total_steps": segments[-1].end,
        "done_steps": segments[-1].end,
        "score": "return",
        "boundary_source": "none",
        "config": document,
        "config_hash": "0f" * 32,
        "bounds": {origin: [22.0, 500.0] for origin in {segment.origin for segment in segments}},
        "bounds_source": {"earth": "the random policy's return; the time limit"},
        "versions": {"perdure": "0.1.0", "python": "3.11.2", "jax": "0.10.0", "numpy": "2.4.6"},
        "hardware": {"cpu_count": 2, "machine": "x86_64"},
        "created": "2026-01-01T00:00:00Z",
        "wall_seconds": 21.5,
        "error": None,
    }
    events = [{"step": segments[-1].end, "kind": "checkpoint", "message": "checkpoints/000012000", "wall": 20.0}]
    return Run(Path("runs") / run_id, base | meta, segments, streams, evaluations, [], events, [])


def _skills(arm: str, seed: int, segments: tuple[Segment, ...]) -> Skills:
    forget, speed, stale = ARMS[arm]
    noise = np.random.default_rng([seed, len(arm)])
    grid = np.linspace(0, segments[-1].end, 40 * len(segments) + 1)
    origins = list(dict.fromkeys(segment.origin for segment in segments))
    skill = {origin: np.full(len(grid), 0.05) for origin in origins}
    for i in range(1, len(grid)):
        k = next(k for k, segment in enumerate(segments) if grid[i] <= segment.end)
        share = (grid[i] - grid[i - 1]) / (segments[k].end - segments[k].start)
        for origin in origins:
            before = skill[origin][i - 1]
            if origin == segments[k].origin:
                best = 1.0 - stale * k / len(segments) - 0.1 * (origin == "heavy")
                change = speed * share * (best - before)
            else:
                change = -forget * share * (before - 0.04)
            skill[origin][i] = np.clip(before + change + noise.normal(0, 0.012), 0.03, 1.0)
    return Skills(grid, {origin: 500 * values for origin, values in skill.items()})


def _stream(
    run_id: str, algorithm_id: str, task: str, seed: int, segments: tuple[Segment, ...], skills: Skills
) -> Stream:
    grid, skill = skills
    noise = np.random.default_rng([7, seed])
    total = segments[-1].end
    terminated = np.zeros(total, bool)
    position = 0
    while position < total:
        segment = next(segment for segment in segments if position < segment.end)
        expected = np.interp(position, grid, skill[segment.origin])
        position += max(8, int(expected * noise.uniform(0.7, 1.1) * total / 400_000 * 4))
        if position <= total:
            terminated[position - 1] = True
    scale = 400_000 / total / 4
    return Stream(
        run_id=run_id,
        algorithm_id=algorithm_id,
        task=task,
        seed=seed,
        step=np.arange(total),
        lane=np.zeros(total, np.int32),
        reward=np.full(total, scale),
        terminated=terminated,
        truncated=np.zeros(total, bool),
        segments=segments,
        bounds={segment.origin: (22.0, 500.0) for segment in segments},
        total_steps=total,
    )


def _evaluations(
    run_id: str, algorithm_id: str, task: str, seed: int, segments: tuple[Segment, ...], skills: Skills, marks: int
) -> list[EvaluationRow]:
    grid, skill = skills
    noise = np.random.default_rng([11, seed])
    length = segments[0].end - segments[0].start
    rows = []
    for step in range(0, segments[-1].end + 1, length // marks):
        progress = step / segments[-1].end
        rank = (30 - 14 * progress * ARMS.get(algorithm_id, (1, 1, 0.3))[2] / 0.35) + noise.normal(0, 0.4)
        metrics = {
            "effective_rank/actor": rank,
            "effective_rank/critic": rank + 4,
            "dormant/actor": 0.05 + 0.3 * progress * ARMS.get(algorithm_id, (1, 1, 0.3))[2],
            "dormant/critic": 0.02 + 0.2 * progress * ARMS.get(algorithm_id, (1, 1, 0.3))[2],
        }
        for origin, values in skill.items():
            returns = np.clip(np.interp(step, grid, values) + noise.normal(0, 12, 8), 8, 500).round()
            lengths = tuple(int(value) for value in returns)
            rows.append(
                EvaluationRow(run_id, algorithm_id, task, seed, step, origin, tuple(returns.tolist()), lengths, metrics)
            )
    return rows


@pytest.fixture(scope="session")
def run_maker():
    """`make_run`, for tests that need a run of their own."""
    return make_run


@pytest.fixture(scope="session")
def arm_names() -> list[str]:
    """The arms that `run_maker` knows."""
    return list(ARMS)


@pytest.fixture(scope="session")
def comparison() -> list[Run]:
    """Three arms with four seeds each on one schedule."""
    return [make_run(arm) for arm in ARMS]


def make_summary(values: dict[str, list[float | None]], name: str = "forgetting", **fields: Any) -> Summary:
    """A summary of one metric with hand-set values a seed for each arm, compared pair by pair."""
    settings = {"higher_is_better": False, "unit": "score", "censored": 0, "n": 1, "reason": "no revisit"} | fields
    groups = tuple(_group(arm, name, found, settings) for arm, found in values.items())
    sign = 1 if settings["higher_is_better"] else -1
    compared = []
    for first, second in itertools.combinations(groups, 2):
        sides = [
            [sign * value for value in values[group.algorithm_id] if value is not None] for group in (first, second)
        ]
        if all(sides):
            found = aggregate.probability_of_improvement(*sides)
            compared.append(Comparison("task", name, first.algorithm_id, second.algorithm_id, *found[:3]))
    return Summary(groups, tuple(compared), (), Options())


def _group(arm: str, name: str, values: list[float | None], settings: dict[str, Any]) -> Group:
    shared = {"unit": settings["unit"], "higher_is_better": settings["higher_is_better"]}
    known = [value for value in values if value is not None]
    runs = []
    for seed, value in enumerate(values):
        reason = None if value is not None else settings["reason"]
        metric = Metric(name, value, settings["n"], settings["censored"], None, None, reason, details={}, **shared)
        runs.append(SeedRun(f"{arm}-{seed}", seed, {name: metric}))
    interval = aggregate.mean_interval(known) if known else None
    found = Aggregate(
        name=name,
        value=interval.value if interval else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        statistic="mean",
        interval="seeds" if interval and interval.low is not None else None,
        n=len(known),
        censored=settings["censored"] * len(values),
        reason=None if known else settings["reason"],
        values=tuple(values),
        **shared,
    )
    return Group(arm, "task", tuple(runs), {name: found})


@pytest.fixture(scope="session")
def summary_maker():
    """`make_summary`."""
    return make_summary
