"""What evaluations keep of a world's own account of its episodes."""

import json

import gymnasium as gym
import numpy as np
import pytest

from perdure import build
from perdure.core.errors import DataError
from perdure.core.records import Spec
from perdure.harness import trials
from perdure.harness.config import ExperimentConfig
from perdure.harness.runs import load_run


class Told(gym.Env):
    """Two steps an episode; says at the end whether the seed was even."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, facts=None):
        self.facts = facts

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        facts = (
            {"even": self.seed % 2 == 0, "language": "en", "drift": ["a", "b"]} if self.facts is None else self.facts
        )
        info = {"facts": facts} if self.steps == 2 else {"facts": {"even": None}}
        return np.zeros(1, np.float32), 1.0, self.steps == 2, False, info


class Policy:
    def act_greedy(self, observation):
        return 0


SPEC = Spec((1,), 2, True, horizon=5)


def test_a_trial_keeps_the_facts_of_its_last_step():
    found = trials.run(Told(), Policy(), SPEC, seed=3, step=0, episodes=8)
    assert {each.score for each in found} == {2.0}
    assert {each.facts["even"] for each in found} == {True, False}
    assert all(each.facts["drift"] == ["a", "b"] and each.length == 2 for each in found)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": 1}, [1, 2], object()])
def test_a_fact_that_is_no_plain_value_is_refused_by_name(value):
    with pytest.raises(DataError, match="'odd'"):
        trials.run(Told({"odd": value}), Policy(), SPEC, seed=0, step=0, episodes=1)


def test_a_fact_that_some_episodes_lack_is_none_there():
    rows = [[trials.Trial(1.0, 1, {"a": 1.0}), trials.Trial(2.0, 1, {"b": "x"})]]
    found = trials.evaluation(rows)
    assert found.facts == {"a": [[1.0, None]], "b": [[None, "x"]]}
    assert found.returns.tolist() == [[1.0, 2.0]]


def test_facts_come_through_a_run_its_files_and_its_evaluation_anew(tmp_path):
    document = {
        "environment": {"id": "perdure/orders", "kwargs": {"turns": 1}},
        "algorithm": {
            "name": "lm/reinforce",
            "policy": {"kwargs": {"tiny": {"width": 16, "layers": 1, "context": 512}, "max_new_tokens": 4}},
        },
        "rollout": {"total_steps": 4, "groups_per_update": 4, "group_size": 1},
        "evaluation": {"episodes": 3},
        "run": {"seeds": [0], "output_dir": str(tmp_path)},
    }
    result = build.run_experiment(ExperimentConfig.model_validate(document))
    line = json.loads((result.folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert line["facts"] == {"success": [False] * 3, "valid": [False] * 3}
    read = load_run(result.folder).evaluations[0]
    assert read.facts == {"success": (False,) * 3, "valid": (False,) * 3}
    assert [turn.saw.startswith("Write the order") for turns in read.samples for turn in turns] == [True] * 3
    assert build.evaluate_run(result.folder, None, 2)[0].facts["valid"] == (False, False)


class Spoken(Told):
    """Shows text."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "begin", {}

    def step(self, action):
        _, reward, terminated, truncated, info = super().step(action)
        return "go on", reward, terminated, truncated, info


def test_the_first_conversations_of_a_world_that_speaks_are_kept():
    found = trials.run(Spoken(), Policy(), SPEC, seed=3, step=0, episodes=5)
    assert found[0].turns == [("begin", "0", 1.0), ("go on", "0", 1.0)]
    assert [len(each) for each in trials.evaluation([found]).samples] == [trials.SAMPLES]
    assert trials.evaluation([trials.run(Told(), Policy(), SPEC, seed=3, step=0, episodes=5)]).samples == [[]]
