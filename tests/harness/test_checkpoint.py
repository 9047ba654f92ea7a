import json
import os

import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.harness import checkpoint

LEAVES = {
    "params/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.array(7),
    "mask": np.array([True, False]),
    "key": np.array([1, 2], np.uint32),
    "empty": np.zeros((0, 4), np.float16),
}


def test_arrays_come_back_as_they_were(tmp_path):
    checkpoint.save_arrays(tmp_path, LEAVES, {"program": "x"})
    leaves, meta = checkpoint.load_arrays(tmp_path)
    assert meta == {"program": "x"}
    assert list(leaves) == list(LEAVES)
    for path, leaf in LEAVES.items():
        np.testing.assert_array_equal(leaves[path], leaf)
        assert (leaves[path].dtype, leaves[path].shape) == (leaf.dtype, leaf.shape)


def test_bfloat16_comes_back_bit_for_bit(tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    values = np.array([[1.0, -2.5], [3e38, 1e-30]], np.float32).astype(bfloat16)
    checkpoint.save_arrays(tmp_path, {"w": values}, {})
    leaves, _ = checkpoint.load_arrays(tmp_path)
    assert leaves["w"].dtype == values.dtype
    assert leaves["w"].tobytes() == values.tobytes()


def test_equal_arrays_make_equal_bytes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        checkpoint.save_arrays(tmp_path / name, LEAVES, {})
    assert (tmp_path / "a" / "arrays.npz").read_bytes() == (tmp_path / "b" / "arrays.npz").read_bytes()


def test_object_arrays_are_refused(tmp_path):
    with pytest.raises(DataError, match="'x' is an object array"):
        checkpoint.save_arrays(tmp_path, {"x": np.array([None])}, {})


@pytest.mark.parametrize("damage", ["torn", "altered", "missing"])
def test_a_damaged_file_is_refused(tmp_path, damage):
    checkpoint.save_arrays(tmp_path, LEAVES, {})
    file = tmp_path / "arrays.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content if damage == "altered" else content[:-30])
    with pytest.raises(DataError, match="missing, torn or altered"):
        checkpoint.load_arrays(tmp_path)


def test_a_pickle_in_the_place_of_arrays_is_never_loaded(tmp_path):
    checkpoint.save_arrays(tmp_path, {"x": np.zeros(1)}, {})
    np.savez(tmp_path / "arrays.npz", a0=np.array([{"evil": 1}], dtype=object))
    tree = json.loads((tmp_path / "tree.json").read_text())
    tree["sha256"] = checkpoint.sha256(tmp_path / "arrays.npz")
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match="does not hold the arrays"):
        checkpoint.load_arrays(tmp_path)


def test_a_tree_that_disagrees_with_the_arrays_is_refused(tmp_path):
    checkpoint.save_arrays(tmp_path, LEAVES, {})
    tree = json.loads((tmp_path / "tree.json").read_text())
    tree["leaves"]["params/kernel"]["shape"] = [3, 2]
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match=r"'params/kernel' is float32\[2, 3\], not the float32\[3, 2\]"):
        checkpoint.load_arrays(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": np.zeros((2, 3))}, r"'kernel' is float64\(2, 3\), not float32\(2, 3\)"),
        ({"kernal": np.zeros((2, 3), np.float32)}, "has no 'kernel'; did you mean 'kernal'"),
        ({"kernel": np.zeros((2, 3), np.float32), "bias": np.zeros(3)}, "has 'bias', which this one lacks"),
    ],
)
def test_another_programs_leaves_are_named(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        checkpoint.match_leaves(change, {"kernel": np.zeros((2, 3), np.float32)}, tmp_path)


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
