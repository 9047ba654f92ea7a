import json
import os

import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.harness import checkpoint


def test_a_checkpoint_bears_its_name_only_when_whole(tmp_path):
    def save(folder):
        (folder / "half").write_text("")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkpoint.write_checkpoint(tmp_path, 5, save, {})
    assert checkpoint.checkpoints(tmp_path) == []


def test_the_newest_two_are_kept_and_one_step_may_be_saved_again(tmp_path):
    for step in (5, 10, 10, 20):
        checkpoint.write_checkpoint(tmp_path, step, lambda folder: (folder / "x").write_text("y"), {"step": step})
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["000000000010", "000000000020"]
    assert checkpoint.newest(tmp_path).name == "000000000020"
    assert len(os.listdir(tmp_path / "checkpoints")) == 2


def test_a_run_without_a_checkpoint_says_how_to_get_one(tmp_path):
    with pytest.raises(DataError, match=r"run\.checkpoint_every"):
        checkpoint.newest(tmp_path)


def test_encoded_values_come_back_through_json_exactly():
    value = {
        "a": (1, 2.5, None, True),
        "rng": {"state": 2**127 + 1},
        3: np.array([[0.1, np.nan]], np.float32),
        "bytes": b"\x00\xff",
        "nan": float("inf"),
        "scalar": np.int16(-3),
        "items": [1, "x"],
        "!": "kept",
    }
    back = checkpoint.decode(json.loads(json.dumps(checkpoint.encode(value), allow_nan=False)))
    np.testing.assert_array_equal(back.pop(3), value.pop(3))
    assert back == value
    assert isinstance(back["a"], tuple)
    assert type(back["scalar"]) is np.int16


def test_a_value_that_json_cannot_hold_is_refused():
    with pytest.raises(DataError, match="a object cannot be stored"):
        checkpoint.encode({"x": object()})


@pytest.mark.parametrize("harm", ["alter", "remove"])
def test_a_checkpoint_whose_file_is_not_as_it_was_written_is_refused(tmp_path, harm):
    counts = {name: {} for name in ("step", "mark", "trace", "files", "versions", "origins")}

    def save(folder):
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_bytes(b"\x00\x01\x02")

    folder = checkpoint.write_checkpoint(tmp_path, 3, save, counts)
    assert checkpoint.verify(folder) == folder
    file = folder / "inner" / "weights"
    file.write_bytes(b"\x00\x01\x03") if harm == "alter" else file.unlink()
    with pytest.raises(DataError, match=r"weights (is missing|was altered)"):
        checkpoint.verify(folder)
