import json
import math

import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.harness.lines import JsonLines


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_write_can_be_read_at_once(tmp_path):
    lines = JsonLines(tmp_path / "x.jsonl")
    lines.write([{"a": 1}, {"a": 2}])
    assert read(tmp_path / "x.jsonl") == [{"a": 1}, {"a": 2}]
    assert lines.counts() == {"rows": 2, "bytes": 16}
    lines.close()


def test_numbers_that_json_lacks_become_null(tmp_path):
    lines = JsonLines(tmp_path / "x.jsonl")
    lines.write([{"a": math.nan, "b": [math.inf, np.float32(np.nan)], "c": {"d": np.array([1.5, np.inf])}, "e": "NaN"}])
    assert read(tmp_path / "x.jsonl") == [{"a": None, "b": [None, None], "c": {"d": [1.5, None]}, "e": "NaN"}]
    lines.close()


def test_numpy_values_and_odd_keys_become_plain_ones(tmp_path):
    lines = JsonLines(tmp_path / "x.jsonl")
    lines.write([{"a": np.int64(3), "b": np.array([[1, 2]]), "c": np.bool_(True), "d": (1, 2)}, {(1, 2): {3}}])
    assert read(tmp_path / "x.jsonl") == [{"a": 3, "b": [[1, 2]], "c": True, "d": [1, 2]}, {"(1, 2)": [3]}]
    lines.close()


def test_reopening_cuts_back_to_the_counts_torn_tail_included(tmp_path):
    path = tmp_path / "x.jsonl"
    lines = JsonLines(path)
    lines.write([{"a": 1}])
    counts = lines.counts()
    lines.write([{"a": 2}])
    lines.close()
    path.write_text(path.read_text() + '{"a"')
    again = JsonLines(path, **counts)
    again.write([{"a": 3}])
    again.close()
    assert read(path) == [{"a": 1}, {"a": 3}]
    assert again.counts() == {"rows": 2, "bytes": 16}


def test_a_file_that_lost_rows_or_was_edited_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a":1}\n')
    with pytest.raises(DataError, match="has 8 bytes, its checkpoint 16"):
        JsonLines(path, rows=2, bytes=16)
    with pytest.raises(DataError, match="was changed since its checkpoint"):
        JsonLines(path, rows=1, bytes=5)
    assert path.read_text() == '{"a":1}\n'
