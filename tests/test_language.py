"""From a language document to its learner: what is refused before anything is trained, and by which name."""

import copy

import numpy as np
import pytest

from perdure import build, language
from perdure.core.errors import ConfigError, Refused, UnknownName
from perdure.harness import runs
from perdure.harness.config import ExperimentConfig
from perdure.metrics.matrix import evaluation_matrix
from perdure.worlds.text.arithmetic import Arithmetic

SMALL = {"tiny": {"width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "context": 96}, "max_new_tokens": 4}
DOCUMENT = {
    "environment": {"id": "perdure/arithmetic"},
    "algorithm": {"name": "lm/grpo", "kwargs": {"turns": 1}, "policy": {"kwargs": SMALL}},
    "rollout": {"total_steps": 8, "groups_per_update": 2, "group_size": 2},
}
WINDOWS = {"algorithm.name": "lm/ppo", "algorithm.kwargs": {}, "rollout": {"total_steps": 8, "window_steps": 4}}

SHIFTED = {"provider": "schedule", "segments": [{"id": "a", "steps": 8, "params": {"operatr": 1}}]}


def document(**changes):
    """The document with values set at dotted paths."""
    made = copy.deepcopy(DOCUMENT)
    for path, value in changes.items():
        *sections, key = path.split(".")
        place = made
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return ExperimentConfig.from_document(made)


@pytest.mark.parametrize("changes", [{}, WINDOWS], ids=["grpo", "ppo"])
def test_a_small_document_is_valid(changes):
    build.check(document(**changes))


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"algorithm.kwargs": {"turnz": 1}}, ConfigError, r"algorithm\.kwargs\.turnz .*'turns'"),
        ({"algorithm.policy": {"kwargs": {**SMALL, "max_new_tokns": 4}}}, ConfigError, r"tokns .*'max_new_tokens'"),
        ({"algorithm.policy": {"kwargs": {**SMALL, "top_p": 0.9}}}, Refused, r"sampling\.top_p"),
        ({**WINDOWS, "algorithm.kwargs": {"gamm": 1}}, ConfigError, r"algorithm\.kwargs\.gamm .*'gamma'"),
        ({**WINDOWS, "algorithm.kwargs": {"seed": 1}}, ConfigError, r"algorithm\.kwargs\.seed is not set here"),
        ({**WINDOWS, "algorithm.name": "lm/ewc"}, Refused, "boundary_source is none"),
        ({"algorithm.extensions": [{"name": "previous_policy"}]}, Refused, r"extensions\[0\].*boundary_source is none"),
        ({"algorithm.extensions": [{"name": "l2_init"}, {"name": "l2_init"}]}, ConfigError, "two hooks are called"),
        ({"algorithm.extensions": [{"name": "l2_ini"}]}, UnknownName, "did you mean 'l2_init'"),
        ({"environment.id": "perdure/cartpole"}, Refused, "needs a world that speaks"),
        ({**WINDOWS, "environment.id": "perdure/cartpole"}, Refused, "needs a world that speaks"),
        ({"regime": SHIFTED}, ConfigError, "regime 'a'.*operatr"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_by_a_check(changes, kind, says):
    with pytest.raises(kind, match=says):
        build.check(document(**changes))


def test_an_update_past_a_segments_end_is_evaluated_as_that_end(tmp_path):
    segments = [
        {"id": "sum", "steps": 6, "params": {"operator": 1}},
        {"id": "larger", "steps": 6, "params": {"operator": 2}},
    ]
    changes = {
        "rollout.total_steps": 12,
        "regime": {"provider": "schedule", "segments": segments},
        "evaluation": {"episodes": 2},
        "run": {"output_dir": str(tmp_path), "seeds": [0, 1]},
    }
    run = runs.load_run(build.run_experiment(document(**changes)).folder)
    assert [(row.step, row.trained) for row in run.evaluations if row.regime == "sum" and row.seed == 1] == [
        (0, None),
        (6, 8),
        (12, None),
    ]
    for stream in run.streams:
        rows = [row for row in run.evaluations if row.seed == stream.seed]
        built = evaluation_matrix(rows, stream.segments)
        assert built.steps == (0, 8, 12), "two updates of four answers have the first rule"
        assert np.isfinite(built.values).all()


def test_one_environment_serves_one_seed_and_no_groups():
    with pytest.raises(Refused, match="serves one seed"):
        build.run_experiment(document(**WINDOWS, **{"run.seeds": [0, 1]}), env=Arithmetic())
    with pytest.raises(Refused, match="plays many copies"):
        build.run_experiment(document(), env=Arithmetic())


def test_the_draws_of_an_extension_differ_by_run_seed_and_place():
    listed = [{"name": "prompt_replay"}, {"name": "prompt_replay"}, {"name": "prompt_replay", "kwargs": {"seed": 3}}]
    config = document(**{"algorithm.extensions": listed})
    seeds = [[hook.config.seed for hook in language._hooks(config, seed)] for seed in (0, 1)]
    assert len({*seeds[0][:2], *seeds[1][:2]}) == 4
    assert seeds[0][2] == seeds[1][2] == 3
