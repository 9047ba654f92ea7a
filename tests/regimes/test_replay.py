import json

import pyarrow
import pyarrow.parquet
import pytest

from perdure.core.errors import ConfigError, DataError, Refused
from perdure.regimes.replay import Replay
from perdure.regimes.schedules import boundaries, labels_only, schedule

LABELS = [("a", "a")] * 4 + [("b", "b")] * 3 + [("c", "a")] * 5


def row(step, regime, seed=0):
    return json.dumps({"seed": seed, "step": step, "reward": 0.0, "regime": regime}) + "\n"


def write_trace(folder, labels=LABELS, seed=0):
    rows = [row(step, {"id": name, "origin": origin}, seed) for step, (name, origin) in enumerate(labels)]
    (folder / "traces.jsonl").write_text("".join(rows))
    return folder / "traces.jsonl"


def write_parts(folder, labels=LABELS, seeds=(0, 1)):
    (folder / "steps").mkdir()
    for part, steps in enumerate([range(0, 6), range(6, len(labels))]):
        columns = {
            "seed": [seed for seed in seeds for _ in steps],
            "step": [step for _ in seeds for step in steps],
            "regime": [labels[step][0] for _ in seeds for step in steps],
            "origin": [labels[step][1] for _ in seeds for step in steps],
        }
        table = pyarrow.table(columns)
        for name in ("regime", "origin"):
            position = table.column_names.index(name)
            table = table.set_column(position, name, table[name].dictionary_encode())
        pyarrow.parquet.write_table(table, folder / "steps" / f"part-{part:06d}.parquet")


def labels_of(segments):
    return [(segment.id, segment.origin, segment.start, segment.end) for segment in segments]


EXPECTED = [("a", "a", 0, 4), ("b", "b", 4, 7), ("c", "a", 7, 12)]


def test_labels_are_read_from_a_jsonl_trace(tmp_path):
    trace = write_trace(tmp_path)
    for path in (trace, tmp_path):
        segments = Replay(str(path)).plan(12)
        assert labels_of(segments) == EXPECTED
        assert labels_only(segments)
        assert boundaries(segments) == (4, 7)


def test_labels_are_read_from_parquet_parts(tmp_path):
    write_parts(tmp_path)
    assert labels_of(Replay(str(tmp_path)).plan(12)) == EXPECTED
    assert labels_of(Replay(str(tmp_path), seed=1).plan(12)) == EXPECTED


def test_rows_need_not_stand_in_the_order_of_their_steps(tmp_path):
    trace = write_trace(tmp_path)
    trace.write_text("".join(reversed(trace.read_text().splitlines(keepends=True))))
    assert labels_of(Replay(str(trace)).plan(12)) == EXPECTED


def test_a_run_may_be_shorter_than_the_trace_but_not_longer(tmp_path):
    write_trace(tmp_path)
    assert labels_of(Replay(str(tmp_path)).plan(5)) == [("a", "a", 0, 4), ("b", "b", 4, 5)]
    with pytest.raises(ConfigError, match=r"holds 12 steps, but rollout\.total_steps is 13"):
        Replay(str(tmp_path)).plan(13)
    with pytest.raises(ConfigError, match="ends at step 12, before step 12"):
        Replay(str(tmp_path)).at(12, {})


def test_shifts_move_to_the_next_step_of_all_copies(tmp_path):
    write_trace(tmp_path)
    found = schedule(Replay(str(tmp_path)), 12, n_envs=4)
    assert labels_of(found.segments) == [("a", "a", 0, 4), ("b", "b", 4, 8), ("c", "a", 8, 12)]


def test_parameters_come_back_where_the_run_says_what_they_were(tmp_path):
    write_trace(tmp_path)
    run = {"segments": [{"id": "a", "params": {"g": 1.0}}, {"id": "b", "params": {"g": 2.0}}]}
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert [segment.params for segment in Replay(str(tmp_path)).plan(12)] == [{"g": 1.0}, {"g": 2.0}, {}]


def test_a_drift_cannot_be_replayed_from_labels(tmp_path):
    write_trace(tmp_path)
    run = {"segments": [{"id": "a", "params": {"g": 1.0}, "params_end": {"g": 2.0}}]}
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(Refused, match="'a' was a drift"):
        Replay(str(tmp_path)).plan(12)


def test_rows_without_a_label_are_one_constant_regime(tmp_path):
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps({"seed": 0, "step": step}) + "\n" for step in range(3)))
    assert labels_of(Replay(str(tmp_path)).plan(3)) == [("constant", "constant", 0, 3)]


def test_a_torn_last_line_is_passed_over(tmp_path):
    trace = write_trace(tmp_path)
    trace.write_text(trace.read_text() + '{"seed": 0, "st')
    assert labels_of(Replay(str(tmp_path)).plan(12)) == EXPECTED


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    trace = tmp_path / "traces.jsonl"
    trace.write_text(row(0, "a") + "{oops\n" + row(1, "a"))
    with pytest.raises(DataError, match=r"traces\.jsonl:2 is no row of a trace"):
        Replay(str(trace)).plan(2)


def test_a_missing_step_is_named(tmp_path):
    (tmp_path / "traces.jsonl").write_text(row(0, "a") + row(2, "a"))
    with pytest.raises(DataError, match="step 1 is missing or there twice"):
        Replay(str(tmp_path)).plan(2)


def test_a_seed_the_trace_lacks_is_refused_with_those_it_has(tmp_path):
    write_parts(tmp_path)
    with pytest.raises(ConfigError, match=r"regime\.seed is 5, which .* does not hold; it has 0, 1"):
        Replay(str(tmp_path), seed=5).plan(12)


def test_a_path_without_a_trace_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds neither"):
        Replay(str(tmp_path / "nowhere")).plan(12)
    (tmp_path / "traces.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no step"):
        Replay(str(tmp_path)).plan(12)


def test_a_torn_parquet_part_is_refused(tmp_path):
    write_parts(tmp_path)
    part = tmp_path / "steps" / "part-000001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        Replay(str(tmp_path)).plan(12)
