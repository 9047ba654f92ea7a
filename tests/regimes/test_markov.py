import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError
from perdure.regimes.markov import Durations, Random
from perdure.regimes.schedules import labels_only, schedule

GEOMETRIC = {"kind": "geometric", "mean": 20}


def test_a_seed_always_gives_the_same_schedule(build):
    # Recorded runs depend on these numbers: they may not change.
    segments = build(Random, durations=GEOMETRIC, states=["a", "b", "c"], seed=0).plan(100)
    assert [(segment.id, segment.end) for segment in segments] == [
        ("a", 3),
        ("c", 23),
        ("b", 59),
        ("c", 65),
        ("b", 85),
        ("a", 100),
    ]


def test_another_seed_gives_another_schedule(build):
    plans = {build(Random, durations=GEOMETRIC, states=["a", "b", "c"], seed=seed).plan(500) for seed in range(20)}
    assert len(plans) == 20


def test_a_longer_run_starts_like_a_shorter_one(build):
    provider = build(Random, durations=GEOMETRIC, states=["a", "b", "c"])
    short, long = provider.plan(300), provider.plan(3000)
    assert long[: len(short) - 1] == short[:-1]
    assert provider.at(250, {}).id == next(segment.id for segment in long if segment.end > 250)


@pytest.mark.parametrize("mean", [1, 2, 20, 500])
def test_geometric_durations_have_the_mean_that_was_asked_for(mean):
    generator = random.Random(1)
    drawn = np.array([Durations(mean=mean).draw(generator) for _ in range(20_000)])
    assert drawn.min() >= 1
    assert abs(drawn.mean() - mean) < 4 * mean / np.sqrt(20_000) + 1e-9
    if mean > 1:
        assert abs((drawn == 1).mean() - 1 / mean) < 0.02


def test_uniform_durations_reach_both_ends_evenly():
    generator = random.Random(1)
    drawn = [Durations(kind="uniform", min=3, max=6).draw(generator) for _ in range(8000)]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert np.all(np.abs(counts / 8000 - 0.25) < 0.03)


def test_bounds_hold_geometric_durations():
    generator = random.Random(1)
    drawn = [Durations(mean=20, min=10, max=30).draw(generator) for _ in range(1000)]
    assert (min(drawn), max(drawn)) == (10, 30)


@given(seed=st.integers(0, 10_000), total=st.integers(1, 40), n_envs=st.sampled_from([1, 4, 16]))
def test_random_schedules_cover_the_run_in_whole_rounds(seed, total, n_envs):
    provider = Random(Durations(mean=15.0), ("a", "b", "c"), seed=seed)
    segments = schedule(provider, total * n_envs, n_envs=n_envs).segments
    assert segments[0].start == 0
    assert segments[-1].end == total * n_envs
    assert all(before.end == after.start for before, after in itertools.pairwise(segments))
    assert all(before.id != after.id for before, after in itertools.pairwise(segments))


def test_states_follow_the_transition_matrix(build):
    provider = build(
        Random,
        durations={"kind": "uniform", "min": 1, "max": 1},
        states=["a", "b", "c"],
        transition=[[0, 1, 0], [0.25, 0, 0.75], [1, 0, 0]],
        start="b",
    )
    segments = provider.plan(20_000)
    assert segments[0].id == "b"
    after_b = [later.id for earlier, later in itertools.pairwise(segments) if earlier.id == "b"]
    assert abs(after_b.count("c") / len(after_b) - 0.75) < 0.02
    assert {later.id for earlier, later in itertools.pairwise(segments) if earlier.id == "c"} == {"a"}


def test_staying_lengthens_a_segment_instead_of_making_a_boundary(build):
    provider = build(
        Random,
        durations={"kind": "uniform", "min": 5, "max": 5},
        states=["a", "b"],
        transition=[[0.9, 0.1], [0.1, 0.9]],
    )
    segments = provider.plan(5000)
    assert all(before.id != after.id for before, after in itertools.pairwise(segments))
    assert max(segment.end - segment.start for segment in segments) > 20


def test_states_with_parameters_control_and_bare_names_label(build):
    labels = build(Random, durations=GEOMETRIC, states=["a", "b"]).plan(200)
    controls = build(Random, durations=GEOMETRIC, states={"a": None, "b": {"g": 2}}).plan(200)
    assert labels_only(labels)
    assert {segment.id: segment.params for segment in controls} == {"a": {}, "b": {"g": 2.0}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"states": ["a"]}, "two or more distinct"),
        ({"states": ["a", "a"]}, "two or more distinct"),
        ({"start": "c"}, "start is 'c', which is not a state"),
        ({"transition": [[0, 1]]}, "transition has 1 rows; there are 2 states"),
        ({"transition": [[0, 1], [1]]}, "row of 'b' has 1 entries"),
        ({"transition": [[0.5, 0.4], [1, 0]]}, "row of 'a' is .*sum to 1"),
        ({"transition": [[-1, 2], [1, 0]]}, "row of 'a' is"),
        ({"transition": [[1, 0], [1, 0]]}, r"states\.b never occurs"),
        ({"durations": {"kind": "geometric"}}, "durations.mean is None"),
        ({"durations": {"kind": "geometric", "mean": 0.5}}, "durations.mean is 0.5"),
        ({"durations": {"kind": "uniform", "min": 4}}, "uniform ones need min and max"),
        ({"durations": {"kind": "geometric", "mean": 5, "min": 4, "max": 3}}, "durations.max is 3, below min"),
        ({"durations": {"kind": "geometric", "mean": 5, "min": 0}}, "durations.min is 0"),
        ({"durations": {"kind": "geometric", "meen": 5}}, r"regime\.durations\.meen is not .*did you mean 'mean'"),
    ],
)
def test_a_random_schedule_that_cannot_be_drawn_is_refused(build, fields, message):
    document = {"durations": GEOMETRIC, "states": ["a", "b"], **fields}
    with pytest.raises(ConfigError, match=message):
        build(Random, **document)
