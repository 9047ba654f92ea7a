import json
import time

import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.harness import runs
from perdure.harness.run import execute


def foreign(path, rows, tail=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def bare(step, reward=1.0, seed=0, **more):
    return {"seed": seed, "step": step, "reward": reward, "terminated": False, "truncated": False, **more}


def test_a_trace_with_only_the_required_keys_is_one_constant_regime(tmp_path):
    path = foreign(tmp_path / "other" / "traces.jsonl", [bare(step, 0.5 * step) for step in range(5)])
    run = runs.load_run(path.parent)
    (stream,) = run.streams
    assert [(s.id, s.origin, s.start, s.end) for s in stream.segments] == [("constant", "constant", 0, 5)]
    assert (stream.run_id, stream.algorithm_id, stream.task, stream.score) == ("other", "other", "unknown", "reward")
    assert stream.reward.tolist() == [0, 0.5, 1, 1.5, 2]
    assert run.meta["seeds"] == [0]


def test_segments_follow_the_changes_of_the_labels(tmp_path):
    labels = ["a", "a", "b", "b", "b", "a"]
    rows = [bare(step, regime={"id": label, "boundary": False}) for step, label in enumerate(labels)]
    run = runs.load_run(foreign(tmp_path / "traces.jsonl", rows))
    assert [(s.id, s.start, s.end) for s in run.segments] == [("a", 0, 2), ("b", 2, 5), ("a", 5, 6)]


def test_a_boundary_within_one_label_starts_a_segment_and_origins_are_kept(tmp_path):
    rows = [bare(s, regime={"id": "a", "origin": "base", "boundary": s in (0, 3)}) for s in range(6)]
    run = runs.load_run(foreign(tmp_path / "traces.jsonl", rows))
    assert [(s.id, s.origin, s.start, s.end) for s in run.segments] == [("a", "base", 0, 3), ("a", "base", 3, 6)]


def test_a_regime_may_be_a_plain_name_and_flags_may_be_numbers(tmp_path):
    rows = [{"seed": 1.0, "step": s, "reward": s, "terminated": s % 2, "truncated": 0, "regime": "x"} for s in range(4)]
    (stream,) = runs.load_run(foreign(tmp_path / "traces.jsonl", rows)).streams
    assert stream.terminated.tolist() == [False, True, False, True]
    assert (stream.seed, stream.score, stream.segments[0].id) == (1, "return", "x")


def test_both_readers_of_json_lines_agree(tmp_path):
    rows = [
        bare(
            s,
            float(np.sin(s)),
            seed=s % 2,
            lane=s % 2,
            run_id="r",
            algorithm_id="a",
            task="t",
            regime={"id": "ab"[s > 5]},
        )
        for s in range(12)
    ]
    fast = runs.load_run(foreign(tmp_path / "fast" / "traces.jsonl", rows))
    rows[0]["terminated"] = 0
    slow = runs.load_run(foreign(tmp_path / "slow" / "traces.jsonl", rows))
    for ours, theirs in zip(fast.streams, slow.streams, strict=True):
        assert ours.segments == theirs.segments
        for name in ("step", "lane", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype


def test_rows_are_ordered_by_step_whatever_their_order_in_the_file(tmp_path):
    rows = [bare(step, float(step)) for step in (3, 0, 2, 1)]
    (stream,) = runs.load_run(foreign(tmp_path / "traces.jsonl", rows)).streams
    assert stream.reward.tolist() == [0, 1, 2, 3]


def test_one_file_may_hold_several_algorithms_and_seeds(tmp_path):
    rows = [bare(s, seed=seed, algorithm_id=name) for name in ("x", "y") for seed in (0, 1) for s in range(3)]
    run = runs.load_run(foreign(tmp_path / "traces.jsonl", rows))
    assert [(s.algorithm_id, s.seed, len(s.step)) for s in run.streams] == [
        ("x", 0, 3),
        ("x", 1, 3),
        ("y", 0, 3),
        ("y", 1, 3),
    ]


def test_a_step_that_is_there_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="seed 0 has step 1 twice"):
        runs.load_run(foreign(tmp_path / "traces.jsonl", [bare(0), bare(1), bare(1)]))


@pytest.mark.parametrize("tail", ['{"seed": 0, "st', '{"seed": 0, "step": 3, "reward"', "\x00\x00"])
def test_a_torn_last_line_is_left_out_with_a_warning(tmp_path, tail):
    run = runs.load_run(foreign(tmp_path / "traces.jsonl", [bare(step) for step in range(3)], tail))
    assert run.streams[0].step.tolist() == [0, 1, 2]
    assert "the last line is torn" in run.warnings[0]


def test_a_whole_last_line_without_a_newline_counts(tmp_path):
    run = runs.load_run(foreign(tmp_path / "traces.jsonl", [bare(0)], json.dumps(bare(1))))
    assert run.streams[0].step.tolist() == [0, 1]
    assert run.warnings == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"seed": 0, "step"', r"traces.jsonl:2 is not JSON"),
        ("[1, 2]", r"traces.jsonl:2 is a list, not an object"),
        ('{"step": 1, %s}', r"traces.jsonl:2 lacks 'reward'"),
        (
            '{"step": 1, "reward": NaN, %s}',
            r"traces.jsonl:2 is not JSON \(NaN",
        ),
        (
            '{"step": 1, "reward": 1e999, %s}',
            r"traces.jsonl:2 has the reward inf",
        ),
        (
            '{"step": 1, "reward": null, %s}',
            r"traces.jsonl:2 lacks 'reward'",
        ),
        ('{"step": 1.5, "reward": 1, %s}', r":2 has the step 1\.5"),
        ('{"step": 1, "reward": "a", %s}', r":2 has the reward 'a'"),
        ('{"seed": 0, "step": 1, "reward": 1, "terminated": "no", "truncated": false}', r":2 has terminated = 'no'"),
    ],
)
def test_a_bad_row_in_the_middle_is_named_by_file_and_line(tmp_path, line, message):
    path = tmp_path / "traces.jsonl"
    line = line.replace("%s", '"seed": 0, "terminated": false, "truncated": false')
    path.write_text(json.dumps(bare(0)) + "\n" + line + "\n" + json.dumps(bare(2)) + "\n")
    with pytest.raises(DataError, match=message):
        runs.load_run(path)


def test_an_empty_trace_has_no_streams(tmp_path):
    (tmp_path / "traces.jsonl").write_text("")
    assert runs.load_run(tmp_path).streams == []


def test_every_run_below_a_folder_is_found(fake, tmp_path):
    execute(fake.job(tmp_path / "a" / "ours"))
    foreign(tmp_path / "b" / "traces.jsonl", [bare(0)])
    (tmp_path / "c" / "checkpoints").mkdir(parents=True)
    foreign(tmp_path / "c" / "checkpoints" / "traces.jsonl", [bare(0)])
    assert runs.find_runs(tmp_path) == [tmp_path / "a" / "ours", tmp_path / "b"]
    assert runs.find_runs(tmp_path / "b") == [tmp_path / "b"]


def test_a_trace_file_of_any_name_is_a_run(tmp_path):
    path = foreign(tmp_path / "mine.jsonl", [bare(0)])
    assert runs.find_runs(path) == [path]
    assert runs.load_run(path).streams[0].run_id == "mine"


def test_no_run_and_no_path_are_errors(tmp_path):
    with pytest.raises(DataError, match="no run at or below"):
        runs.find_runs(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        runs.find_runs(tmp_path / "absent")


def test_a_run_without_run_json_is_read_from_its_parts(fake, tmp_path):
    execute(fake.job(tmp_path / "run"))
    (tmp_path / "run" / "run.json").unlink()
    run = runs.load_run(tmp_path / "run")
    assert [(s.id, s.origin, s.start, s.end) for s in run.segments] == [
        ("earth", "earth", 0, 300),
        ("moon", "moon", 300, 600),
        ("earth_again", "earth", 600, 1000),
    ]
    assert run.evaluations[0].run_id == "run"


def test_labels_that_contradict_the_plan_win(fake, tmp_path):
    execute(fake.job(tmp_path / "run"))
    meta = json.loads((tmp_path / "run" / "run.json").read_text())
    meta["segments"] = [{**meta["segments"][0], "end": 1000}]
    (tmp_path / "run" / "run.json").write_text(json.dumps(meta))
    assert [s.id for s in runs.load_run(tmp_path / "run").segments] == ["earth", "moon", "earth_again"]


def test_a_missing_part_is_an_error_and_a_torn_last_one_a_warning(fake, tmp_path):
    execute(fake.job(tmp_path / "run"))
    steps = tmp_path / "run" / "steps"
    last = sorted(steps.iterdir())[-1]
    last.write_bytes(last.read_bytes()[:100])
    run = runs.load_run(tmp_path / "run")
    assert "part-000004.parquet cannot be read" in run.warnings[0]
    assert run.streams[0].total_steps == 1000
    assert len(run.streams[0].step) == 800
    (steps / "part-000001.parquet").unlink()
    with pytest.raises(DataError, match="lacks part-000001"):
        runs.load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"step": 0, "seed": 0, "regime": "a"}', r"evaluations.jsonl:1 is no evaluation \(KeyError"),
        (
            '{"step": 0, "seed": 0, "regime": "a", "returns": [1, 2], "facts": {"x": [1]}}',
            "facts of other than its 2 episodes",
        ),
        ('{"step": 0, "seed": 0, "regime": "a", "returns": [1e999], "lengths": [1]}', "not finite"),
    ],
)
def test_a_bad_evaluation_is_named(tmp_path, line, message):
    foreign(tmp_path / "traces.jsonl", [bare(0)])
    (tmp_path / "evaluations.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        runs.load_run(tmp_path)


def test_undefined_measures_are_absent_from_evaluations(tmp_path):
    foreign(tmp_path / "traces.jsonl", [bare(0)])
    line = {"step": 0, "seed": 0, "regime": "a", "returns": [1.0], "lengths": [1], "metrics": {"x": None, "y": 2}}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    assert runs.load_run(tmp_path).evaluations[0].metrics == {"y": 2.0}


def test_a_damaged_run_json_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json is not JSON"):
        runs.load_run(tmp_path)


def test_a_hundred_thousand_lines_are_read_fast(tmp_path):
    template = json.dumps(bare(12345678, 0.25, regime={"id": "a", "origin": "a", "boundary": False}))
    lines = [template.replace("12345678", str(step)) for step in range(100_000)]
    (tmp_path / "traces.jsonl").write_text("\n".join(lines) + "\n")
    began = time.process_time()
    run = runs.load_run(tmp_path)
    assert time.process_time() - began < 1.5
    assert len(run.streams[0].step) == 100_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"seed,step,reward,terminated,truncated\n0,0,1.0,0,0\n",
            "each line must be one JSON object, so convert the file",
        ),
        (b"\x1f\x8b\x08\x00\x01\x02", "holds no JSON lines"),
        (b"PAR1\x00\x01PAR1", "holds no JSON lines"),
        (b"\x00" * 64, "holds no JSON lines"),
    ],
)
def test_a_trace_of_another_format_is_refused_not_read_as_empty(tmp_path, content, message):
    (tmp_path / "traces.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        runs.load_run(tmp_path)


def test_rows_that_a_finished_run_lacks_are_told(tmp_path):
    path = foreign(tmp_path / "traces.jsonl", [bare(step) for step in range(5)])
    meta = {"seeds": [0], "status": "finished", "done_steps": 8}
    (tmp_path / "run.json").write_text(json.dumps(meta))
    assert runs.load_run(tmp_path).warnings == ["run.json tells of 8 rows, 5 are there"]
    path.write_text("")
    assert runs.load_run(tmp_path).warnings == ["it holds no steps yet"]
