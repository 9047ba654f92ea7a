import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest

from perdure.core.errors import DataError, RunFailed
from perdure.core.records import RegimeSchedule, RolloutWindow, Segment
from perdure.harness import parts

SCHEDULE = RegimeSchedule((Segment("a", "a", 0, 50), Segment("b", "b", 50, 80), Segment("a2", "a", 80, 1000)))
EMPTY = {"rows": 0, "parts": 0}


def window(begin, end, seeds=(5, 1), names=False, **more):
    step = np.tile(np.arange(begin, end), len(seeds))
    index = SCHEDULE.index_at(step)
    labels = {"regime": index, "origin": index}
    if names:
        labels = {
            "regime": np.array(["a", "b", "a2"], object)[index],
            "origin": np.array(["a", "b", "a"], object)[index],
        }
    columns = {
        "seed": np.repeat(np.array(seeds), end - begin),
        "step": step,
        "lane": step % 2,
        "reward": step * 0.5,
        "terminated": step % 7 == 0,
        "truncated": np.zeros(len(step), bool),
        **labels,
        "boundary": step == 0,
        **{name: values(step) for name, values in more.items()},
    }
    return RolloutWindow(columns=columns)


def trace(path, at=EMPTY, rows_per_part=200):
    return parts.ParquetTrace(path, (5, 1), SCHEDULE, at, rows_per_part)


@pytest.mark.parametrize("names", [False, True])
def test_labels_are_stored_as_names_whether_given_so_or_as_segment_numbers(tmp_path, names):
    writer = trace(tmp_path)
    writer.write_window(window(0, 100, names=names))
    writer.close()
    table = pq.read_table(tmp_path / "part-000000.parquet")
    assert table["regime"].to_pylist() == (["a"] * 50 + ["b"] * 30 + ["a2"] * 20) * 2
    assert table["origin"].to_pylist() == (["a"] * 50 + ["b"] * 30 + ["a"] * 20) * 2


def test_parts_are_cut_at_the_same_steps_however_the_windows_come(tmp_path):
    for name, edges in {"one": [0, 260], "many": [0, 7, 100, 230, 260]}.items():
        writer = trace(tmp_path / name)
        for begin, end in itertools.pairwise(edges):
            writer.write_window(window(begin, end))
        writer.close()
    assert [path.name for path in sorted((tmp_path / "one").iterdir())] == [f"part-00000{n}.parquet" for n in range(3)]
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "many" / path.name).read_bytes()


def test_rows_of_a_part_are_ordered_by_seed_then_step(tmp_path):
    writer = trace(tmp_path)
    writer.write_window(window(0, 30))
    writer.write_window(window(30, 60))
    writer.close()
    table = pq.read_table(tmp_path / "part-000000.parquet")
    assert table["seed"].to_pylist() == [5] * 60 + [1] * 60
    assert table["step"].to_pylist() == list(range(60)) * 2


def test_actions_and_reward_components_are_kept_also_where_they_come_late(tmp_path):
    writer = trace(tmp_path)
    vector = {"action": lambda step: np.stack([step, -step], 1).astype(np.float32)}
    writer.write_window(window(0, 2, **vector))
    writer.write_window(window(2, 4, **vector, **{"component/cost": lambda step: -1.0 * step}))
    writer.close()
    table = pq.read_table(tmp_path / "part-000000.parquet")
    assert table["action"].to_pylist()[3] == [3.0, -3.0]
    cost = table["component/cost"].to_numpy()
    assert np.isnan(cost[:2]).all()
    assert cost[2:4].tolist() == [-2.0, -3.0]


def test_flush_makes_all_rows_readable_and_counts_them(tmp_path):
    writer = trace(tmp_path)
    writer.write_window(window(0, 130))
    writer.flush()
    assert writer.counts() == {"rows": 260, "parts": 2}
    assert sum(pq.read_metadata(path).num_rows for path in tmp_path.iterdir()) == 260
    writer.close()
    writer.close()


def test_reopening_at_a_checkpoint_drops_the_later_parts(tmp_path):
    writer = trace(tmp_path)
    writer.write_window(window(0, 130))
    writer.flush()
    counts = writer.counts()
    writer.write_window(window(130, 300))
    writer.close()
    again = trace(tmp_path, counts)
    assert len(list(tmp_path.iterdir())) == 2
    again.write_window(window(130, 160))
    again.close()
    steps = [step for path in sorted(tmp_path.iterdir()) for step in pq.read_table(path)["step"].to_pylist()]
    assert sorted(steps) == sorted([*range(160)] * 2)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 torn"])
def test_reopening_where_a_part_is_lost_or_damaged_is_refused_and_deletes_nothing(tmp_path, content):
    writer = trace(tmp_path)
    writer.write_window(window(0, 300))
    writer.close()
    (tmp_path / "part-000001.parquet").unlink()
    if content is not None:
        (tmp_path / "part-000001.parquet").write_bytes(content)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"part-000001\.parquet is missing or damaged"):
        trace(tmp_path, {"rows": 4, "parts": 2})
    assert sorted(tmp_path.iterdir()) == before


def test_reopening_throws_away_what_is_no_part_of_the_run(tmp_path):
    (tmp_path / "part-copy.parquet").write_bytes(b"")
    trace(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_writing_thread_reaches_the_caller_naming_the_path(tmp_path):
    writer = trace(tmp_path / "steps")
    (tmp_path / "steps").rmdir()
    writer.write_window(window(0, 100))
    with pytest.raises(RunFailed, match=r"cannot write .*part-000000\.parquet"):
        writer.flush()
    with pytest.raises(RunFailed):
        writer.write_window(window(100, 200))
    with pytest.raises(RunFailed):
        writer.close()
    writer.close()


def test_uneven_windows_are_a_mistake_of_the_learner(tmp_path):
    writer = trace(tmp_path)
    with pytest.raises(AssertionError, match="equally many"):
        writer.write_window(RolloutWindow(columns={name: v[:-1] for name, v in window(0, 10).columns.items()}))
    writer.close()
