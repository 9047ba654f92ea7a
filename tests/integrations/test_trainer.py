"""What the trainer refuses, how it is derived, what its checkpoints hold."""

import functools
import importlib
import json
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("trl", reason="the extra trl is not installed")

import datasets
from trl import GRPOTrainer

from perdure.core.errors import ConfigError, DataError, PerdureError, Refused
from perdure.integrations import _checks, trl
from perdure.worlds.concierge.world import Concierge

PUBLIC = [
    *("PINNED_SYSTEM_PROMPT", "LanguageCode", "DEFAULT_KP", "DEFAULT_BETA_MIN", "DEFAULT_BETA_MAX", "BETA_KL"),
    *("EpisodeSampler", "EnvFactory", "RolloutGroupFn", "AdapterRecord", "render_initial_prompt"),
    *("EpisodeDatasetAdapter", "DriftCallGRPOTrainer", "make_driftcall_grpo_trainer_cls"),
    *("driftcall_grpo_trainer_methods", "AdaptiveKLCallback"),
]


def test_the_public_names_of_the_original_are_there():
    assert [name for name in PUBLIC if name not in trl.__all__ or not hasattr(trl, name)] == []
    assert (trl.DEFAULT_KP, trl.DEFAULT_BETA_MIN, trl.DEFAULT_BETA_MAX, trl.BETA_KL) == (2.0, 0.001, 1.0, 0.04)
    assert trl.driftcall_grpo_trainer_methods() == ("__init__", "_generate_and_score_completions")
    assert all(name in vars(trl.DriftCallGRPOTrainer) for name in trl.driftcall_grpo_trainer_methods())


@pytest.mark.parametrize("library", ["torch", "trl"])
def test_without_the_extra_the_module_says_which_to_install(library):
    program = f"import sys; sys.modules[{library!r}] = None; import perdure.integrations.trl"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    said = f"MissingExtra: {library} is not installed; install it with: pip install 'perdure[trl]'"
    assert finished.stderr.strip().endswith(said)


def test_perdure_itself_loads_neither_trl_nor_torch():
    program = (
        "import sys, perdure, perdure.integrations; print(sorted({'trl', 'torch', 'datasets'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_another_release_of_trl_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.17.1")
    monkeypatch.delitem(sys.modules, "perdure.integrations._required")
    with pytest.raises(Refused, match=r"trl 1\.17\.1 is installed; the trainer overrides methods of trl 1\.16"):
        importlib.import_module("perdure.integrations._required")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"environment_factory": trl.DriftCallToolEnv}, ConfigError, "both are given; give exactly one"),
        ({"rollout_group_fn": None}, ConfigError, "neither is given; give exactly one"),
        ({"env_factory": None}, ConfigError, "rollout_group_fn is given without env_factory"),
        ({"reward_fn_driftcall": None}, ConfigError, "rollout_group_fn is given without reward_fn_driftcall"),
        ({"remove_unused_columns": True}, ConfigError, "remove_unused_columns is True"),
        ({"beta": 0.0}, ConfigError, "beta is 0.0; an adaptive weight begins within"),
        ({"adaptive_kl_law": "log", "adaptive_kl_kp": 3.0}, ConfigError, "adaptive_kl_kp is 3.0"),
        ({"scale_rewards": "group"}, Refused, "makes over- and understated confidence pay"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, Refused, "sum_then_normalize"),
        (
            {"temperature": 0.9, "rollout_group_fn": trl.JsonRollout()},
            ConfigError,
            "temperature is 1.0 in rollout_group",
        ),
        ({"use_vllm": True}, ConfigError, "use_vllm is True, but rollout_group_fn generates by itself"),
        ({"train_dataset": datasets.Dataset.from_list([{"prompt": ""}])}, ConfigError, "lacks episode_seed, stage"),
        ({"train_dataset": [1, 2]}, ConfigError, "train_dataset is a list"),
        ({"max_steps": -1}, ConfigError, "train_dataset has no end; give the adapter steps, or max_steps"),
        (
            {"steps_per_generation": 4, "save_strategy": "steps", "save_steps": 3},
            ConfigError,
            "save_steps is 3, in the midst of completions that serve 4 micro-batches; .* multiples of 2 steps",
        ),
    ],
)
def test_what_could_only_go_wrong_is_refused_before_a_model_is_loaded(build, options, error, said):
    with pytest.raises(error, match=said):
        build("json", **{"max_steps": 1} | options)


def test_an_environment_says_its_reward_itself(build):
    with pytest.raises(ConfigError, match="reward_fn_driftcall is given beside environment_factory"):
        build("tools", max_steps=1, reward_fn_driftcall=trl.driftcall_reward)


def test_data_sets_have_one_generator_of_goals(build, watched, tokenizer):
    rows = watched.adapter(tokenizer, steps=2, task_gen=lambda **_: None)
    with pytest.raises(ConfigError, match="task_gen: data sets and trainer have different ones"):
        build("json", max_steps=1, eval_dataset={"validation": rows})


@pytest.mark.parametrize("route", ["tools", "json"])
def test_scaling_by_the_group_can_be_allowed(build, route):
    assert build(route, max_steps=1, scale_rewards="group", allow_improper=True).scale_rewards == "group"


def test_scaling_by_the_group_harms_no_improper_profile(build):
    legacy = functools.partial(Concierge, terse=True, profile="legacy-0.50")
    assert build("json", max_steps=1, scale_rewards="group", env_factory=legacy).scale_rewards == "group"


@pytest.mark.parametrize("scaling", ["none", "batch"])
def test_scaling_that_keeps_the_reward_proper_is_taken(build, scaling):
    assert build("json", max_steps=1, scale_rewards=scaling).scale_rewards == scaling


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"max_steps": 10}, 20),
        ({"max_steps": 3, "num_iterations": 2}, 4),
        ({"max_steps": 3, "steps_per_generation": 6}, 6),
        ({"max_steps": 4, "steps_per_generation": 6}, 12),
        ({"max_steps": -1}, None),
    ],
)
def test_a_data_set_is_as_long_as_the_training(watched, tmp_path, options, rows):
    assert _checks.groups_needed(watched.settings(tmp_path, **options)) == rows


def test_data_sets_of_stages_can_be_put_together(build, watched, tokenizer):
    parts = [
        watched.adapter(tokenizer, stage=stage, stage_base_seed=1_000_000 * stage, steps=1).to_dataset()
        for stage in (1, 2)
    ]
    rows = datasets.concatenate_datasets(parts)
    trainer = build("json", max_steps=1, train_dataset=rows, shuffle_dataset=False)
    trainer.train()
    assert [row["stage"] for row in trainer.batches[0]] == [1, 1, 2, 2]
    assert trainer.task_gen == trl.ConciergeTasks(watched.TERSE)


def test_the_class_can_stand_on_another_trainer():
    class Base(GRPOTrainer):
        pass

    assert trl.make_driftcall_grpo_trainer_cls() is trl.DriftCallGRPOTrainer
    assert trl.make_driftcall_grpo_trainer_cls(GRPOTrainer) is trl.DriftCallGRPOTrainer
    assert trl.make_driftcall_grpo_trainer_cls(Base).__mro__[1:3] == (trl.DriftCallGRPOTrainer, Base)
    with pytest.raises(ConfigError, match=r"base_cls is int, which is no trl\.GRPOTrainer"):
        trl.make_driftcall_grpo_trainer_cls(int)


def test_the_parts_are_attributes(build):
    trainer = build("json", max_steps=1)
    assert isinstance(trainer.rollout_group_fn, trl.JsonRollout)
    assert trainer.reward_fn_driftcall is trl.driftcall_reward
    assert trainer.adaptive_kl_callback.target_kl == 0.04
    assert build("json", max_steps=1, enable_adaptive_kl=False).adaptive_kl_callback is None


def test_a_controller_among_the_callbacks_is_the_trainers(build):
    given = trl.AdaptiveKLCallback(0.1, law="driftcall")
    trainer = build("json", max_steps=1, callbacks=[given])
    trainer.train()
    assert trainer.adaptive_kl_callback is given
    assert [type(each) for each in trainer.callback_handler.callbacks].count(trl.AdaptiveKLCallback) == 1
    assert trainer.state.log_history[0]["train/kl_target"] == 0.1
    with pytest.raises(ConfigError, match="callbacks has 2 AdaptiveKLCallbacks; beta has one controller"):
        build("json", max_steps=1, callbacks=[given, trl.AdaptiveKLCallback()])


def test_no_rows_are_refused(build):
    with pytest.raises(ValueError, match="a batch has no rows"):
        build("json", max_steps=1)._generate_and_score_completions([])


def test_a_checkpoint_holds_the_controller_and_what_was_not_yet_logged(build, runs):
    folder = runs[0].args.output_dir
    with open(f"{folder}/checkpoint-5/driftcall_state.json") as file:
        state = json.load(file)
    assert state["controller"]["controller"]["coefficient"] == runs[0].betas[10]
    assert state["metrics"] == {}


def test_what_was_not_yet_logged_is_logged_after_a_resume(build, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1, "logging_steps": 2, "max_steps": 2}
    straight, resumed = build("json", **options), build("json", **options)
    straight.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    names = ["reward", "kl", "episode/turns", "train/beta_adaptive", "rewards/driftcall/mean"]
    for name in names:
        assert resumed.state.log_history[0][name] == straight.state.log_history[0][name]


def test_checkpoints_that_cannot_be_resumed_from_are_refused(build, watched, tokenizer, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    build("json", **options).train()
    whole, torn = tmp_path / "run" / "checkpoint-1", tmp_path / "torn"
    shutil.copytree(whole, torn)
    (torn / "driftcall_state.json").unlink()
    options["max_steps"] = 2
    with pytest.raises(DataError, match=r"driftcall_state\.json is missing"):
        build("json", **options).train(resume_from_checkpoint=str(torn))
    with pytest.raises(ConfigError, match="enable_adaptive_kl is not what it was"):
        build("json", enable_adaptive_kl=False, **options).train(resume_from_checkpoint=str(whole))
    other = watched.adapter(tokenizer, stage=2)
    with pytest.raises(ConfigError, match=r"train_dataset begins with .*'stage': 2.*, but with .*'stage': 1.* when"):
        build("json", train_dataset=other, **options).train(resume_from_checkpoint=str(whole))
    with pytest.raises(DataError, match=r"completions that serve 4 micro-batches \(2 were done\)"):
        build("json", steps_per_generation=4, **options | {"save_steps": 2}).train(resume_from_checkpoint=str(whole))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", DataError, "driftcall_state.json is damaged"),
        ("[]", DataError, "driftcall_state.json is damaged"),
        ('{"metrics": {}}', DataError, "driftcall_state.json is damaged"),
        ('{"metrics": {"kl": 1}, "controller": null}', DataError, "driftcall_state.json is damaged"),
        ('{"metrics": {}, "controller": {"coefficient": 1}}', DataError, "driftcall_state.json is damaged"),
        ("SETTINGS 3", DataError, "driftcall_state.json is damaged"),
        ("COEFFICIENT null", DataError, "its weight is None"),
        ("COEFFICIENT 1e9", DataError, r"is damaged \(a weight of 1e\+09, outside \[0.001, 1\]\)"),
    ],
)
def test_a_damaged_state_is_refused_with_its_name(build, tmp_path, text, kind, said):
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    build("json", **options).train()
    checkpoint = tmp_path / "run" / "checkpoint-1"
    path = checkpoint / "driftcall_state.json"
    if text.startswith("COEFFICIENT"):
        state = json.loads(path.read_text())
        state["controller"]["controller"]["coefficient"] = json.loads(text.split()[1])
        text = json.dumps(state)
    if text.startswith("SETTINGS"):
        state = json.loads(path.read_text())
        state["controller"]["settings"] = json.loads(text.split()[1])
        text = json.dumps(state)
    path.write_text(text)
    with pytest.raises(kind, match=said):
        build("json", **options | {"max_steps": 2}).train(resume_from_checkpoint=str(checkpoint))


@pytest.mark.parametrize("route", ["tools", "json"])
def test_a_prompt_that_asks_for_something_else_is_refused_on_both_routes(build, watched, tokenizer, route):
    rows = watched.adapter(tokenizer, steps=2).to_dataset()
    rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": "Bake me a cake."}]})
    with pytest.raises(ConfigError, match=r"seed 100000[01]: the prompt says 'Bake me a cake.', the world asks for"):
        build(route, max_steps=1, train_dataset=rows).train()


def test_every_refusal_is_perdures_and_a_value_error():
    assert issubclass(ConfigError, PerdureError)
    assert issubclass(PerdureError, ValueError)
