"""Sweeps: how cells are laid out, and how their processes are run, lost, interrupted and resumed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from perdure.core.errors import ConfigError, DataError
from perdure.harness import executor
from perdure.harness.sweep import SweepConfig, expand_sweep, merge, plan, table

BASE = {
    "environment": {"id": "perdure/cartpole"},
    "algorithm": {"name": "ppo", "kwargs": {"discount": 0.9}},
    "rollout": {"total_steps": 100},
}


def sweep(**changes):
    document = {"base": BASE, "families": {"one": {}, "two": {"algorithm": {"name": "dqn"}}}, "seeds": [0, 1]}
    return SweepConfig.from_document(document | changes)


def refusal(**changes):
    with pytest.raises(ConfigError) as caught:
        expand_sweep(sweep(**changes))
    return str(caught.value)


def test_merge_goes_one_level_into_each_section():
    base = {"algorithm": {"name": "ppo", "kwargs": {"a": 1, "b": 2}}, "run": {"seeds": [0]}, "reward": None}
    overlay = {"algorithm": {"kwargs": {"a": 3}}, "reward": {"spec": {}}, "run": None}
    assert merge(overlay, base) == {
        "algorithm": {"name": "ppo", "kwargs": {"a": 3}},
        "run": None,
        "reward": {"spec": {}},
    }
    assert base["algorithm"]["kwargs"] == {"a": 1, "b": 2}


def test_cells_come_by_family_then_task_then_seed():
    tasks = {"easy": {"environment": {"kwargs": {"a": 1}}}, "hard": {"environment": {"kwargs": {"a": 2}}}}
    cells = expand_sweep(sweep(tasks=tasks))
    assert [(cell.run.family, cell.task, cell.run.seeds) for cell in cells] == [
        (family, task, (seed,)) for family in ("one", "two") for task in ("easy", "hard") for seed in (0, 1)
    ]
    assert [cell.algorithm.name for cell in cells] == ["ppo"] * 4 + ["dqn"] * 4
    assert cells[2].environment.kwargs == {"a": 2}


def test_a_cell_writes_family_task_and_seed_into_its_meta():
    meta = expand_sweep(sweep(tasks={"easy": {}}))[1].meta()
    assert (meta["family"], meta["algorithm_id"], meta["task"], meta["seed"]) == ("one", "one", "easy", 1)


def test_listed_tasks_are_environments_where_the_base_names_none():
    base = {**BASE, "environment": {"kwargs": {}}}
    cells = expand_sweep(sweep(base=base, tasks=["perdure/cartpole", "perdure/acrobot"], seeds=[0]))
    assert [cell.environment.id for cell in cells[:2]] == ["perdure/cartpole", "perdure/acrobot"]
    assert [cell.task for cell in expand_sweep(sweep(tasks=["label"], seeds=[0]))] == ["label", "label"]
    assert "tasks.a and tasks.b change the same" in refusal(tasks=["a", "b"])


def test_seed_is_substituted_anywhere_in_a_value():
    families = {"own": {"algorithm": {"name": "a.b:c", "kwargs": {"seed": "SEED", "deep": [{"path": "w-SEED.npz"}]}}}}
    cells = expand_sweep(sweep(families=families, seeds=[3, 5]))
    assert [cell.algorithm.kwargs for cell in cells] == [
        {"seed": 3, "deep": [{"path": "w-3.npz"}]},
        {"seed": 5, "deep": [{"path": "w-5.npz"}]},
    ]


def test_cells_that_differ_only_in_their_seed_are_one_run():
    groups = plan(sweep())
    assert [(group.family, group.seeds) for group in groups] == [("one", (0, 1)), ("two", (0, 1))]
    assert [group.name for group in groups] == [group.config.run_id for group in groups]
    assert len({group.name for group in groups}) == 2


def test_cells_into_which_a_seed_is_written_are_runs_of_their_own():
    groups = plan(sweep(families={"one": {"environment": {"kwargs": {"variant": "SEED"}}}}))
    assert [group.seeds for group in groups] == [(0,), (1,)]


def test_a_third_party_algorithm_that_no_seed_reaches_is_warned_of():
    families = {"theirs": {"algorithm": {"name": "a.b:c"}}}
    with pytest.warns(UserWarning, match="families.theirs builds a.b:c without a seed: write SEED"):
        expand_sweep(sweep(families=families))
    policy = {"theirs": {"algorithm": {"name": "a.b:c", "policy": {"factory": "a.b:d", "kwargs": {"seed": "SEED"}}}}}
    expand_sweep(sweep(families=policy))
    expand_sweep(sweep(families=families, seeds=[0]))


def test_a_grid_makes_families_of_its_own():
    grid = {"algorithm.kwargs.discount": [0.9, 0.99], "rollout.window_steps": [8]}
    cells = expand_sweep(sweep(families={"ppo": {}}, grid=grid, seeds=[0]))
    assert [cell.algorithm.kwargs["discount"] for cell in cells] == [0.9, 0.99]
    assert [cell.algorithm_id for cell in cells] == [
        "ppo,discount=0.9,window_steps=8",
        "ppo,discount=0.99,window_steps=8",
    ]


def test_the_table_shares_out_the_steps():
    families = {"one": {}, "long": {"rollout": {"total_steps": 300}}}
    headers, rows = table(plan(sweep(families=families)))
    found = [dict(zip(headers, row, strict=True)) for row in rows]
    assert [(row["family"], row["seeds"], row["steps"], row["share"]) for row in found] == [
        ("one", "0 1", "200", "25.0%"),
        ("long", "0 1", "600", "75.0%"),
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"famlies": {}}, "famlies ({}) is not a key here; did you mean 'families'?"),
        ({"families": {}}, "families is {}; it must not be empty"),
        ({"seeds": [1, 1]}, "seeds holds 1 more than once"),
        ({"tasks": {}}, "tasks is empty"),
        ({"tasks": ["a", "a"]}, "tasks[1] is 'a', which is there twice"),
        ({"tasks": [3]}, "tasks[0] is 3; a task is a name"),
        ({"grid": {"a.b": []}}, "grid.a.b is empty"),
        ({"base": {**BASE, "run": {"run_id": "x"}}}, "base.run.run_id would name every cell alike"),
        ({"families": {"bad": {"rollout": {"n_env": 2}}}}, "families.bad: rollout.n_env (2) is not a key here"),
        ({"tasks": {"far": {"environment": {"id": "perdure/no"}}}}, "families.one with tasks.far: environment.id is"),
    ],
)
def test_a_wrong_sweep_is_named_with_its_place(change, says):
    assert says in refusal(**change)


# A cell's process in these tests: it writes what a run would, or does as its environment's arguments say.
CELL = """
    import json, os, pathlib, signal, sys, time
    document, resume = json.loads(pathlib.Path(sys.argv[1]).read_text()), sys.argv[2] == "True"
    folder = pathlib.Path(document["run"]["output_dir"]) / document["run"]["run_id"]
    folder.mkdir(exist_ok=True)
    def status(name):
        meta = {"status": name, "seeds": document["run"]["seeds"], "config": document, "resumed": resume}
        (folder / "new.json").write_text(json.dumps(meta))
        os.replace(folder / "new.json", folder / "run.json")
    status("running")
    orders = document["environment"].get("kwargs", {})
    if orders.get("die") and not resume:
        os.kill(os.getpid(), signal.SIGKILL)
    if orders.get("fail") and not resume:
        print("starting")
        sys.exit("error: no such world")
    if orders.get("wait") and not resume:
        try:
            time.sleep(30)
        except KeyboardInterrupt:
            status("interrupted")
            sys.exit(130)
    status("finished")
"""


@pytest.fixture
def command(tmp_path):
    script = tmp_path / "cell.py"
    script.write_text(textwrap.dedent(CELL))
    return lambda document, resume: [sys.executable, str(script), str(document), str(resume)]


@pytest.fixture
def orders(tmp_path):
    def make(seeds=(0, 1), **families):
        changes = {name: {"environment": {"kwargs": {order: True}}} for name, order in families.items()}
        return sweep(families=changes, seeds=list(seeds), output_dir=str(tmp_path / "out"))

    return make


def metas(config):
    files = Path(config.output_dir).glob("*/run.json")
    found = [json.loads(file.read_text()) for file in files]
    return {meta["config"]["run"]["family"]: meta for meta in sorted(found, key=lambda meta: meta["seeds"])}


def test_a_failed_run_stops_no_other(orders, command):
    config = orders(killed="die", broken="fail", fine="run")
    said = []
    outcomes = executor.run_sweep(config, command, workers=2, say=said.append)
    assert [(outcome.group.family, outcome.status) for outcome in outcomes] == [
        ("killed", "failed"),
        ("broken", "failed"),
        ("fine", "finished"),
    ]
    assert outcomes[0].reason.startswith("killed by SIGKILL, perhaps for want of memory")
    assert outcomes[1].reason.startswith("exit code 1: error: no such world (log: ")
    assert metas(config)["fine"]["seeds"] == [0, 1]
    assert any("finished in" in line for line in said)


def test_resume_runs_what_is_missing_and_goes_on_with_what_is_unfinished(orders, command):
    config = orders(killed="die", fine="run")
    executor.run_sweep(config, command, say=lambda line: None)
    with pytest.raises(DataError, match="holds a sweep; pass --resume"):
        executor.run_sweep(config, command)
    said = []
    outcomes = executor.run_sweep(config, command, resume=True, say=said.append)
    assert [(outcome.group.family, outcome.status) for outcome in outcomes] == [("killed", "finished")]
    assert "going on" in said[0]
    assert metas(config)["killed"]["resumed"]
    assert not metas(config)["fine"]["resumed"]
    assert executor.run_sweep(config, command, resume=True, say=said.append) == []


def test_a_seed_added_later_runs_alone(orders, command):
    executor.run_sweep(orders(fine="run"), command, say=lambda line: None)
    outcomes = executor.run_sweep(orders(seeds=(0, 1, 2), fine="run"), command, resume=True, say=lambda line: None)
    assert [outcome.group.seeds for outcome in outcomes] == [(2,)]


def test_the_sweeps_record_names_its_cells(orders, command):
    config = orders(fine="run")
    executor.run_sweep(config, command, say=lambda line: None)
    record = json.loads((Path(config.output_dir) / "sweep.json").read_text())
    assert record["schema"] == "perdure.sweep/1"
    assert SweepConfig.from_document(record["sweep"]) == config
    assert [(cell["family"], cell["seeds"]) for cell in record["cells"]] == [("fine", [0, 1])]
    assert all((Path(config.output_dir) / cell["run"] / "run.json").exists() for cell in record["cells"])


def test_what_remains_is_told_without_writing(orders):
    config = orders(fine="run")
    assert [group.family for group in executor.remaining(config, resume=False)] == ["fine"]
    assert not Path(config.output_dir).exists()


def test_two_sweeps_share_the_work(orders, command):
    config = orders(slow="wait", other="run")
    (name,) = [group.name for group in plan(config) if group.family == "slow"]
    lock = Path(config.output_dir) / "cells" / f"{name}.lock"
    lock.parent.mkdir(parents=True)
    hold = f"import fcntl, time; f = open({str(lock)!r}, 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(30)"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    said = []

    def finish_elsewhere():
        while not any("waiting" in line for line in said):
            time.sleep(0.01)
        folder = Path(config.output_dir) / name
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"status": "finished"}))
        holder.kill()

    threading.Thread(target=finish_elsewhere).start()
    outcomes = executor.run_sweep(config, command, say=said.append)
    holder.wait()
    holder.stdout.close()
    ends = {outcome.group.family: outcome.status for outcome in outcomes}
    assert ends == {"slow": "finished", "other": "finished"}
    assert not any(line.startswith(name) and "started" in line for line in said)


@pytest.fixture
def interruptible():
    """SIGINT interrupts, also where the tests run as a background job of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_lets_every_run_save_first(orders, command, number):
    config = orders(slow="wait", next="run")

    def interrupt():
        while "slow" not in metas(config):
            time.sleep(0.02)
        time.sleep(0.2)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        executor.run_sweep(config, command, say=lambda line: None)
    assert metas(config)["slow"]["status"] == "interrupted"
    assert "next" not in metas(config)
    outcomes = executor.run_sweep(config, command, resume=True, say=lambda line: None)
    assert [outcome.status for outcome in outcomes] == ["finished", "finished"]


def test_unknown_executors_name_what_exists(orders, command):
    with pytest.raises(ConfigError, match="executor 'ray' does not exist; known: local"):
        executor.run_sweep(orders(fine="run"), command, executor="ray")
    with pytest.raises(ConfigError, match="workers is 0"):
        executor.run_sweep(orders(fine="run"), command, workers=0)
