"""One world two ways: compiled, and stepped through its Gymnasium face, give the same trace and the same metrics."""

import json
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from perdure import build
from perdure.core import registry
from perdure.core.component import component
from perdure.harness import runs
from perdure.harness.config import ExperimentConfig
from perdure.metrics import six
from perdure.rl import clipped
from perdure.rl.feeds import Epochs
from perdure.rl.optim import Adam
from perdure.worlds.adapters.gymnasium import face

FACE = "perdure.worlds.adapters.gymnasium:face"
STEPS = 1_200
LABELS = {"regime": "id", "origin": "origin", "boundary": "boundary"}
SHIFTS = {
    "perdure/cartpole": [{}, {"force": -10.0}, {"gravity": 20.0, "pole_length": 2.0}],
    "perdure/pendulum": [{}, {"gravity": 2.0}, {"mass": 2.0}],
}
WATCHED = {
    "perdure/cartpole": {
        "boundary_source": "detector",
        "detector": {"name": "page_hinkley", "kwargs": {"threshold": 20.0}},
    },
    "perdure/pendulum": {"boundary_source": "oracle"},
}


@component
class Scripted:
    """Leans against what it sees, now and then at random; learns nothing."""

    feed: Epochs = Epochs(epochs=1, minibatches=1)
    hidden: tuple[int, ...] = (4,)
    activation: str = "tanh"
    layer_norm: bool = False
    precision: str = "float32"
    convolutions: tuple[tuple[int, int, int], ...] = ()
    discount: float = 0.99
    normalize_observations: bool = False
    normalize_rewards: bool = False
    column: int = 2
    """The observation that is leant against."""
    optimiser: Adam = Adam()

    offers: ClassVar[frozenset[str]] = clipped.OFFERS
    actions: ClassVar[frozenset[str]] = frozenset({"discrete", "continuous"})
    networks, init = clipped.networks, clipped.begin

    def noise(self, key, rows, spec):
        return jax.random.uniform(key, (rows,), minval=-0.05, maxval=0.05)

    def act(self, state, obs, ctx):
        return self._leaning(obs, ctx.noise, ctx.spec), ()

    def act_greedy(self, state, obs, ctx):
        return self._leaning(obs, 0.0, ctx.spec)

    def _leaning(self, obs, chance, spec):
        push = obs[:, self.column] + 0.3 * obs[:, -1] + chance
        return (push > 0).astype(jnp.int32) if spec.discrete else jnp.tanh(push)[:, None]

    def prepare(self, state, rows, ctx, extensions):
        return state, rows, {}

    def update(self, state, batch, ctx, extensions):
        return state, {}


@pytest.fixture(scope="module", autouse=True)
def scripted():
    registry.register("agents", "scripted", f"{__name__}:Scripted")
    yield
    del registry._TABLES["agents"]["scripted"]


def run_of(folder, world, hosted, **sections):
    """The run of a scripted policy through two shifts, one of them inside a window, read back."""
    first, second, third = SHIFTS[world]
    segments = [
        {"id": "before", "steps": 330, "params": first},
        {"id": "after", "steps": 470, "params": second},
        {"id": "last", "steps": 400, "params": third},
    ]
    document = {
        "environment": {"id": FACE, "kwargs": {"world": world}} if hosted else {"id": world},
        "algorithm": {"name": "scripted", "kwargs": {"column": 2 if "cartpole" in world else 1}},
        "rollout": {"total_steps": STEPS, "n_envs": 2, "window_steps": 50},
        "regime": {"provider": "schedule", "segments": segments, **WATCHED[world]},
        "evaluation": {"episodes": 1, "regimes": "current"},
        "run": {
            "seeds": [3, 4],
            "task": world,
            "output_dir": str(folder),
            "run_id": "hosted" if hosted else "compiled",
        },
        **sections,
    }
    result = build.run_experiment(ExperimentConfig.from_document(document))
    return runs.load_run(result.folder)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """World -> (compiled, hosted)."""
    folder = tmp_path_factory.mktemp("parity")
    return {world: [run_of(folder / world, world, hosted) for hosted in (False, True)] for world in SHIFTS}


def columns(run):
    """What the trace of a run holds, column by column, ordered by seed, then step."""
    if (run.path / "traces.jsonl").exists():
        rows = [json.loads(line) for line in (run.path / "traces.jsonl").read_text().splitlines()]
        rows.sort(key=lambda row: (row["seed"], row["step"]))
        plain = ("seed", "step", "lane", "reward", "terminated", "truncated", "action")
        found = {name: [row[name] for row in rows] for name in plain}
        labels = {name: [row["regime"][key] for row in rows] for name, key in LABELS.items()}
        return found | labels
    tables = [parquet.read_table(part) for part in sorted((run.path / "steps").glob("part-*.parquet"))]
    table = pyarrow.concat_tables(tables).sort_by([("seed", "ascending"), ("step", "ascending")])
    return {name: table[name].to_pylist() for name in table.column_names}


@pytest.mark.parametrize("world", SHIFTS)
def test_the_two_traces_are_the_same_row_by_row(pairs, world):
    compiled, hosted = (columns(run) for run in pairs[world])
    assert compiled.keys() == hosted.keys()
    for name, values in compiled.items():
        if name in ("action", "reward"):  # The compiler may fuse the same arithmetic in two ways: the last bits differ.
            np.testing.assert_allclose(values, hosted[name], rtol=1e-4, atol=1e-4, err_msg=name)
        else:
            assert values == hosted[name], name
    assert len(compiled["step"]) == 2 * STEPS
    assert [step for step, new in zip(compiled["step"], compiled["boundary"], strict=True) if new] == [0, 330, 800] * 2
    assert sum(compiled["terminated"]) + sum(compiled["truncated"]) > 4


@pytest.mark.parametrize("world", SHIFTS)
def test_the_two_give_the_same_six_metrics(pairs, world):
    compiled, hosted = pairs[world]
    assert [stream.seed for stream in compiled.streams] == [stream.seed for stream in hosted.streams] == [3, 4]
    for one, other in zip(compiled.streams, hosted.streams, strict=True):
        found = six.six_metrics(one)
        assert found == six.six_metrics(other)
        assert sum(metric.value is not None for metric in found.values()) >= 3


@pytest.mark.parametrize("world", SHIFTS)
def test_the_two_learn_in_the_same_windows_and_hear_the_same_alarms(pairs, world):
    compiled, hosted = pairs[world]
    assert compiled.windows == hosted.windows
    if "cartpole" in world:
        assert sum(line["metrics"]["detector/alarm"] for line in compiled.windows) > 0


def test_the_seeds_and_the_shifts_tell_in_the_trace(pairs):
    # A trace that said nothing would be the same both ways too.
    rewards = np.array(columns(pairs["perdure/pendulum"][0])["reward"]).reshape(2, STEPS)
    assert not np.array_equal(rewards[0], rewards[1])
    assert len(np.unique(rewards)) > STEPS


def test_an_environment_given_as_an_object_is_trained_in_and_never_evaluated(tmp_path):
    document = {
        "environment": {"id": "of-no-consequence"},
        "algorithm": {"name": "scripted"},
        "rollout": {"total_steps": 60, "window_steps": 20},
        "evaluation": {"every": 20},
        "run": {"output_dir": str(tmp_path)},
    }
    env = face("perdure/cartpole")
    result = build.run_experiment(ExperimentConfig.from_document(document), env=env)
    assert result.counts == {"steps": 60, "rows": 60, "windows": 3, "evaluations": 0, "events": 1}
    # Every step was of the training.
    assert env.get_state()["t"] == 60
    assert set(runs.load_run(result.folder).meta["bounds"]) == {"constant"}
