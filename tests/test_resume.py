"""Runs that are killed, interrupted and resumed, as a user meets them: equal to the run left whole, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

RUN = ["-m", "perdure", "run", "--quiet"]
SWEEP = ["-m", "perdure", "sweep"]
SEGMENTS = [{"id": "earth", "steps": 5_000}, {"id": "reversed", "steps": 7_000, "params": {"force": -10.0}}]
COMPILED = {
    "environment": {"id": "perdure/cartpole"},
    "algorithm": {"name": "ppo", "kwargs": {"hidden": [8], "feed": {"epochs": 1, "minibatches": 2}}},
    "rollout": {"total_steps": 12_000, "n_envs": 2, "window_steps": 50},
    "regime": {"provider": "schedule", "segments": SEGMENTS},
    "evaluation": {"every": 3_000, "episodes": 2},
    "run": {"seeds": [0, 1], "checkpoint_every": 400},
}
REPLAY = {"name": "dqn", "kwargs": {"hidden": [8], "feed": {"capacity": 500, "batch_size": 8, "learning_starts": 100}}}
HOSTED = {
    **COMPILED,
    "environment": {"id": "CartPole-v1"},
    "rollout": {"total_steps": 600, "n_envs": 2, "window_steps": 50},
    "regime": {"provider": "schedule", "segments": [{**each, "steps": 300} for each in SEGMENTS]},
    "evaluation": {"episodes": 1},
    "run": {"seeds": [0], "checkpoint_every": 150},
}
FACE = {"id": "perdure.worlds.adapters.gymnasium:face", "kwargs": {"world": "perdure/cartpole"}}
DOCUMENTS = {
    "ppo": COMPILED,
    "dqn": {**COMPILED, "algorithm": REPLAY},
    "hosted-ppo": HOSTED,
    "hosted-dqn": {**HOSTED, "algorithm": REPLAY},
    "face-dqn": {**HOSTED, "algorithm": REPLAY, "environment": FACE},
}
DIE_AT = """
import os, sys
import numpy as np
from perdure import cli
from perdure.harness import directory, lines

point, count = sys.argv[1], int(sys.argv[2])
sys.argv = ["perdure", *sys.argv[3:]]
savez, replace, append, whole = np.savez, os.replace, lines.JsonLines.write, directory.write_atomic

def due(found):
    global count
    count -= found
    return found and count == 0

def torn_arrays(file, **arrays):
    if due(point == "arrays"):
        file.write(b"half of it")
        file.flush()
        os.kill(os.getpid(), 9)
    savez(file, **arrays)

def torn_rename(source, destination):
    named = os.path.basename(os.path.dirname(destination)) == "checkpoints"
    if due(named and point == "before rename"):
        os.kill(os.getpid(), 9)
    replace(source, destination)
    if due(named and point == "after rename"):
        os.kill(os.getpid(), 9)

def torn_line(self, rows):
    if due(self.path.name == "windows.jsonl" and point == "line"):
        self._file.write(b'{"step": 12, "se')
        os.kill(os.getpid(), 9)
    append(self, rows)

def torn_part(path, content):
    if due(path.suffix == ".parquet" and point == "part"):
        path.with_name(f".{path.name}.partial").write_bytes(content[: len(content) // 2])
        os.kill(os.getpid(), 9)
    whole(path, content)

np.savez, os.replace, lines.JsonLines.write, directory.write_atomic = torn_arrays, torn_rename, torn_line, torn_part
cli.main()
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A place to work in, where compiled programs are kept between the processes of this file."""
    return Desk(tmp_path_factory.mktemp("resume"))


class Desk:
    """Documents, the processes that run them, and the runs left whole to compare with."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "PERDURE_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}

    def document(self, name, output, **changes):
        """The file of a document that writes into `output`, and the run's folder."""
        document = {**DOCUMENTS[name], **changes}
        document["run"] = {**document["run"], "output_dir": str(self.folder / output), "run_id": name}
        file = self.folder / f"{output}-{name}.yaml"
        file.write_text(yaml.safe_dump(document))
        return file, self.folder / output / name

    def start(self, *arguments):
        """A process of this Python."""
        words = [sys.executable, *map(str, arguments)]
        return subprocess.Popen(words, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, *arguments):
        """(exit code, standard error) of a process that ends by itself."""
        process = self.start(*arguments)
        _, said = process.communicate(timeout=120)
        return process.returncode, said

    def whole(self, name):
        """The folder of a run that nobody disturbed."""
        file, folder = self.document(name, "whole")
        if not folder.exists():
            assert self.finish(*RUN, file) == (0, "")
        return folder


def wait_for(process, condition):
    """Wait until `condition()` holds while the process runs; False if it ended before that."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("0*")) if folder.exists() else []


def killed(process, folder, seen, pause):
    """Kill the process as it is, `pause` seconds after a checkpoint newer than `seen`; whether it still ran."""
    wait_for(process, lambda: any(name > seen for name in checkpoints(folder)))
    time.sleep(pause)
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def rows(folder):
    """The trace of a run, without what a clock wrote into it."""
    if (folder / "traces.jsonl").exists():
        found = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
        for row in found:
            row.pop("wall")
            row["policy"].pop("latency_ms")
        return found
    import pyarrow.parquet as pq

    parts = sorted((folder / "steps").glob("part-*.parquet"))
    tables = [pq.read_table(part) for part in parts]
    # Where parts begin depends on the checkpoints; what they hold does not.
    columns = {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in tables[0].column_names}
    order = np.lexsort((columns["step"], columns["seed"]))
    return {name: values[order].tolist() for name, values in columns.items()}


def assert_equal_runs(whole, other):
    assert rows(other) == rows(whole)
    for name in ("windows.jsonl", "evaluations.jsonl"):
        assert (other / name).read_text() == (whole / name).read_text()
    assert checkpoints(other)[-1] == checkpoints(whole)[-1]
    last = Path("checkpoints") / checkpoints(whole)[-1]
    arrays = sorted(path.relative_to(whole / last) for path in (whole / last).rglob("*.npz"))
    assert arrays
    for name in arrays:
        assert (other / last / name).read_bytes() == (whole / last / name).read_bytes()
    assert json.loads((other / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(("name", "kills"), [("ppo", 2), ("dqn", 1)])
def test_a_compiled_run_killed_again_and_again_ends_as_if_left_whole(desk, name, kills):
    whole = desk.whole(name)
    file, folder = desk.document(name, "killed")
    chance, died = random.Random(name), 0
    for _ in range(kills):
        seen = checkpoints(folder)[-1] if checkpoints(folder) else ""
        process = desk.start(*RUN, *(["--resume", folder] if seen else [file]))
        died += killed(process, folder, seen, chance.uniform(0.0, 0.15))
    assert died
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    assert desk.finish(*RUN, "--resume", folder) == (0, "")
    assert_equal_runs(whole, folder)


@pytest.mark.parametrize("name", ["hosted-ppo", "hosted-dqn", "face-dqn"])
def test_a_host_run_killed_ends_as_if_left_whole(desk, name):
    whole = desk.whole(name)
    file, folder = desk.document(name, "killed")
    assert killed(desk.start(*RUN, file), folder, "", 0.02)
    assert desk.finish(*RUN, "--resume", file) == (0, "")
    assert_equal_runs(whole, folder)


def test_a_run_killed_in_the_middle_of_its_writes_ends_as_if_left_whole(desk):
    file, folder = desk.document("ppo", "torn")
    assert desk.finish("-c", DIE_AT, "arrays", 1, "run", "-q", file) == (-signal.SIGKILL, "")
    assert checkpoints(folder) == []
    for point, count in (("arrays", 3), ("before rename", 2), ("after rename", 2), ("line", 8), ("part", 3)):
        assert desk.finish("-c", DIE_AT, point, count, "run", "-q", file, "--resume") == (-signal.SIGKILL, ""), point
        assert checkpoints(folder)[-1] < f"{COMPILED['rollout']['total_steps']:012d}"
    assert desk.finish(*RUN, "--resume", file) == (0, "")
    assert_equal_runs(desk.whole("ppo"), folder)


def test_a_signal_saves_a_checkpoint_of_its_own(desk):
    # No period of checkpoints, so the one found is the signal's.
    rollout = {**COMPILED["rollout"], "total_steps": 4_000_000}
    file, folder = desk.document("ppo", "terminated", rollout=rollout, run={"seeds": [0, 1]}, regime={})
    process = desk.start(*RUN, file)
    lines = folder / "windows.jsonl"
    assert wait_for(process, lambda: lines.exists() and lines.stat().st_size > 0)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (143, f"interrupted; go on with: perdure run {folder} --resume\n")
    meta = json.loads((folder / "run.json").read_text())
    assert meta["status"] == "interrupted"
    assert 0 < meta["done_steps"] < 4_000_000
    assert checkpoints(folder) == [f"{meta['done_steps']:012d}"]
    found = rows(folder)
    assert found["step"].count(meta["done_steps"] - 1) == 2
    assert max(found["step"]) == meta["done_steps"] - 1


def test_a_run_stopped_by_the_keyboard_says_how_to_go_on_and_ends_as_if_left_whole(desk):
    file, folder = desk.document("ppo", "interrupted")
    process = desk.start(*RUN, file)
    assert wait_for(process, lambda: len(checkpoints(folder)) > 1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (130, f"interrupted; go on with: perdure run {folder} --resume\n")
    assert desk.finish(*RUN, "--resume", folder) == (0, "")
    assert_equal_runs(desk.whole("ppo"), folder)


def test_one_folder_takes_one_process_at_a_time(desk):
    rollout = {**COMPILED["rollout"], "total_steps": 4_000_000}
    file, folder = desk.document("ppo", "twice", rollout=rollout, regime={})
    process = desk.start(*RUN, file)
    assert wait_for(process, lambda: (folder / "run.json").exists())
    code, said = desk.finish(*RUN, "--resume", file)
    assert code == 2
    assert said == f"error: {folder} is being written by another process; wait for it or choose another folder\n"
    process.kill()
    process.communicate()


def test_a_sweep_whose_parent_is_killed_ends_as_if_left_whole(desk):
    families = {"ppo": {}, "dqn": {"algorithm": REPLAY}}
    base = {**COMPILED, "run": {"checkpoint_every": 400}}
    document = {"base": base, "families": families, "seeds": [0, 1], "output_dir": str(desk.folder / "sweep")}
    file = desk.folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(document))
    process = desk.start(*SWEEP, file)
    assert wait_for(process, lambda: any(len(checkpoints(cell)) > 1 for cell in (desk.folder / "sweep").glob("*-*")))
    process.kill()
    process.communicate()
    assert desk.finish(*SWEEP, file, "--resume")[0] == 0
    cells = {
        meta["family"]: meta["run"] for meta in json.loads((desk.folder / "sweep" / "sweep.json").read_text())["cells"]
    }
    assert set(cells) == set(families)
    for family, run in cells.items():
        assert_equal_runs(desk.whole(family), desk.folder / "sweep" / run)
