import json

import numpy as np
import pytest

from perdure.core.records import RegimeSchedule, RolloutWindow, Segment, Transition
from perdure.harness import trace

SCHEDULE = RegimeSchedule((Segment("a", "a", 0, 2), Segment("b", "a", 2, 4)), "oracle")
META = {"run_id": "r", "algorithm_id": "x", "task": "t", "config_hash": "h", "seeds": [7], "score": "return"}


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def window():
    transitions = [
        Transition(s, None, s, 0.5, False, False, "ab"[s // 2], s in (0, 2), {"cost": -1.0 * s}, regime_origin="a")
        for s in range(4)
    ]
    return RolloutWindow(transitions, seed=7)


def test_a_window_of_columns_becomes_rows_with_facts_labels_and_source(tmp_path):
    written = trace.open_trace(tmp_path, META, SCHEDULE, tmp_path / "traces.jsonl")
    written.write_window(window())
    written.close()
    found = rows(tmp_path / "traces.jsonl")
    assert found[3] == {
        "v": 1,
        "run_id": "r",
        "algorithm_id": "x",
        "task": "t",
        "config_hash": "h",
        "seed": 7,
        "step": 3,
        "lane": 0,
        "reward": 0.5,
        "terminated": False,
        "truncated": False,
        "regime": {"id": "b", "origin": "a", "boundary": False, "source": "oracle"},
        "components": {"cost": -3.0},
    }


def test_segment_numbers_are_written_as_names(tmp_path):
    columns = dict(window().columns)
    columns["regime"] = columns["origin"] = np.array([0, 0, 1, 1])
    written = trace.open_trace(tmp_path, META, SCHEDULE, tmp_path / "traces.jsonl")
    written.write_window(RolloutWindow(columns=columns))
    written.close()
    assert [(row["regime"]["id"], row["regime"]["origin"]) for row in rows(tmp_path / "traces.jsonl")] == [
        ("a", "a"),
        ("a", "a"),
        ("b", "a"),
        ("b", "a"),
    ]


@pytest.mark.parametrize("lines", [True, False])
def test_both_kinds_go_on_at_the_counts_of_a_checkpoint(tmp_path, lines):
    path = tmp_path / "traces.jsonl" if lines else None
    first = trace.open_trace(tmp_path, META, SCHEDULE, path)
    first.write_window(window())
    first.flush()
    counts = first.counts()
    first.write_window(window())
    first.close()
    second = trace.open_trace(tmp_path, META, SCHEDULE, path, counts)
    assert second.counts() == counts
    assert counts["rows"] == 4
    second.close()
    from perdure.harness import runs

    assert runs.load_run(tmp_path).streams[0].step.tolist() == [0, 1, 2, 3]
