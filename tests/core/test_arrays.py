"""Named arrays on disk: exact, sealed, and never pickled."""

import json

import numpy as np
import pytest

from perdure.core import arrays
from perdure.core.errors import DataError

LEAVES = {
    "params/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.array(7),
    "mask": np.array([True, False]),
    "key": np.array([1, 2], np.uint32),
    "empty": np.zeros((0, 4), np.float16),
}


def test_arrays_come_back_as_they_were(tmp_path):
    arrays.save(tmp_path, LEAVES, {"program": "x"})
    leaves, meta = arrays.load(tmp_path)
    assert meta == {"program": "x"}
    assert list(leaves) == list(LEAVES)
    for path, leaf in LEAVES.items():
        np.testing.assert_array_equal(leaves[path], leaf)
        assert (leaves[path].dtype, leaves[path].shape) == (leaf.dtype, leaf.shape)


def test_bfloat16_comes_back_bit_for_bit(tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    values = np.array([[1.0, -2.5], [3e38, 1e-30]], np.float32).astype(bfloat16)
    arrays.save(tmp_path, {"w": values}, {})
    leaves, _ = arrays.load(tmp_path)
    assert leaves["w"].dtype == values.dtype
    assert leaves["w"].tobytes() == values.tobytes()


def test_equal_arrays_make_equal_bytes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        arrays.save(tmp_path / name, LEAVES, {})
    assert (tmp_path / "a" / "arrays.npz").read_bytes() == (tmp_path / "b" / "arrays.npz").read_bytes()


def test_object_arrays_are_refused(tmp_path):
    with pytest.raises(DataError, match="'x' holds objects"):
        arrays.save(tmp_path, {"x": np.array([None])}, {})


@pytest.mark.parametrize("damage", ["torn", "altered", "missing"])
def test_a_damaged_file_is_refused(tmp_path, damage):
    arrays.save(tmp_path, LEAVES, {})
    file = tmp_path / "arrays.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content if damage == "altered" else content[:-30])
    with pytest.raises(DataError, match="missing, torn or altered"):
        arrays.load(tmp_path)


def test_a_pickle_in_the_place_of_arrays_is_never_loaded(tmp_path):
    arrays.save(tmp_path, {"x": np.zeros(1)}, {})
    np.savez(tmp_path / "arrays.npz", a0=np.array([{"evil": 1}], dtype=object))
    tree = json.loads((tmp_path / "tree.json").read_text())
    tree["sha256"] = arrays.sha256(tmp_path / "arrays.npz")
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match="does not hold the arrays"):
        arrays.load(tmp_path)


def test_a_tree_that_disagrees_with_the_arrays_is_refused(tmp_path):
    arrays.save(tmp_path, LEAVES, {})
    tree = json.loads((tmp_path / "tree.json").read_text())
    tree["leaves"]["params/kernel"]["shape"] = [3, 2]
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match=r"'params/kernel' is float32\[2, 3\], not the float32\[3, 2\]"):
        arrays.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": np.zeros((2, 3))}, r"'kernel' is float64\[2, 3\], not float32\[2, 3\]"),
        ({"kernal": np.zeros((2, 3), np.float32)}, "it lacks 'kernel'; did you mean 'kernal'"),
        ({"kernel": np.zeros((2, 3), np.float32), "bias": np.zeros(3)}, "has 'bias', which this program does not know"),
    ],
)
def test_another_programs_leaves_are_named(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        arrays.match(change, {"kernel": np.zeros((2, 3), np.float32)}, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[]", "not of schema"),
        ('{"schema": "perdure.sweep/1"}', "not of schema"),
        ('{"schema": "perdure.arrays/1", "leaves": {}, "meta": {}}', "has no 'sha256'"),
        (None, "tree.json is missing"),
    ],
)
def test_a_description_that_is_not_one_is_refused(tmp_path, content, message):
    arrays.save(tmp_path, LEAVES, {})
    (tmp_path / "tree.json").unlink()
    if content is not None:
        (tmp_path / "tree.json").write_text(content)
    with pytest.raises(DataError, match=message):
        arrays.load(tmp_path)
