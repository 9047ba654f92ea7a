"""The 23 defects of the original module, each shown to be gone in the real trainer. docs/trl.md says what each was."""

import inspect
import json
import pickle

import pytest

pytest.importorskip("trl", reason="the extra trl is not installed")

import datasets
import torch
from transformers import TrainerCallback
from transformers.integrations.integration_utils import rewrite_logs
from trl import GRPOTrainer

from perdure.core.errors import ConfigError, RunFailed
from perdure.integrations import _adaptive_kl, trl
from perdure.worlds.concierge.world import Concierge

LOGGED = [f"train/{name}" for name in _adaptive_kl.FIELDS]


def steps(trainer):
    """The log entries of the training steps."""
    return [entry for entry in trainer.state.log_history if "kl" in entry]


class Flaky(Concierge):
    """A concierge whose step fails as often as `armed` says, over all worlds."""

    armed = 0

    def step(self, action):
        if Flaky.armed:
            Flaky.armed -= 1
            raise RuntimeError("the vendor's server is gone")
        return super().step(action)


def flaky(route):
    """Parts of a trainer whose worlds may fail."""
    if route == "json":
        return {"env_factory": lambda: Flaky(terse=True)}
    return {"environment_factory": lambda: trl.DriftCallToolEnv(lambda: Flaky(protocol="native", terse=True))}


def test_defect_01_an_adapter_is_a_data_set_that_trl_takes(runs):
    for trainer in runs:
        assert isinstance(trainer.train_dataset, datasets.Dataset)
        assert trainer.state.global_step == 10


def test_defect_02_a_batch_has_every_tensor_that_the_loss_reads(runs):
    needed = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"}
    needed |= {"ref_per_token_logps", "tool_mask"}
    if runs[0].rollout_group_fn is not None:
        needed |= {"sampling_per_token_logps"}
    for output in runs[0].outputs:
        assert set(output) == needed
        assert output["advantages"].shape == (4,)
        assert output["tool_mask"].shape == output["completion_ids"].shape == output["ref_per_token_logps"].shape


def test_defect_03_rewards_and_advantages_are_trls_own(runs):
    trainer = runs[0]
    rewards = torch.tensor(list(trainer._logs["rewards"].values())).sum(0).view(2, 2)
    expected = (rewards - rewards.mean(1, keepdim=True)).flatten()
    assert torch.allclose(torch.tensor(list(trainer._logs["advantages"])), expected, atol=1e-6)
    assert expected.abs().max() > 0
    for name in ("_calculate_rewards", "compute_loss", "_prepare_inputs", "_generate"):
        assert getattr(trl.DriftCallGRPOTrainer, name) is getattr(GRPOTrainer, name)


def test_defect_04_the_reward_goes_through_trl(runs):
    name = "driftcall" if runs[0].rollout_group_fn is not None else "DriftCallToolEnv"
    for entry in steps(runs[0]):
        parts = entry[f"rewards/{name}/mean"] + entry["rewards/variety/mean"]
        assert entry["reward"] == pytest.approx(parts, abs=1e-5)
        assert entry["reward_std"] > 0
        assert entry["frac_reward_zero_std"] < 1
        assert 0.2 < entry[f"rewards/{name}/mean"] < 0.4


def test_defect_05_the_beta_that_is_logged_is_the_beta_of_the_loss(runs):
    trainer = runs[0]
    logged = [entry["train/beta_adaptive"] for entry in steps(trainer)]
    assert trainer.betas[:2] == [0.04, 0.04]
    assert trainer.betas[2:] == pytest.approx([beta for beta in logged[:-1] for _ in range(2)])
    assert trainer.beta == pytest.approx(logged[-1])
    assert len(set(logged)) > 2
    assert trainer.args.beta == 0.04


def test_defect_06_everything_that_is_needed_is_in_the_package(runs):
    assert trl.BETA_KL == 0.04
    assert {type(each).__module__.partition(".")[0] for each in (runs[0].task_gen, runs[0].adaptive_kl_callback)} == {
        "perdure"
    }


def test_defect_07_every_row_of_a_batch_is_played_in_its_own_group(build):
    calls = []

    class Noted(trl.JsonRollout):
        def __call__(self, **given):
            calls.append((given["episode_seed"], given["num_generations"]))
            return super().__call__(**given)

    trainer = build("json", max_steps=2, rollout_group_fn=Noted(max_turn_tokens=4, max_episode_tokens=24))
    trainer.train()
    assert calls == [(1_000_000 + row, 2) for row in range(4)]


def test_defect_07_every_environment_stands_in_the_world_of_its_row(build):
    trainer = build("tools", max_steps=1)
    trainer.train()
    assert [each.world.task.seed for each in trainer.environments] == [1_000_000, 1_000_000, 1_000_001, 1_000_001]


@pytest.mark.parametrize("route", ["tools", "json"])
def test_defect_08_evaluation_has_its_own_number_of_generations(build, watched, tokenizer, route):
    calls = []

    class Noted(trl.JsonRollout):
        def __call__(self, **given):
            calls.append(given["num_generations"])
            return super().__call__(**given)

    options = {"eval_dataset": watched.adapter(tokenizer, steps=2, stage_base_seed=20_000_000)}
    if route == "json":
        options |= {"rollout_group_fn": Noted(max_turn_tokens=4, max_episode_tokens=24)}
    trainer = build(route, num_generations_eval=3, per_device_eval_batch_size=3, **options)
    beta, metrics = trainer.beta, trainer.evaluate()
    seeds = sorted([row["episode_seed"] for row in batch] for batch in trainer.batches)
    assert seeds == [[20_000_000] * 3, [20_000_001] * 3]
    assert calls == ([3, 3] if route == "json" else [])
    assert metrics["eval_episode/turns"] >= 1
    assert trainer.beta == beta


def test_defect_09_the_tokens_that_were_sampled_are_the_tokens_that_are_scored(build):
    trainer = build("json", max_steps=1, learning_rate=0.0)
    trainer.train()
    output = trainer.outputs[0]
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    with torch.no_grad():
        scored, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, output["completion_ids"].shape[1]
        )
    chosen = (output["tool_mask"] * output["completion_mask"]).bool()
    assert chosen.sum() > 16
    assert not chosen.all()
    assert torch.allclose(scored[chosen], output["sampling_per_token_logps"][chosen], atol=1e-4)


def test_defect_09_what_the_world_says_is_masked_in_the_json_route(build, watched, tokenizer):
    rollout = watched.JsonOracle(max_turn_tokens=200, max_episode_tokens=2000)
    trainer = build("json", max_steps=1, max_completion_length=2000, reward_funcs=None, rollout_group_fn=rollout)
    trainer.train()
    output = trainer.outputs[0]
    for row in range(4):
        said, heard = spoken(tokenizer, output, row)
        actions = [json.loads(each) for each in said.split("<|im_end|>")[:-1]]
        assert [next(iter(action)) for action in actions] == ["tool", "tool", "tool", "submit"]
        assert heard.count("turns left") == 3
        assert '"tool"' not in heard
    assert steps(trainer)[0]["reward"] == 1
    assert steps(trainer)[0]["episode/success"] == 1


def test_defect_09_what_the_world_says_is_masked_in_the_tool_route(build, watched, tokenizer):
    trainer = build("tools", kind=watched.ToolOracle, max_steps=1, max_completion_length=2000, reward_funcs=None)
    trainer.train()
    output = trainer.outputs[0]
    for row in range(4):
        said, heard = spoken(tokenizer, output, row)
        calls = said.split("<|im_end|>")[:-1]
        names = [
            json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] for call in calls[:-1]
        ]
        assert names[-1] == "submit"
        assert calls[-1] == "Done."
        assert heard.count("<tool_response>") == len(names) == 4
        assert "<tool_call>" not in heard
    assert steps(trainer)[0]["reward"] == 1
    assert steps(trainer)[0]["episode/success"] == 1


def spoken(tokenizer, output, row):
    """The text that the model is trained on, and the rest of the completion."""
    chosen = output["tool_mask"][row].bool() & output["completion_mask"][row].bool()
    others = ~output["tool_mask"][row].bool() & output["completion_mask"][row].bool()
    return tuple(tokenizer.decode(output["completion_ids"][row][mask]) for mask in (chosen, others))


@pytest.mark.parametrize("route", ["tools", "json"])
def test_defect_10_seed_stage_and_languages_of_the_row_make_the_world(build, watched, tokenizer, route):
    worlds = []

    class Noted(Concierge):
        def reset(self, **given):
            found = super().reset(**given)
            worlds.append((self.task.seed, self.task.stage, self.task.goal.language, self.task.goal.utterance))
            return found

    rows = watched.adapter(
        tokenizer, env_factory=Noted, stage=2, stage_base_seed=2_000_000, language_weights={"ta": 0.5, "kn": 0.5}
    )
    parts = {
        "json": {"env_factory": Noted, "max_completion_length": 16},
        "tools": {"environment_factory": lambda: trl.DriftCallToolEnv(lambda: Noted(protocol="native"))},
    }
    trainer = build(route, max_steps=1, train_dataset=rows, **parts[route])
    prompts = [row["prompt"][-1]["content"] for row in trainer.train_dataset]
    worlds.clear()
    trainer.train()
    expected = [(2_000_000 + row, 2, prompt) for row, prompt in enumerate(prompts)]
    assert {(seed, stage, said) for seed, stage, _, said in worlds} == set(expected)
    assert {language for _, _, language, _ in worlds} <= {"ta", "kn"}


def test_defect_11_prompts_are_messages_and_the_tools_are_told(runs, tokenizer):
    trainer = runs[0]
    prompt = trainer.train_dataset[0]["prompt"]
    assert [message["role"] for message in prompt] == ["system", "user"]
    assert prompt[0]["content"] == trl.PINNED_SYSTEM_PROMPT
    told = tokenizer.decode(trainer.outputs[0]["prompt_ids"][0][trainer.outputs[0]["prompt_mask"][0].bool()])
    assert told.startswith("<|im_start|>system")
    assert told.count("<|im_start|>") == 3
    assert prompt[1]["content"] in told
    assert ("airline_search" if trainer.rollout_group_fn is None else "airline.search") in told or "hotel" in told


def test_defect_12_steps_come_once_each_in_order_also_after_a_resume(runs):
    straight, resumed = ([row["step"] for batch in run.batches for row in batch[::2]] for run in runs)
    assert straight == list(range(20))
    assert resumed == list(range(10, 20))
    assert len(runs[0].train_dataset) == 20
    assert runs[0].state.epoch == 1


def test_defect_13_rows_are_plain_columns(runs, tmp_path):
    rows = runs[0].train_dataset
    rows.to_parquet(tmp_path / "rows.parquet")
    again = datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    assert again.to_list() == rows.to_list()
    assert rows[0]["language_weights"] == {"hi": 0, "ta": 0, "kn": 0, "en": 0.5, "hinglish": 0.5}


def test_defect_14_beta_does_not_slam_to_its_floor_while_the_policy_is_still_the_reference(build, runs):
    trainer = build("json", max_steps=2, adaptive_kl_law="log")
    trainer.train()
    assert [entry["train/beta_adaptive"] for entry in steps(trainer)] == pytest.approx([0.04, 0.04])
    published = [entry["train/beta_adaptive"] for entry in steps(runs[0])]
    assert published[0] == pytest.approx(0.04 * 2.718281828**-2)


def test_defect_15_beta_and_its_controller_come_back_with_a_checkpoint(runs, watched):
    straight, resumed = runs
    assert resumed.betas == straight.betas[10:]
    assert resumed.adaptive_kl_callback.state() == straight.adaptive_kl_callback.state()
    assert torch.equal(watched.weights(resumed), watched.weights(straight))
    clocks = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"}
    histories = [[{k: v for k, v in e.items() if k not in clocks} for e in run.state.log_history] for run in runs]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("bound", [False, True])
def test_defect_16_the_fields_reach_history_and_reporters(build, bound):
    reports = []

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            reports.append(dict(logs))

    options = {"enable_adaptive_kl": False} if bound else {}
    trainer = build("json", max_steps=1, callbacks=[Reporter()], **options)
    if bound:
        trl.AdaptiveKLCallback(law="driftcall").bind(trainer)
    trainer.train()
    assert [name for name in LOGGED if name in steps(trainer)[0]] == LOGGED
    assert trainer.beta < 0.04
    if not bound:
        assert [name for name in LOGGED if name in rewrite_logs(reports[0])] == LOGGED
    else:
        assert [name for name in LOGGED if name in reports[0]] == LOGGED


def test_defect_17_a_clamp_is_what_cuts_and_no_divergence_is_negative(runs):
    before = 0.04
    flags = []
    for entry in steps(runs[0]):
        factor = torch.tensor(2.0 * (entry["train/kl_measured"] / 0.04 - 1)).exp().item()
        flags.append(entry["train/beta_clamped_to_min"])
        assert flags[-1] == (before * factor < 0.001)
        assert entry["train/beta_clamped_to_max"] == (before * factor > 1)
        before = entry["train/beta_adaptive"]
    assert set(flags) == {0, 1}
    assert min(entry["train/kl_measured"] for entry in steps(runs[0])) >= 0


@pytest.mark.parametrize("route", ["tools", "json"])
def test_defect_18_a_world_that_fails_costs_its_episode_alone(build, monkeypatch, route):
    monkeypatch.setattr(Flaky, "armed", 1)
    trainer = build(route, max_steps=1, reward_funcs=None, **flaky(route))
    trainer.train()
    entry, output = steps(trainer)[0], trainer.outputs[0]
    assert entry["episode/fault"] == 0.25
    assert 0.2 < entry["reward"] < 0.4
    assert output["advantages"][0] == 0
    if route == "json":
        assert output["tool_mask"][0][output["completion_mask"][0].bool()].sum() == 0
        assert output["tool_mask"][1].sum() > 0


def test_defect_18_a_batch_without_a_sound_episode_ends_the_run(build, monkeypatch):
    monkeypatch.setattr(Flaky, "armed", 100)
    with pytest.raises(RunFailed, match="all 4 episodes of a batch failed, the first with: RuntimeError: the vendor"):
        build("json", max_steps=1, **flaky("json")).train()


@pytest.mark.parametrize(
    ("rewards", "error", "said"),
    [
        (lambda episodes: [1.0] * (len(episodes) - 1), ConfigError, "3 rewards for 4 episodes"),
        (lambda episodes: [float("nan")] * len(episodes), RunFailed, "gave nan for the episode of seed 1000000"),
    ],
)
def test_defect_18_rewards_are_one_each_and_finite(build, rewards, error, said):
    trainer = build("json", max_steps=1, reward_fn_driftcall=lambda **given: rewards(given["episodes"]))
    with pytest.raises(error, match=said):
        trainer.train()


def test_defect_19_a_wrong_number_of_generations_is_refused(build):
    class Short(trl.JsonRollout):
        def __call__(self, **given):
            return tuple(each[:-1] for each in super().__call__(**given))

    trainer = build("json", max_steps=1, rollout_group_fn=Short(max_turn_tokens=4, max_episode_tokens=24))
    with pytest.raises(ValueError, match="gave 1 episodes for num_generations 2"):
        trainer.train()


def test_defect_09_text_is_no_completion(build):
    class Text(trl.JsonRollout):
        def __call__(self, **given):
            episodes, _ = super().__call__(**given)
            return episodes, ['{"abort": true}'] * 2

    trainer = build("json", max_steps=1, rollout_group_fn=Text(max_turn_tokens=4, max_episode_tokens=24))
    with pytest.raises(ConfigError, match=r"completion of type str; give a perdure\.lm\.trajectory\.Trajectory"):
        trainer.train()


def test_defect_20_the_class_has_a_name_a_signature_and_a_cooperative_order(build, watched):
    assert pickle.loads(pickle.dumps(trl.DriftCallGRPOTrainer)) is trl.DriftCallGRPOTrainer
    parameters = inspect.signature(trl.DriftCallGRPOTrainer).parameters.values()
    assert all(each.annotation is not each.empty for each in parameters)
    assert not [each for each in parameters if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]

    class Base(GRPOTrainer):
        generated = 0

        def _generate_and_score_completions(self, inputs):
            self.generated += 1
            return super()._generate_and_score_completions(inputs)

    made = trl.make_driftcall_grpo_trainer_cls(Base)
    trainer = build("json", kind=made, max_steps=1)
    trainer.train()
    assert isinstance(trainer, (trl.DriftCallGRPOTrainer, Base))
    assert trainer.generated == 1


def test_defect_21_every_part_of_the_adapter_is_used(watched, tokenizer):
    calls = []
    tasks = trl.ConciergeTasks(watched.TERSE)

    def generated(**given):
        calls.append(given["seed"])
        return tasks(**given)

    rows = watched.adapter(tokenizer, task_gen=generated)
    assert rows[3]["_meta"]["goal"] == rows(3).goal == rows.peek(3).goal
    assert calls == [1_000_003] * 3
    assert rows.peek(0).language_weights is rows.peek(1).language_weights
    other = watched.adapter(tokenizer, task_gen=lambda seed, **given: tasks(seed=seed + 1, **given))
    with pytest.raises(ConfigError, match="the world of env_factory does not ask for it"):
        other.to_dataset(1)


def test_defect_22_trls_real_trainer_trains(runs):
    trainer = runs[0]
    assert isinstance(trainer, GRPOTrainer)
    reference = dict(trainer.ref_model.named_parameters())
    moved = [name for name, each in trainer.model.named_parameters() if not torch.equal(each, reference[name])]
    assert len(moved) > 20
    losses = torch.tensor([entry["loss"] for entry in steps(trainer)])
    assert losses.isfinite().all()
    assert losses[1:].abs().max() > 0
    assert steps(trainer)[-1]["kl"] > steps(trainer)[0]["kl"] == 0


def test_defect_23_all_rows_of_a_group_speak_at_once(build, watched):
    batches = []

    class Noted(watched.JsonOracle):
        def _voice(self, model, tokenizer):
            voice = super()._voice(model, tokenizer)
            generate = voice.sampler.generate
            voice.sampler.generate = lambda rows, *given: batches.append(list(rows)) or generate(rows, *given)
            return voice

    rollout = Noted(max_turn_tokens=200, max_episode_tokens=2000)
    options = {"max_completion_length": 2000, "num_generations": 4, "reward_funcs": None, "max_steps": 1}
    build("json", rollout_group_fn=rollout, **options).train()
    assert batches == [[0, 1, 2, 3]] * 4
