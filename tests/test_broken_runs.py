"""Runs that break and folders that were damaged: one line says what and how to mend it, nothing written is lost."""

import json
import os
import shutil
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import yaml

from perdure.harness import runs
from perdure.harness.config import ExperimentConfig

DOCUMENT = {
    "environment": {"id": "perdure/cartpole"},
    "algorithm": {"name": "ppo", "kwargs": {"hidden": [8], "feed": {"epochs": 1, "minibatches": 2}}},
    "rollout": {"total_steps": 400, "n_envs": 2, "window_steps": 50},
    "evaluation": {"episodes": 1},
}
BREAKS_AT = 150
LIMITED = """
import resource, sys
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
from perdure.cli import main
main()
"""


class Breaking(gymnasium.Env):
    """Twenty-step episodes; goes wrong in its own way at step `BREAKS_AT`, counted over all episodes."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how):
        self._how, self._steps = how, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._steps += 1
        observation, reward, info = np.zeros(3, np.float32), 1.0, {}
        if self._steps == BREAKS_AT + 1:
            if self._how == "raises":
                raise RuntimeError("the sensor is gone\nand so is the rest")
            if self._how == "exits":
                raise SystemExit(0)
            observation = {"observation": observation * np.nan, "shape": np.zeros(4)}.get(self._how, observation)
            reward = {"reward": float("inf"), "none": None}.get(self._how, reward)
            info = {"regime": {"regime": 3}, "info": None}.get(self._how, info)
        return observation, reward, self._steps % 20 == 0, False, info


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("PERDURE_CACHE", "off")


def document(folder, checkpoint_every=100, **sections):
    """The file of a document that writes into `folder`/run."""
    values = {**DOCUMENT, **sections}
    values["run"] = {"seeds": [0], "run_id": "run", "checkpoint_every": checkpoint_every, "output_dir": str(folder)}
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def meta(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", "(<Breaking instance>) raised RuntimeError: the sensor is gone; mend the environment"),
        ("exits", "(<Breaking instance>) raised SystemExit: 0; mend the environment"),
        ("observation", "the observation is not finite; mend the environment"),
        ("reward", "the reward is inf; mend the environment"),
        ("none", "(<Breaking instance>) raised TypeError: float() argument must be"),
        ("info", "(<Breaking instance>) raised TypeError: its info is None, not a mapping"),
        ("regime", 'info["regime"] is 3; it must be a name or a mapping with "id" and "boundary"'),
    ],
)
def test_an_environment_that_breaks_ends_the_run_with_all_rows_before_it(tmp_path, refusal, perdure_command, how, says):
    rollout = {"total_steps": 400, "window_steps": 50}
    environment = {"id": f"{__name__}:Breaking", "kwargs": {"how": how}}
    file = document(tmp_path, environment=environment, rollout=rollout)
    said = refusal("run", "-q", file, code=1)
    assert said.startswith(f"step {BREAKS_AT}, environment 0")
    assert says in said
    lines = (tmp_path / "run" / "traces.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(BREAKS_AT))
    assert meta(tmp_path / "run")["status"] == "failed"
    assert says.split(";")[0] in meta(tmp_path / "run")["error"]
    assert perdure_command("metrics", tmp_path / "run")[0] == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert how != "raises" or "and so is the rest" in log


def test_an_observation_of_another_shape_is_named_with_its_step(tmp_path, refusal):
    environment = {"id": f"{__name__}:Breaking", "kwargs": {"how": "shape"}}
    file = document(tmp_path, environment=environment, rollout={"total_steps": 400, "window_steps": 50})
    assert refusal("run", "-q", file, code=1) == (
        f"the observation at step {BREAKS_AT} has shape (4,), its space (3,); mend the environment"
    )


def test_a_compiled_reward_that_is_not_finite_ends_the_run_with_all_rows_before_it(tmp_path, refusal):
    # 1e38 times 100 is no number of single precision.
    spec = {
        "components": [{"name": "expression", "params": {"text": "100 * env_reward"}}],
        "regime_overrides": {"broken": {"expression": 1e38}},
    }
    segments = [{"id": "whole", "steps": 130}, {"id": "broken", "steps": 270}]
    file = document(
        tmp_path,
        reward={"spec": spec},
        regime={"provider": "schedule", "segments": segments},
        evaluation={"episodes": 1, "regimes": ["whole"]},
    )
    said = refusal("run", "-q", file, code=1)
    assert said == "step 130, seed 0: the reward is inf; mend the world and start a new run"
    assert meta(tmp_path / "run")["status"] == "failed"
    (stream,) = runs.load_run(tmp_path / "run").streams
    assert stream.step.tolist() == list(range(130))


def test_a_full_disk_ends_the_run_and_a_resume_ends_it_as_if_there_had_been_room(tmp_path):
    whole, full = tmp_path / "whole", tmp_path / "full"
    rollout = {**DOCUMENT["rollout"], "total_steps": 40_000}
    environment = {**os.environ, "PERDURE_CACHE": str(tmp_path / "cache")}

    def run(folder, *arguments, most=-1):
        folder.mkdir(exist_ok=True)
        file = document(folder, rollout=rollout, checkpoint_every=4_000)
        command = [sys.executable, "-c", LIMITED, str(most), "run", "-q", str(file), *arguments]
        found = subprocess.run(command, env=environment, capture_output=True, text=True)
        return found.returncode, found.stderr

    assert run(whole) == (0, "")
    windows = (whole / "run" / "windows.jsonl").read_bytes()
    arrays = (newest(whole / "run") / "arrays.npz").stat().st_size
    assert arrays < len(windows)
    code, said = run(full, most=(arrays + len(windows)) // 2)
    place = full / "run" / "windows.jsonl"
    assert said == f"error: cannot write {place}: File too large; free some space and go on with --resume\n"
    assert (code, meta(full / "run")["status"]) == (1, "failed")
    assert len(runs.load_run(full / "run").streams[0].step) > 10_000
    assert run(full, "--resume") == (0, "")
    assert place.read_bytes() == windows
    assert (newest(full / "run") / "arrays.npz").read_bytes() == (newest(whole / "run") / "arrays.npz").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run, to be copied before it is harmed."""
    from perdure import build

    folder = tmp_path_factory.mktemp("finished")
    values = yaml.safe_load(document(folder).read_text())
    return build.run_experiment(ExperimentConfig.from_document(values)).folder


@pytest.fixture
def harmed(finished, tmp_path):
    """Copy the finished run, say that it is not finished, and do `harm` to the copy: its folder."""

    def make(harm):
        shutil.copytree(finished, tmp_path / "run")
        (tmp_path / "run" / "run.json").write_text(json.dumps({**meta(finished), "status": "interrupted"}))
        harm(tmp_path / "run")
        return tmp_path / "run"

    return make


def newest(folder):
    return sorted((folder / "checkpoints").iterdir())[-1]


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda run: flip(newest(run) / "arrays.npz"), "arrays.npz was altered: its sha256 is not the recorded one"),
        (
            lambda run: os.truncate(newest(run) / "arrays.npz", 99),
            "arrays.npz was altered: its sha256 is not the recorded one",
        ),
        (lambda run: (newest(run) / "arrays.npz").unlink(), "arrays.npz is missing; remove that"),
        (lambda run: os.truncate(newest(run) / "tree.json", 99), "tree.json was altered"),
        (lambda run: (newest(run) / "harness.json").write_text("{}"), "harness.json has no 'step', so it is not whole"),
        (lambda run: (newest(run) / "harness.json").write_text("{"), "harness.json is not JSON"),
        (lambda run: (run / "run.json").write_text("{"), "run.json is not JSON"),
        (lambda run: (run / "run.json").write_text("[]"), "run.json holds a list, not an object"),
        (lambda run: (run / "run.json").unlink(), "run holds steps but no run.json"),
        (lambda run: (run / "steps" / "part-000001.parquet").unlink(), "part-000001.parquet is missing or damaged"),
        (lambda run: os.truncate(run / "steps" / "part-000001.parquet", 99), "000001.parquet is missing or damaged"),
        (lambda run: (run / "windows.jsonl").write_text(""), "windows.jsonl has 0 bytes, its checkpoint"),
    ],
)
def test_a_damaged_run_is_not_resumed_and_stays_as_it_is(harmed, refusal, harm, says):
    folder = harmed(harm)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert says in refusal("run", "-q", "--resume", document(folder.parent))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(harmed, perdure_command, finished):
    folder = harmed(lambda run: shutil.rmtree(newest(run)))
    assert perdure_command("run", "-q", "--resume", folder)[0] == 0
    for name in ("windows.jsonl", "evaluations.jsonl"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    assert (newest(folder) / "arrays.npz").read_bytes() == (newest(finished) / "arrays.npz").read_bytes()


def test_a_torn_last_line_is_told_and_its_run_is_read_and_resumed(harmed, perdure_command):
    def tear(run):
        with (run / "windows.jsonl").open("a") as file:
            file.write('{"step": 40')

    folder = harmed(tear)
    code, _, err = perdure_command("metrics", folder)
    assert (code, err) == (0, f"warning: {folder}: {folder / 'windows.jsonl'}: the last line is torn and left out\n")
    assert perdure_command("run", "-q", "--resume", folder)[0] == 0
    assert perdure_command("metrics", folder)[2] == ""


def test_a_finished_run_is_never_written_over(finished, refusal, perdure_command):
    file = document(finished.parent)
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"}
    assert refusal("run", file) == f"{finished} holds a finished run; choose another run.output_dir or run.run_id"
    assert perdure_command("run", "-q", "--resume", file) == (0, "", "")
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"} == before


def test_an_unfinished_run_and_one_of_another_document_are_not_written_over(harmed, refusal):
    folder = harmed(lambda run: None)
    file = document(folder.parent)
    assert f"{folder} holds an unfinished run; pass --resume" in refusal("run", file)
    for resume in ((), ("--resume",)):
        said = refusal("run", file, "--set", "rollout.window_steps=20", *resume)
        assert said.startswith(f"{folder} holds a run of another document (hash ")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "algorithm.kwargs.hidden=[16]",
            "a checkpoint of another program: 'seeds/agent/params/actor/0/b' is float32[1, 8]",
        ),
        ("run.seeds=[1]", "holds seeds [0], not [1]; resume with the same seeds"),
        ("algorithm={name: dqn}", "is a checkpoint of another program"),
    ],
)
def test_a_checkpoint_of_another_program_is_refused_and_the_rows_stay(harmed, refusal, override, says):
    from perdure.harness import load

    folder = harmed(lambda run: None)
    file = document(folder.parent)
    config = load.experiment(file, (override,))
    # As if somebody had put the checkpoint there.
    told = {**meta(folder), "config_hash": config.config_hash(), "seeds": list(config.run.seeds)}
    (folder / "run.json").write_text(json.dumps(told))
    assert says in refusal("run", file, "--resume", "--set", override)
    assert len(runs.load_run(folder).streams[0].step) == 400


def test_a_place_that_cannot_be_written_is_named(tmp_path, refusal):
    file = document(tmp_path)
    (tmp_path / "taken").write_text("")
    said = refusal("run", file, "--set", f"run.output_dir={tmp_path / 'taken'}", code=1)
    assert said == f"cannot write {tmp_path / 'taken' / 'run'}: Not a directory; check the path and its permissions"
    (tmp_path / "run").write_text("")
    assert refusal("run", file, code=1).startswith(f"cannot write {tmp_path / 'run'}: File exists")
