"""Pipelines: one document from sft to a verified bundle; nothing finished is run again; kill -9 costs nothing."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors import safe_open

from perdure.core.errors import ConfigError, DataError, Refused
from perdure.harness import export
from perdure.harness.runs import read_lines
from perdure.lm.factory import language_policy
from perdure.lm.policy import LanguagePolicy
from perdure.lm.stages import sections
from perdure.pipeline import Pipeline

DOCUMENT = yaml.safe_load("""
stages:
  sft:
    data: {expert: {episodes: 24}}
    filter: {min_reward: 1.0}
    steps: 24
    batch: 16
    learning_rate: 3.0e-3
    evaluate_every: 8
    checkpoint_every: 8
  value: {rollouts: {runs: 2, episodes: 16}, steps: 40, evaluate_every: 10, checkpoint_every: 15, lam: 0.9}
  lcm: {rollouts: {runs: 4, episodes: 6}, steps: 24, evaluate_every: 6, checkpoint_every: 8, patience: 9}
  export: {}
environment: {id: perdure/arithmetic}
algorithm:
  name: lm/ppo
  kwargs: {learning_rate: 3.0e-4, epochs: 1, minibatch: 16}
  extensions: [{name: latent_context, kwargs: {told_steps: 2, encoder: {steps: 3, width: 32}}}]
  policy:
    kwargs: {tiny: {width: 32, layers: 2, context: 128}, max_new_tokens: 6}
rollout: {total_steps: 64, n_envs: 8, window_steps: 2}
regime:
  provider: schedule
  segments:
    - {id: sum, steps: 32, params: {operator: 0, format: 0}}
    - {id: larger, steps: 32, params: {operator: 2, format: 1}}
evaluation: {episodes: 4}
run: {checkpoint_every: 16}
""")

KILLED = """
import json, os, sys, tempfile
from perdure.harness import checkpoint
from perdure.lm.factory import language_policy
from perdure.pipeline import Pipeline

values = json.load(sys.stdin)
with tempfile.TemporaryDirectory() as folder:  # All that is imported late is imported once, before any fork.
    language_policy(**values["algorithm"]["policy"]["kwargs"]).save(folder)
    language_policy(folder)
written = checkpoint.write_checkpoint


def die(*_):
    os.kill(os.getpid(), 9)


def die_at_the_second(run, step, save, counts):
    def torn(folder):
        save(folder)
        die()

    return written(run, step, torn if step == 32 else save, counts)


for mark in ("sft: step 24 ", "value: run 1 ", "value: step 30 ", "lcm: run 3", "lcm: step 12 ", "rl"):
    child = os.fork()
    if child == 0:
        if mark == "rl":
            checkpoint.write_checkpoint = die_at_the_second
        Pipeline(values).run(say=lambda text: die() if text.startswith(mark) else None)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == -9, (mark, code)
"""


def document(output, **changes):
    """The document with sections replaced, or (by "a.b.c") single values."""
    values = copy.deepcopy(DOCUMENT)
    values["run"]["output_dir"] = str(output)
    for path, value in changes.items():
        *above, last = path.split(".")
        part = values
        for name in above:
            part = part[name]
        if value is None:
            del part[last]
        else:
            part[last] = value
    return values


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(the pipeline, its steps, what it said) of a whole chain."""
    chain, said = Pipeline(document(tmp_path_factory.mktemp("done"))), []
    return chain, chain.run(say=said.append), said


def content(file):
    """The bytes of a file; of tensors each alone, since the order of a header is left to chance."""
    if file.suffix != ".safetensors":
        return file.read_bytes()
    with safe_open(file, "np") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return opened.metadata(), {name: (each.dtype, each.shape, each.tobytes()) for name, each in tensors.items()}


def results(chain):
    """Everything that was trained or measured, by name."""
    found = {}
    for name in ("sft", "value", "lcm"):
        for file in chain.folder(name).iterdir():
            if file.suffix in (".safetensors", ".jsonl") or file.name == "data.json":
                found[f"{name}/{file.name}"] = content(file)
    run = chain.folder("rl")
    for file in (*run.glob("checkpoints/000000000064/**/*.safetensors"), run / "evaluations.jsonl"):
        found[f"rl/{file.relative_to(run)}"] = content(file)
    return found


def test_a_document_becomes_a_verified_bundle(done):
    chain, steps, _ = done
    assert [(step.name, step.status) for step in steps] == [
        (name, "finished") for name in ("sft", "value", "lcm", "rl", "export")
    ]
    for name in ("sft", "value", "lcm"):
        lines = read_lines(chain.folder(name) / "metrics.jsonl", [])
        assert min(line["loss"] for line in lines) < lines[0]["loss"], name
        assert not (chain.folder(name) / "checkpoints").exists()
        told = json.loads((chain.folder(name) / "stage.json").read_text())
        assert told["result"]["first"]["loss"] == lines[0]["loss"]
    assert export.verify(chain.folder("export")) == []
    assert LanguagePolicy.from_checkpoint(chain.folder("export") / "policy" / "seed-0").loaded_value_head


def test_each_stage_is_the_policy_of_the_next(done):
    chain, _, _ = done
    assert chain.policy_kwargs("value")["name_or_path"] == str(chain.folder("sft"))
    kwargs = chain.experiment.algorithm.policy.kwargs
    assert kwargs == {"name_or_path": str(chain.folder("value")), "value_head": "required", "max_new_tokens": 6}
    [extension] = chain.experiment.algorithm.extensions
    assert extension.kwargs["warmup"] == str(chain.folder("lcm"))
    assert extension.kwargs["labels"] == ["sum", "larger"]
    after_sft, after_value = (
        language_policy(chain.folder(name), value_head=head) for name, head in (("sft", None), ("value", "required"))
    )
    assert not after_sft.loaded_value_head
    pairs = zip(after_sft.model.state_dict().values(), after_value.model.state_dict().values(), strict=True)
    assert all(one.equal(other) for one, other in pairs), "the critic's stage leaves the policy as it was"


def test_what_is_finished_is_not_run_again(done):
    chain, steps, _ = done
    before = {file: file.stat().st_mtime_ns for step in steps for file in step.folder.rglob("*.*")}
    said = []
    assert Pipeline(document(chain.config.run.output_dir)).run(say=said.append) == steps
    assert [line.split(",")[0] for line in said] == [
        *(f"{name}: finished before" for name in ("sft", "value", "lcm", "rl")), "export: whole and unchanged",
    ]  # fmt: skip
    assert {file: file.stat().st_mtime_ns for step in steps for file in step.folder.rglob("*.*")} == before


def test_killed_in_every_stage_it_ends_as_if_it_had_not_been(done, tmp_path):
    values = document(tmp_path / "killed")
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    finished = subprocess.run(
        [sys.executable, "-c", KILLED], input=json.dumps(values), text=True, capture_output=True, env=environment
    )
    assert finished.returncode == 0, finished.stderr
    chain = Pipeline(values)
    assert [step.status for step in chain.plan()] == ["finished", "finished", "finished", "begun", "new"]
    chain.run()
    expected, found = results(done[0]), results(chain)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def addresses(**changes):
    chain = Pipeline(document("runs", **changes))
    return {step.name: step.folder.name for step in chain.plan()}


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"stages.sft.steps": 25}, {"sft", "value", "lcm", "rl", "export"}),
        ({"stages.sft.checkpoint_every": 9, "stages.sft.batch": 16}, set()),
        ({"stages.value.lam": 0.8}, {"value", "lcm", "rl", "export"}),
        ({"algorithm.kwargs.gamma": 0.9}, {"value", "lcm", "rl", "export"}),
        ({"stages.lcm.steps": 25}, {"lcm", "rl", "export"}),
        ({"algorithm.kwargs.learning_rate": 1e-4}, {"rl", "export"}),
        ({"environment.kwargs": {"invalid_cost": 0.2}}, {"sft", "value", "lcm", "rl", "export"}),
    ],
)
def test_a_folder_is_named_by_what_goes_into_it(changes, moved):
    first, second = addresses(), addresses(**changes)
    assert {name for name in first if first[name] != second[name]} == moved


def test_another_version_and_other_data_have_folders_of_their_own(tmp_path, monkeypatch):
    file = tmp_path / "t.jsonl"
    source = {"stages.sft.data": {"file": str(file)}}
    file.write_text("{}\n")
    first = addresses(**source)["sft"]
    file.write_text("{} \n")
    second = addresses(**source)["sft"]
    monkeypatch.setattr("perdure.lm.stages.folder.metadata.version", lambda _: "99")
    assert len({first, second, addresses(**source)["sft"]}) == 3


def test_other_files_of_a_world_have_folders_of_their_own(tmp_path):
    (tmp_path / "words").mkdir()
    words = tmp_path / "words" / "own.toml"
    world = {"environment": {"id": "perdure/concierge", "kwargs": {"terse": True, "data": [str(tmp_path)]}}}
    regime = {"regime": {"provider": "schedule", "segments": [{"id": "calm", "steps": 64, "params": {"stage": 1}}]}}
    found = []
    for english in ("in the station", "at the station", "in the station"):
        words.write_text(f'[place.station]\nen = "{english}"\n', encoding="utf-8")
        found.append(addresses(**world, **regime, **{"stages.lcm": None, "algorithm.extensions": []}))
    assert found[0] == found[2]
    assert not set(found[0].values()) & set(found[1].values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stages": None}, "stages is missing; add stages"),
        ({"stages.sft.stepz": 3}, "stages.sft.stepz (3) is not a key here; did you mean 'steps'?"),
        ({"stages.sft.data.expert.episode": 3}, "stages.sft.data.expert.episode (3) is not a key here; did you mean"),
        ({"stages.stf": {}}, "stages.stf ({}) is not a key here; did you mean 'sft'?"),
        ({"stages.sft.learning_rate": -1.0}, "stages.sft.learning_rate is -1.0; it must be greater than 0"),
        ({"stages.sft.steps": 2.5}, "stages.sft.steps is 2.5; it must be a"),
        ({"stages.sft.batch": "8"}, "stages.sft.batch is '8'; it must be a"),
        (
            {"stages.sft.warmup_steps": 24},
            "warmup_steps and hold_steps are 24 and 0; together they must be below steps (24)",
        ),
        ({"stages.sft.hold_steps": 30}, "and 30; together they must be below steps (24)"),
        (
            {"stages.sft.schedule": "constant", "stages.sft.hold_steps": 3},
            "hold_steps is 3 with schedule constant, which never falls; leave it out",
        ),
        ({"stages.sft.vocabulary": 259}, "stages.sft.vocabulary is 259; it must be greater than or equal to 260"),
        ({"stages.sft.opening_steps": 25}, "opening_steps is 25; it is at most steps (24)"),
        ({"stages.sft.data": {}}, "stages.sft.data has neither of file and expert; give one of them"),
        ({"stages.sft.data.file": "x.jsonl"}, "stages.sft.data has both of file and expert"),
        ({"stages.sft.data": None}, "stages.sft.data is missing; give it a value"),
        ({"stages.sft.data.expert.regimes": ["sun"]}, "stages.sft.data.expert.regimes[0] is 'sun', which never occurs"),
        (
            {"stages.sft.vocabulary": 400, "algorithm.policy.kwargs.lora": {"r": 2}},
            "stages.sft.vocabulary is set, but algorithm.policy.kwargs has lora",
        ),
        (
            {"stages.sft.vocabulary": 400, "algorithm.policy.kwargs.tiny.tokenizer": "x.json"},
            "stages.sft.vocabulary is set, but algorithm.policy.kwargs has tiny.tokenizer",
        ),
        ({"stages.lcm.file": "x.jsonl"}, "stages.lcm.rollouts is given beside stages.lcm.file"),
        ({"stages.value": None}, "stages.value is missing: lm/ppo trains a critic, and sft leaves none"),
        ({"algorithm.extensions": None}, "stages.lcm is given, but nothing of the document reads an encoder"),
        (
            {"algorithm.extensions": [{"name": "latent_context", "kwargs": {"warmup": "x"}}]},
            "algorithm.extensions[0].kwargs.warmup is given beside stages.lcm",
        ),
    ],
)
def test_a_wrong_document_is_refused_at_once(changes, said):
    with pytest.raises(ConfigError) as caught:
        Pipeline(document("runs", **changes))
    assert said in str(caught.value)


def test_what_cannot_hand_on_a_policy_is_refused():
    with pytest.raises(Refused, match="stages are for language policies"):
        Pipeline(document("runs", **{"algorithm": {"name": "ppo"}, "environment.id": "perdure/cartpole"}))
    with pytest.raises(Refused, match="takes no name_or_path"):
        Pipeline(document("runs", **{"algorithm.policy.factory": "perdure.core.seeds:stream"}))


def test_without_a_critic_to_train_none_is_asked_for():
    changes = {"stages.value": None, "stages.lcm": None, "algorithm.extensions": None}
    groups = {"algorithm.name": "lm/grpo", "algorithm.kwargs": {}, "rollout": {"total_steps": 64}}
    chain = Pipeline(document("runs", **changes, **groups))
    assert "value_head" not in chain.experiment.algorithm.policy.kwargs
    fresh = Pipeline(document("runs", **changes, **{"algorithm.policy.kwargs.value_head": "fresh"}))
    assert fresh.experiment.algorithm.policy.kwargs["value_head"] == "fresh"


def test_an_adapter_is_tuned_and_handed_on_over_its_base(tmp_path):
    lora = {"algorithm.policy.kwargs.lora": {"r": 2}, "stages.sft.steps": 4, "stages.value.steps": 4}
    chain = Pipeline(document(tmp_path, **lora))
    for name in ("sft", "value"):
        folder = chain.run_stage(name).folder
        assert (folder / "adapter_config.json").is_file()
        assert not (folder / "model.safetensors").exists(), "the base is kept by reference"
    assert "lora" not in chain.experiment.algorithm.policy.kwargs
    policy = language_policy(**chain.experiment.algorithm.policy.kwargs)
    trained = {name: each for name, each in policy.model.named_parameters() if "lora_B" in name}
    assert any(each.detach().any() for each in trained.values())


def test_a_vocabulary_is_learned_once_and_handed_on_with_the_weights(tmp_path):
    chain = Pipeline(document(tmp_path, **{"stages.sft.vocabulary": 266, "stages.sft.steps": 2}))
    folder = chain.run_stage("sft").folder
    policy = language_policy(
        **chain.experiment.algorithm.policy.kwargs | {"value_head": "fresh", "name_or_path": folder}
    )
    assert policy.model.get_input_embeddings().num_embeddings == len(policy.tokenizer) == 266
    card = json.loads((folder / "data.json").read_text())
    assert card["counts"]["encoded_anew"] == 0


def test_a_file_of_trajectories_tunes_as_well(tmp_path):
    file = tmp_path / "trajectories.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"sum {a} 1 as N"}, {"role": "assistant", "content": f"{a + 1}"}]}
        for a in range(8)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"messages": [')
    said = []
    changes = {"stages.sft.data": {"file": str(file)}, "stages.sft.filter": {}, "stages.sft.steps": 4}
    other = Pipeline(document(tmp_path, **changes))
    folder = other.run_stage("sft", say=said.append).folder
    card = json.loads((folder / "data.json").read_text())
    assert card["source"]["kind"] == "file"
    assert card["counts"]["encoded_anew"] == 8
    assert said[0] == f"sft: warning: {file}: the last line is torn and left out"


def test_an_altered_bundle_is_found(done, tmp_path):
    chain, _, _ = done
    folder = tmp_path / "bundle"
    again = Pipeline(document(chain.config.run.output_dir, **{"stages.export": {"folder": str(folder)}}))
    again.run()
    (folder / "README.md").write_text("other")
    with pytest.raises(DataError, match=r"is not whole: README.md was altered"):
        again.run()
    other = document(chain.config.run.output_dir, **{"stages.export": {"folder": str(folder)}, "stages.lcm.steps": 3})
    with pytest.raises(DataError, match="holds a bundle of another document"):
        Pipeline(other)._export(folder, print)


@pytest.fixture
def file(tmp_path, done):
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document(done[0].config.run.output_dir)))
    return path


def test_commands_run_one_stage_or_all(file, done, perdure_command, refusal):
    code, out, err = perdure_command("pipeline", file)
    assert code == 0
    assert out.splitlines()[0].split() == ["stage", "status", "folder"]
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [[step.name, "finished"] for step in done[1]]
    assert err.count("finished before") == 4
    for command, name in (("sft", "sft"), ("warmup-value", "value"), ("warmup-lcm", "lcm")):
        assert perdure_command(command, file, "--quiet") == (0, f"{done[0].folder(name)}\n", "")
    said = refusal("warmup-value", file, "--set", "stages.sft.steps=3")
    assert said.endswith("which is not finished; run that first, or use: perdure pipeline")


def test_validate_makes_the_policy_where_no_stage_adds_to_it(tmp_path, perdure_command, refusal):
    path = tmp_path / "tuned.yaml"
    tuned = {"stages.value": None, "stages.lcm": None, "algorithm.extensions": []}
    path.write_text(yaml.safe_dump(document(tmp_path, **tuned, **{"algorithm.policy.kwargs.value_head": "fresh"})))
    assert perdure_command("validate", path)[0] == 0
    said = refusal("validate", path, "--set", "algorithm.policy.kwargs.max_new_tokens=0")
    assert said.endswith("policy.kwargs.max_new_tokens is 0; it must be at least 1")


def test_a_dry_run_writes_nothing(file, tmp_path, perdure_command):
    elsewhere = tmp_path / "elsewhere"
    code, out, _ = perdure_command("pipeline", file, "--dry-run", "--set", f"run.output_dir={elsewhere}")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[2:]] == ["new"] * 5
    assert not elsewhere.exists()


def test_a_wrong_key_is_named_with_its_line(file, refusal):
    said = refusal("sft", file, "--set", "stages.sft.epochs=3")
    assert said.startswith("--set stages.sft.epochs=3: stages.sft.epochs (3) is not a key here")
    file.write_text(file.read_text().replace("max_new_tokens", "max_tokens"))
    assert "did you mean" in refusal("pipeline", file)


@pytest.mark.parametrize("command", ["pipeline", "sft", "warmup-value", "warmup-lcm"])
def test_help_shows_examples(command, perdure_command):
    code, out, _ = perdure_command(command, "--help")
    assert code == 0
    assert f"  perdure {command} " in out


def test_the_document_of_the_project_is_valid():
    chain = Pipeline.read(Path(__file__).parents[1] / "configs" / "language_pipeline.yaml")
    assert chain.names == ("sft", "value", "rl", "export")


def test_every_key_of_the_stages_is_documented():
    page = (Path(__file__).parents[1] / "docs" / "pipeline.md").read_text()
    models = (sections.SftConfig, sections.ValueConfig, sections.LcmConfig, sections.ExportConfig)
    inner = (sections.DataConfig, sections.ExpertConfig, sections.FilterConfig, sections.RolloutsConfig)
    keys = {key for model in (*models, *inner, sections.StagesConfig) for key in model.model_fields}
    assert sorted(key for key in keys if f"`{key}" not in page) == []
