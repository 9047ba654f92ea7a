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

from perdure.core.errors import ConfigError, DataError, RunFailed
from perdure.harness import runs
from perdure.harness.run import EvaluationPlan, Interrupted, execute

COMPARED = ("windows.jsonl", "evaluations.jsonl")


def contents(folder):
    """The bytes of everything that two equal runs must share, wall times aside."""
    files = {name: (folder / name).read_bytes() for name in COMPARED}
    files |= {path.name: path.read_bytes() for path in sorted((folder / "steps").iterdir())}
    files["events"] = [{**event, "wall": 0} for event in runs.read_lines(folder / "events.jsonl", [])]
    files["checkpoints"] = {
        path.relative_to(folder): json.loads(path.read_text()) for path in (folder / "checkpoints").rglob("*.json")
    }
    for path, saved in files["checkpoints"].items():
        if path.name == "harness.json":
            del saved["files"]["events"]["bytes"], saved["versions"]  # events have wall times
    return files


@pytest.fixture(scope="module")
def whole(fake, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    execute(fake.job(folder))
    return folder


def start(fake, folder, *options):
    return subprocess.Popen(
        [sys.executable, fake.__file__, str(folder), *map(str, options)], stderr=subprocess.PIPE, text=True
    )


def test_every_step_is_recorded_once(whole, fake):
    run = runs.load_run(whole)
    assert [stream.seed for stream in run.streams] == [0, 3]
    for stream in run.streams:
        assert stream.step.tolist() == list(range(1000))
        np.testing.assert_array_equal(stream.reward, np.sin(np.arange(1000) * 0.1 + stream.seed).astype(np.float32))
    assert run.segments == fake.SCHEDULE.segments
    assert run.warnings == []


def test_evaluations_stand_at_row_0_each_period_each_segment_end_and_the_end(whole):
    rows = runs.load_run(whole).evaluations
    assert sorted({row.step for row in rows}) == [0, 250, 300, 500, 600, 750, 1000]
    assert [(row.regime, row.seed) for row in rows[:4]] == [("earth", 0), ("earth", 3), ("moon", 0), ("moon", 3)]


def test_the_policy_evaluated_is_the_one_after_the_last_whole_window(whole):
    windows = {(line["step"], line["seed"]): line["metrics"]["loss/sum"] for line in runs.load_run(whole).windows}
    row = next(row for row in runs.load_run(whole).evaluations if (row.step, row.seed, row.regime) == (250, 3, "moon"))
    assert row.returns[0] == windows[(224, 3)] + 1.6


def test_features_become_effective_rank_and_dormant_fraction(whole):
    from perdure.metrics import plasticity

    row = next(row for row in runs.load_run(whole).evaluations if row.step == 0 and row.seed == 3)
    features = np.random.default_rng(0).normal(size=(2, 16, 4))[1]
    assert row.metrics["effective_rank/critic"] == plasticity.effective_rank_entropy(features)
    assert row.metrics["dormant/critic"] == plasticity.dormant_fraction(features)


def test_two_checkpoints_are_kept(whole):
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["000000000800", "000000001000"]


def test_run_json_says_what_was_done(whole):
    meta = json.loads((whole / "run.json").read_text())
    assert (meta["status"], meta["done_steps"], meta["stationary"], meta["error"]) == ("finished", 1000, False, None)
    assert meta["schema"] == "perdure.run/1"
    assert meta["segments"][1] == {
        "id": "moon",
        "origin": "moon",
        "start": 300,
        "end": 600,
        "params": {"gravity": 1.6},
        "params_end": None,
    }


def test_the_result_counts_and_points_but_holds_no_metrics(fake, tmp_path):
    result = execute(fake.job(tmp_path / "run"))
    assert result.counts == {"steps": 1000, "rows": 2000, "windows": 64, "evaluations": 28, "events": 5}
    assert len(result.window_metrics) == 64
    assert {row["step"] for row in result.evaluations} == {1000}
    assert result.trace_path == tmp_path / "run" / "steps"
    assert not result.stationary


def test_the_learner_is_closed_also_after_a_failure(fake, tmp_path):
    learner = fake.FakeLearner(reward=lambda step: np.where(step == 70, np.nan, 1.0))
    with pytest.raises(RunFailed, match="step 70, seed 0: the reward is nan"):
        execute(fake.job(tmp_path / "run", learner))
    assert learner.closed


def test_a_failed_run_says_so_keeps_its_rows_and_can_be_resumed(fake, whole, tmp_path):
    class Broken(fake.FakeLearner):
        def advance(self, state, schedule, steps):
            if state["step"] == 480:
                raise ZeroDivisionError("nothing to divide")
            return super().advance(state, schedule, steps)

    folder = tmp_path / "run"
    with pytest.raises(RunFailed, match=r"step 480: ZeroDivisionError: nothing to divide; .*--resume") as caught:
        execute(fake.job(folder, Broken()))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert runs.load_run(folder).meta["status"] == "failed"
    assert "ZeroDivisionError" in runs.load_run(folder).meta["error"]
    assert len(runs.load_run(folder).streams[0].step) == 480
    execute(fake.job(folder, resume=True))
    assert contents(folder) == contents(whole)


@pytest.mark.parametrize(
    ("where", "step"), [("advance", 0), ("advance", 448), ("save", 200), ("save", 600), ("save", 1000)]
)
def test_a_run_killed_and_resumed_equals_the_run_left_whole(fake, whole, tmp_path, where, step):
    folder = tmp_path / "run"
    process = start(fake, folder, "--die", where, step)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    execute(fake.job(folder, resume=True))
    assert contents(folder) == contents(whole)


def test_a_run_killed_at_random_times_equals_the_run_left_whole(fake, whole, tmp_path):
    folder, dice, killed = tmp_path / "run", random.Random(7), 0
    for _ in range(4):
        process = start(fake, folder, "--pause", 0.01, "--resume")
        deadline = time.monotonic() + 30
        while not (folder / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(dice.uniform(0.1, 0.5))
        process.kill()
        process.communicate(timeout=60)
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 2
    execute(fake.job(folder, resume=True))
    assert contents(folder) == contents(whole)


def test_what_a_killed_writer_left_half_written_is_dropped(fake, whole, tmp_path):
    folder = tmp_path / "run"
    process = start(fake, folder, "--die", "advance", 704)
    process.communicate(timeout=60)
    for name in COMPARED:
        with (folder / name).open("ab") as file:
            file.write(b'{"step": 7')
    (folder / "steps" / ".part-000099.parquet.partial").write_bytes(b"PAR1")
    (folder / "checkpoints" / ".000000000800.partial").mkdir()
    (folder / "steps" / "part-000003.parquet").write_bytes(b"PAR1 torn")
    execute(fake.job(folder, resume=True))
    assert contents(folder) == contents(whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_checkpoint_and_says_how_to_resume(fake, whole, tmp_path, number, code):
    class Interrupting(fake.FakeLearner):
        def advance(self, state, schedule, steps):
            if state["step"] == 320:
                os.kill(os.getpid(), number)
            return super().advance(state, schedule, steps)

    folder = tmp_path / "run"
    with pytest.raises(Interrupted, match="--resume") as caught:
        execute(fake.job(folder, Interrupting()))
    assert (caught.value.exit_code, caught.value.step) == (code, 352)
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert (folder / "checkpoints" / "000000000352" / "state.json").exists()
    execute(fake.job(folder, resume=True))
    assert {name: contents(folder)[name] for name in COMPARED} == {name: contents(whole)[name] for name in COMPARED}
    resumed, left = runs.load_run(folder), runs.load_run(whole)
    for ours, theirs in zip(resumed.streams, left.streams, strict=True):
        np.testing.assert_array_equal(ours.step, theirs.step)
        np.testing.assert_array_equal(ours.reward, theirs.reward)


def test_handlers_are_put_back_after_a_run(whole, fake, tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    execute(fake.job(tmp_path / "run"))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_oracle_tells_of_each_shift_at_its_step_once(fake, tmp_path):
    learner = fake.FakeLearner()
    execute(fake.job(tmp_path / "run", learner, schedule=fake.SCHEDULE._replace(boundary_source="oracle")))
    told = [(step, shift.ending, shift.starting, shift.starting_origin, shift.step) for step, shift in learner.shifts]
    assert told == [(288, "earth", "moon", "moon", 300), (576, "moon", "earth_again", "earth", 600)]
    shifts = [event for event in runs.load_run(tmp_path / "run").events if event["kind"] == "shift"]
    assert [event["step"] for event in shifts] == [300, 600]


def test_without_an_oracle_nobody_is_told(fake, tmp_path):
    learner = fake.FakeLearner()
    execute(fake.job(tmp_path / "run", learner))
    assert learner.shifts == []


def test_a_learner_that_handles_shifts_is_not_told_again(fake, tmp_path):
    learner = fake.FakeLearner()
    learner.handles_shifts = True
    execute(fake.job(tmp_path / "run", learner, schedule=fake.SCHEDULE._replace(boundary_source="oracle")))
    assert learner.shifts == []


def test_only_the_current_regime_is_evaluated_where_asked(fake, tmp_path):
    execute(fake.job(tmp_path / "run", evaluation=fake.PLAN._replace(only_current=True)))
    rows = runs.load_run(tmp_path / "run").evaluations
    assert {(row.step, row.regime) for row in rows} == {
        (0, "earth"),
        (250, "earth"),
        (300, "earth"),
        (500, "moon"),
        (600, "moon"),
        (750, "earth"),
        (1000, "earth"),
    }


def test_no_regimes_means_no_evaluation(fake, tmp_path):
    result = execute(fake.job(tmp_path / "run", evaluation=EvaluationPlan()))
    assert result.evaluations == []


def test_a_finished_run_is_refused_and_resuming_it_does_nothing(fake, whole):
    with pytest.raises(DataError, match="holds a finished run"):
        execute(fake.job(whole))
    before = contents(whole)
    assert execute(fake.job(whole, resume=True)).counts["rows"] == 2000
    assert contents(whole) == before


def test_a_schedule_of_another_length_is_refused(fake, tmp_path):
    with pytest.raises(ConfigError, match=r"covers 1000 steps, rollout\.total_steps is 900"):
        execute(fake.job(tmp_path / "run", total_steps=900))


def test_another_programs_checkpoint_is_refused_and_nothing_is_lost(fake, tmp_path):
    folder = tmp_path / "run"
    start(fake, folder, "--die", "advance", 704).communicate(timeout=60)
    state = folder / "checkpoints" / "000000000600" / "state.json"
    state.write_text(json.dumps({"program": "other", "step": 600}))
    sealed = state.with_name("harness.json")
    kept = {name: value for name, value in json.loads(sealed.read_text()).items() if name != "sha256"}
    sealed.write_text(json.dumps(kept))
    rows = len((folder / "windows.jsonl").read_bytes())
    with pytest.raises(DataError, match="another program's checkpoint"):
        execute(fake.job(folder, resume=True))
    assert len((folder / "windows.jsonl").read_bytes()) == rows


def test_resuming_under_other_versions_warns(fake, tmp_path):
    folder = tmp_path / "run"
    start(fake, folder, "--die", "advance", 704).communicate(timeout=60)
    path = folder / "checkpoints" / "000000000600" / "harness.json"
    counts = json.loads(path.read_text())
    counts["versions"]["numpy"] = "0.9"
    path.write_text(json.dumps(counts))
    execute(fake.job(folder, resume=True))
    warnings = [event["message"] for event in runs.load_run(folder).events if event["kind"] == "warning"]
    assert len(warnings) == 1
    assert "numpy 0.9 ->" in warnings[0]


def test_a_detector_alarm_becomes_an_event(fake, tmp_path):
    class Alarming(fake.FakeLearner):
        def advance(self, state, schedule, steps):
            state, window, metrics = super().advance(state, schedule, steps)
            if len(window):
                metrics["detector/alarm"] = np.array([[0.0, float(state["step"] == 320)]])
            return state, window, metrics

    execute(fake.job(tmp_path / "run", Alarming()))
    alarms = [event for event in runs.load_run(tmp_path / "run").events if event["kind"] == "alarm"]
    assert [(event["step"], event["message"]) for event in alarms] == [(320, "detector alarm, seed 3")]


def test_a_json_lines_trace_of_a_compiled_learner_holds_the_same_rows(fake, whole, tmp_path):
    path = tmp_path / "elsewhere.jsonl"
    result = execute(fake.job(tmp_path / "run", trace_path=path))
    assert result.trace_path == path
    for ours, theirs in zip(runs.load_run(path).streams, runs.load_run(whole).streams, strict=True):
        np.testing.assert_array_equal(ours.reward, theirs.reward)
        assert [(s.id, s.origin, s.start, s.end) for s in ours.segments] == [
            (s.id, s.origin, s.start, s.end) for s in theirs.segments
        ]


def test_a_trace_that_is_not_this_runs_is_never_overwritten(fake, tmp_path):
    path = tmp_path / "precious.jsonl"
    path.write_text("{}\n")
    with pytest.raises(DataError, match="choose another trace path"):
        execute(fake.job(tmp_path / "run", trace_path=path))
    assert path.read_text() == "{}\n"


def test_a_full_disk_ends_the_run_naming_the_path(fake, tmp_path):
    with pytest.raises(RunFailed, match=r"cannot write /dev/full: No space left on device; free some space"):
        execute(fake.job(tmp_path / "run", trace_path=Path("/dev/full")))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_a_file_that_may_not_grow_ends_the_run_with_its_rows_readable(fake, tmp_path):
    script = f"""
import importlib.util, resource, signal, sys
spec = importlib.util.spec_from_file_location("fake", {fake.__file__!r})
fake = importlib.util.module_from_spec(spec); spec.loader.exec_module(fake)
from perdure.harness.run import execute
from perdure.core.errors import RunFailed
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    execute(fake.job({str(tmp_path / "run")!r}))
except RunFailed as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert f"cannot write {tmp_path / 'run'}" in done.stdout
    assert "free some space" in done.stdout
    run = runs.load_run(tmp_path / "run")
    assert all(stream.step.tolist() == list(range(len(stream.step))) for stream in run.streams)


def test_the_harness_needs_neither_jax_nor_torch(fake, tmp_path):
    process = start(fake, tmp_path / "run")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
