"""The experiment document: defaults, hash, resolution, and an error for everything that cannot be meant."""

import hashlib
import json

import pytest

from perdure.core.errors import ConfigError, UnknownName
from perdure.harness.config import EnvironmentConfig, ExperimentConfig, RolloutConfig, RunConfig


def document(**sections):
    """A whole document; a keyword such as rollout__n_envs=3 changes one key, and None takes it away."""
    whole = {
        "environment": {"id": "perdure/cartpole"},
        "algorithm": {"name": "ppo", "kwargs": {"discount": 0.99}, "extensions": [{"name": "l2_init"}]},
        "rollout": {"total_steps": 400, "n_envs": 4},
        "regime": {
            "provider": "schedule",
            "segments": [
                {"id": "earth", "steps": 200},
                {"id": "heavy", "steps": 100, "params": {"gravity": 20.0}},
                {"id": "earth_again", "origin": "earth", "steps": 100},
            ],
        },
        "evaluation": {"every": 100},
        "run": {"seeds": [0, 1]},
    }
    for path, value in sections.items():
        section, _, key = path.partition("__")
        if key:
            whole.setdefault(section, {})[key] = value
        else:
            whole[section] = value
    return whole


def experiment(**sections):
    return ExperimentConfig.from_document(document(**sections))


def schedule(**sections):
    found = experiment(**sections).schedule()
    assert found is not None
    return found


def refusal(**sections):
    with pytest.raises(ConfigError) as caught:
        experiment(**sections)
    message = str(caught.value)
    assert len(message.splitlines()) <= 2
    return message


def test_defaults_are_filled_in():
    config = ExperimentConfig.from_document(
        {"environment": {"id": "CartPole-v1"}, "algorithm": {"name": "dqn"}, "rollout": {"total_steps": 10}}
    )
    assert (config.rollout.n_envs, config.rollout.window_steps) == (1, 128)
    assert (config.regime.provider, config.regime.boundary_source) == ("constant", "none")
    assert (config.evaluation.every, config.evaluation.episodes, config.evaluation.regimes) == (None, 8, "all")
    assert (config.run.seeds, config.run.output_dir, config.reward) == ((0,), "runs", None)


def test_every_key_has_a_description():
    schema = ExperimentConfig.model_json_schema()
    for name, section in schema["$defs"].items():
        assert section["description"], name
        for key, part in section["properties"].items():
            assert part["description"], f"{name}.{key}"


def test_sections_can_be_given_as_records():
    config = ExperimentConfig(
        environment=EnvironmentConfig(id="perdure/cartpole"),
        algorithm={"name": "ppo"},
        rollout=RolloutConfig(total_steps=8),
        run=RunConfig(seeds=(3,)),
    )
    assert config.run.seeds == (3,)
    assert config.rollout.total_steps == 8


def test_a_seed_is_a_list_of_one():
    config = experiment(run={"seed": 7})
    assert config.run.seeds == (7,)
    assert config.run.seed == 7


def test_steps_may_be_written_as_a_power_of_ten():
    assert experiment(evaluation__every=1e2).evaluation.every == 100


def test_provider_fields_may_stand_under_params():
    flat = experiment()
    regime = dict(document()["regime"])
    nested = experiment(regime={"provider": regime.pop("provider"), "params": regime})
    assert nested.schedule() == flat.schedule()
    assert nested.config_hash() == flat.config_hash()


def test_the_schedule_is_that_of_the_document():
    found = schedule(regime__boundary_source="oracle")
    assert [(s.id, s.origin, s.start, s.end) for s in found.segments] == [
        ("earth", "earth", 0, 200),
        ("heavy", "heavy", 200, 300),
        ("earth_again", "earth", 300, 400),
    ]
    assert found.boundary_source == "oracle"
    assert found.segments[1].params == {"gravity": 20.0}


def test_labels_of_the_environment_need_no_schedule():
    assert experiment(regime={"provider": "environment"}).schedule() is None


def test_resolved_documents_read_back_as_the_same_experiment():
    config = experiment(algorithm__kwargs={"clip": None, "hidden": (64, 64)}, reward=None)
    resolved = config.resolved()
    again = ExperimentConfig.from_document(json.loads(json.dumps(resolved)))
    assert again.resolved() == resolved
    assert again.config_hash() == config.config_hash()
    assert resolved["algorithm"]["kwargs"] == {"clip": None, "hidden": [64, 64]}
    assert resolved["evaluation"]["episodes"] == 8
    assert resolved["run"]["algorithm_id"] == "ppo"


def test_the_hash_is_that_of_the_canonical_json():
    config = experiment()
    resolved = config.resolved()
    del resolved["run"]["output_dir"], resolved["run"]["run_id"]
    text = json.dumps(resolved, sort_keys=True, separators=(",", ":"))
    assert config.config_hash() == hashlib.sha256(text.encode()).hexdigest()


def test_the_hash_ignores_places_and_notices_everything_else():
    config = experiment()
    assert experiment(run={"seeds": [0, 1], "output_dir": "x", "run_id": "y"}).config_hash() == config.config_hash()
    assert experiment(run__seeds=[0, 2]).config_hash() != config.config_hash()
    assert experiment(algorithm__kwargs={"discount": 0.9}).config_hash() != config.config_hash()


def test_a_run_is_named_after_task_algorithm_and_hash():
    config = experiment(algorithm__name="my_lab.agents:Agent")
    assert config.run_id == f"cartpole-my_lab.agents-Agent-{config.config_hash()[:6]}"
    assert str(experiment(run__run_id="mine").folder) == "runs/mine"


def test_meta_drops_what_is_unset():
    assert RunConfig().meta() == {"seed": 0}
    assert RunConfig(seeds=(0, 1), task="t").meta() == {"task": "t"}
    meta = experiment(run={"seeds": [5]}).meta()
    assert (meta["algorithm_id"], meta["task"], meta["seed"]) == ("ppo", "perdure/cartpole", 5)
    assert "family" not in meta


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"enviroment": {}}, "enviroment ({}) is not a key here; did you mean 'environment'?"),
        ({"seeds": [1]}, "seeds ([1]) is not a key here; it belongs elsewhere: write run.seeds"),
        ({"rollout__seed": 1}, "rollout.seed (1) is not a key here; it belongs elsewhere: write run.seed"),
        (
            {"run__total_steps": 1},
            "run.total_steps (1) is not a key here; it belongs elsewhere: write rollout",
        ),
        ({"evaluation__evry": 5}, "evaluation.evry (5) is not a key here; did you mean 'every'?"),
        ({"regime__segmnts": 5}, "regime.segmnts (5) is not a key here; did you mean 'segments'?"),
        ({"regime__every": 5}, "regime.every (5) is not a key here; it belongs elsewhere: write evaluation.every"),
        (
            {"algorithm__extensions": [{"nam": "redo"}]},
            "algorithm.extensions[0].nam ('redo') is not a key here; did",
        ),
    ],
)
def test_a_wrong_key_is_named_with_its_right_place(change, says):
    assert says in refusal(**change)


def test_a_hyper_parameter_is_sent_to_kwargs():
    assert refusal(algorithm__learning_rate=0.1).endswith("goes under algorithm.kwargs")


def test_fields_of_another_provider_name_it():
    message = refusal(regime={"segments": []})
    assert message.startswith("regime.segments is given")
    assert "schedule" in message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rollout__total_steps": "many"}, "rollout.total_steps is 'many'; it must be a whole number"),
        ({"rollout__n_envs": True}, "rollout.n_envs is True; it must be a whole number"),
        ({"rollout__n_envs": "4"}, "rollout.n_envs is '4'; it must be a whole number"),
        ({"rollout__total_steps": -5}, "rollout.total_steps is -5; it must be greater than 0"),
        ({"rollout__auto_reset": 1.5}, "rollout.auto_reset is 1.5; it must be true or false"),
        ({"rollout": 3}, "rollout is 3; it must be a mapping of keys to values"),
        ({"environment__id": 3}, "environment.id is 3; it must be text"),
        ({"environment": {}}, "environment.id is missing"),
        ({"environment": None}, "environment is missing"),
        ({"run__seeds": 4}, "run.seeds is 4; it must be a list"),
        ({"run__seeds": []}, "run.seeds is []; it must not be empty"),
        ({"run__seeds": [-1]}, "run.seeds[0] is -1; it must be greater than or equal to 0"),
        ({"run__run_id": "../up"}, "run.run_id is '../up'; it must be a folder's name"),
        ({"evaluation__regimes": "some"}, "evaluation.regimes is 'some'; it must be all, current or a list"),
        ({"evaluation__regimes": []}, "evaluation.regimes is []; it must be all, current or a list"),
        ({"regime__boundary_source": "oracel"}, "regime.boundary_source is 'oracel'; it must be 'none', 'oracle'"),
        ({"algorithm__kwargs": {"rate": float("nan")}}, "algorithm.kwargs.rate is nan, but a document holds finite"),
        ({"algorithm__kwargs": {"f": print}}, "algorithm.kwargs.f is <built-in function print>, a builtin_function"),
        ({"algorithm__kwargs": {1: 2}}, "algorithm.kwargs has the key 1, which is not text"),
        ({"reward": {}}, "reward.spec is missing"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(change, says):
    assert says in refusal(**change)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"rollout__total_steps": 402},
            "rollout.total_steps is 402, which is not a multiple of rollout.n_envs (4); use 400",
        ),
        ({"evaluation__every": 3}, "evaluation.every is 3, which is not a multiple of rollout.n_envs (4); use 4"),
        ({"run__checkpoint_every": 6}, "run.checkpoint_every is 6, which is not a multiple of rollout.n_envs (4)"),
        ({"rollout__total_steps": 300}, "'earth_again' never occurs"),
        ({"rollout__total_steps": 500}, "add up to 400 steps, but rollout.total_steps is 500"),
        ({"run__seeds": [1, 2, 1]}, "run.seeds holds 1 more than once"),
        ({"run": {"seed": 1, "seeds": [2]}}, "run.seed and run.seeds are both given"),
        ({"evaluation__regimes": ["erth"]}, "evaluation.regimes[0] is 'erth', a regime that never occurs"),
        ({"regime__boundary_source": "detector"}, "regime.detector is missing; name one of: cusum, page_hinkley"),
        ({"regime__detector": {"name": "cusum"}}, "regime.detector is given but regime.boundary_source is 'none'"),
        ({"regime": {"id": "a", "params": {"id": "b"}}}, "regime.params.id also stands as regime.id; keep one"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(change, says):
    assert says in refusal(**change)


def test_segments_must_end_with_all_copies():
    segments = [{"id": "a", "steps": 202}, {"id": "b", "steps": 198}]
    message = refusal(regime={"provider": "schedule", "segments": segments})
    assert "regime.segments[0]" in message
    assert "n_envs" in message


def test_a_repeated_schedule_need_not_add_up():
    repeated = document()["regime"] | {"repeat": True}
    assert schedule(rollout__total_steps=1000, regime=repeated).total_steps == 1000


def test_a_detectors_own_fields_are_checked():
    change = {"regime": {"boundary_source": "detector", "detector": {"name": "cusum", "kwargs": {"treshold": 1.0}}}}
    message = refusal(**change)
    assert message.startswith("regime.detector.kwargs.treshold")
    assert "threshold" in message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"algorithm__name": "pp"}, "algorithm.name is 'pp', which is not a registered name; did you mean 'ppo'?"),
        ({"algorithm__name": "redo"}, "algorithm.name is 'redo', which is an extension"),
        ({"algorithm__name": "my module:x"}, "a factory reads 'package.module:factory'"),
        ({"algorithm__extensions": [{"name": "reddo"}]}, "algorithm.extensions[0].name is 'reddo'"),
        ({"environment__id": "perdure/cartpol"}, "environment.id is 'perdure/cartpol'"),
        ({"regime": {"provider": "schedul"}}, "regime.provider is 'schedul'"),
        ({"regime": {"boundary_source": "detector", "detector": {"name": "cusm"}}}, "regime.detector.name is 'cusm'"),
    ],
)
def test_unknown_names_offer_the_nearest_one(change, says):
    with pytest.raises((UnknownName, ConfigError)) as caught:
        experiment(**change)
    assert says in str(caught.value)


def test_ppo_with_a_policy_section_is_meant_for_language():
    message = refusal(algorithm__policy={"factory": "a.b:c"})
    assert message == "algorithm.policy is given but algorithm.name is 'ppo'; did you mean lm/ppo?"


def test_a_factory_is_checked_by_its_form_alone():
    config = experiment(algorithm={"name": "nowhere.to_be:found", "policy": {"factory": "nowhere.to_be:policy"}})
    assert config.algorithm_id == "nowhere.to_be:found"
    assert "must read package.module:factory" in refusal(algorithm__policy={"factory": "nothing"})


def test_a_reward_is_checked_with_the_document():
    spec = {"components": [{"name": "env_scalar", "weight": 1.0}], "regime_overrides": {"heavy": {"env_scalar": 2.0}}}
    assert experiment(reward={"spec": spec}).reward is not None
    wrong = {**spec, "components": [{"name": "env_scalr", "weight": 1.0}]}
    assert "env_scalr" in refusal(reward={"spec": wrong})
    absent = {**spec, "regime_overrides": {"havy": {"env_scalar": 2.0}}}
    assert "reward.spec.regime_overrides.havy is given, a regime that never occurs" in refusal(reward={"spec": absent})


def test_documents_are_immutable():
    config = experiment()
    with pytest.raises(ValueError, match="frozen"):
        config.rollout.n_envs = 5
