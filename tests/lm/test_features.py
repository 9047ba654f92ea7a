import json
import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.errors import ConfigError
from perdure.lm import features
from perdure.lm.features import STATE_DIM, FeatureKind, HashMode, Leaf, leaves, state_features, value_features

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=8), st.binary(max_size=4)
)
KEYS = st.one_of(st.text(st.characters(), max_size=6), st.integers(), st.booleans(), st.none(), st.floats())
STATES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def test_every_leaf_is_counted_at_its_path_and_lists_have_no_indices():
    state = {"a": {"b": [1, 2, {"c": 3}]}, "d": [], "e": {}}
    counted = state_features(state)
    assert counted.shape == (STATE_DIM,)
    assert counted.dtype == np.float32
    by_path = {}
    for path, times in ((".a.b", 2), (".a.b.c", 1), (".d", 1), (".e", 1)):
        alone = state_features({}) if not path else state_features(_nested(path))
        by_path[path] = times * alone
    assert np.array_equal(counted, sum(by_path.values()))


def _nested(path):
    state = 0
    for key in reversed(path.split(".")[1:]):
        state = {key: state}
    return state


def test_values_and_positions_are_never_read():
    assert np.array_equal(state_features({"x": 1, "y": [1, 2]}), state_features({"y": ["p", None], "x": "other"}))
    assert not np.array_equal(state_features({"x": 1}), state_features({"y": 1}))


@pytest.mark.parametrize("width", [1, 100, 256, 4096])
def test_only_the_first_256_entries_are_used(width):
    counted = state_features({f"key{number}": number for number in range(3000)}, width=width)
    assert counted.shape == (width,)
    assert counted.sum() == 3000
    assert not counted[256:].any()
    assert counted[: min(width, 256)].all()


def test_json_text_is_read_as_what_it_says():
    state = {"orders": [{"id": 1, "late": True}], "cash": 2.5}
    for read in (state_features, value_features):
        assert np.array_equal(read(json.dumps(state)), read(state))
    assert np.array_equal(state_features("{broken"), state_features("any other text"))


@pytest.mark.parametrize("mode", list(HashMode))
def test_stable_hashing_is_the_same_in_every_process_and_pythons_is_not(mode):
    program = (
        "from perdure.lm.features import *\n"
        f"print(state_features({{'a': 1, 'b': {{'c': 2}}}}, hash_mode='{mode}').nonzero()[0].tolist(),"
        f" value_features({{'a': 1, 'b': 'some text'}}, hash_mode='{mode}').nonzero()[0].tolist())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert (len(told) == 1) == (mode == HashMode.STABLE)


def test_the_module_loads_no_machine_learning_library():
    program = (
        "import sys, perdure.lm.features, perdure.lm.hindsight, perdure.lm.fisher_samples\n"
        "print([name for name in ('torch', 'jax', 'transformers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_value_features_tell_values_apart():
    states = [
        {"x": 1}, {"x": 100}, {"x": -1}, {"x": "1"}, {"x": True}, {"x": None}, {"x": [1]}, {"x": [1, 1]},
        {"x": math.nan}, {"x": math.inf}, {"y": 1}, {"x": "a b"}, {"x": "b a"}, {},
    ]  # fmt: skip
    rows = [value_features(state).tobytes() for state in states]
    assert len(set(rows)) == len(states)


def test_numbers_close_to_one_another_have_close_features():
    near, far = (value_features({"load": value}) for value in (1000.0, 1010.0)), value_features({"load": -3.0})
    first, second = near
    assert np.abs(first - second).max() < 0.01 < np.abs(first - far).max()


def test_a_number_counts_in_its_bin_and_by_its_size():
    found = value_features({"x": 2.0})
    size = math.asinh(2.0)
    expected = sorted([math.log1p(1.0), math.log1p(math.tanh(size / 4))])
    assert sorted(np.abs(found[found != 0]).tolist()) == pytest.approx(expected, rel=1e-6)
    names = [name for name, _ in features._value_marks({"x": 2.0})]
    assert names == [f".x@{round(features.STEPS * size)}", ".x@"]


def test_a_list_gives_its_length_and_the_least_mean_and_greatest_number():
    marks = dict(features._value_marks({"x": [1, 5, "a", math.nan]}))
    size = lambda value: math.tanh(math.asinh(value) / 4)
    assert marks[".x#@"] == size(4)
    assert (marks[".x#min@"], marks[".x#mean@"], marks[".x#max@"]) == (size(1), size(3), size(5))


def test_text_counts_as_a_whole_and_by_its_words():
    marks = list(features._value_marks("3 + 4 = ?"))
    assert [name for name, _ in marks] == ["='3 + 4 = ?'", "~3", "~+", "~4", "~=", "~?"]


@settings(max_examples=150, deadline=None)
@given(STATES, st.sampled_from(list(FeatureKind)), st.integers(1, 300))
def test_no_state_breaks_them(state, kind, width):
    found = features.features(state, kind=kind, hash_mode=HashMode.STABLE, width=width)
    again = features.features(state, kind=kind, hash_mode=HashMode.STABLE, width=width)
    assert found.shape == (width,)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert np.array_equal(found, again)


def _cycle():
    state = {"x": 1}
    state["a"], state["b"] = state, [state, state]
    return state


def _deep():
    state = []
    for _ in range(100_000):
        state = [state]
    return state


@pytest.mark.parametrize(
    "make",
    [
        _cycle,
        _deep,
        lambda: [[0] * 20_000] * 20_000,
        lambda: "[" * 50_000,
        lambda: "{" + '"a":' * 10_000,
        lambda: "x" * 10_000_000,
        lambda: {"k" * 1_000_000: "v" * 10_000_000},
        lambda: "[" + "9" * 60_000 + "]",
        lambda: {10**5000: 10**5000, ("t",): b"b", "s": "\ud800", "n": -(10**400)},
        lambda: np.zeros((3000, 3000)),
        lambda: {"a": np.float32("nan"), "b": np.array(3), "c": np.array([], int), "d": object()},
        lambda: {str(number): {} for number in range(200_000)},
    ],
)
def test_hostile_states_take_no_long_time(make):
    state = make()
    begun = time.process_time()
    for read in (state_features, value_features):
        assert np.isfinite(read(state)).all()
    assert time.process_time() - begun < 3


def test_reading_stops_at_fixed_limits():
    assert len(list(leaves([0] * 50_000))) == features.MOST_NODES + 1
    deep = _nested("." + ".".join("k" * 40))
    assert list(leaves(deep)) == [Leaf(".k" * features.DEEPEST, None)]


@pytest.mark.parametrize("read", [state_features, value_features])
def test_no_width_is_refused(read):
    with pytest.raises(ConfigError, match="width is 0"):
        read({}, width=0)
