import json
import os
import subprocess
import sys

import pytest

from perdure.core.errors import DataError, RunFailed
from perdure.harness import directory


def begun(path, status, config_hash="h"):
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"status": status, "config_hash": config_hash}))
    return path


def test_a_new_folder_is_made_and_its_meta_is_empty(tmp_path):
    place = directory.open_directory(tmp_path / "a" / "b", "h", resume=False)
    assert place.meta == {}
    place.close()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("finished", "holds a finished run; choose another"),
        ("running", "unfinished run; pass --resume"),
        ("failed", "unfinished run; pass --resume"),
        ("interrupted", "unfinished run; pass --resume"),
    ],
)
def test_a_folder_with_a_run_is_refused_without_resume(tmp_path, status, message):
    path = begun(tmp_path / "run", status)
    with pytest.raises(DataError, match=message) as caught:
        directory.open_directory(path, "h", resume=False)
    assert str(path) in str(caught.value)
    directory.open_directory(path, "h", resume=True).close()


@pytest.mark.parametrize("resume", [False, True])
def test_another_documents_run_is_refused_either_way(tmp_path, resume):
    path = begun(tmp_path / "run", "interrupted", "other")
    with pytest.raises(DataError, match=r"another document .*run\.output_dir"):
        directory.open_directory(path, "h", resume)


def test_a_trace_without_run_json_is_not_overwritten(tmp_path):
    (tmp_path / "traces.jsonl").write_text("")
    with pytest.raises(DataError, match=r"holds traces\.jsonl but no run\.json"):
        directory.open_directory(tmp_path, "h", resume=True)


def test_two_processes_cannot_write_one_run(tmp_path):
    place = directory.open_directory(tmp_path, "h", resume=False)
    script = (
        "from pathlib import Path\nfrom perdure.harness import directory\n"
        f"directory.open_directory(Path({str(tmp_path)!r}), 'h', False)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert "is being written by another process" in done.stderr
    place.close()
    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == 0


def test_a_refused_folder_is_unlocked_again(tmp_path):
    path = begun(tmp_path / "run", "finished")
    for _ in range(2):
        with pytest.raises(DataError, match="finished"):
            directory.open_directory(path, "h", resume=False)


def test_a_damaged_run_json_is_named(tmp_path):
    (tmp_path / "run.json").write_text('{"status"')
    with pytest.raises(DataError, match=r"run\.json is not JSON"):
        directory.open_directory(tmp_path, "h", resume=True)


def test_an_atomic_write_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "x.json"
    directory.write_atomic(path, b"old")
    os.symlink("/dev/full", tmp_path / ".x.json.partial")
    with pytest.raises(RunFailed, match=r"cannot write .*x\.json: No space left on device"):
        directory.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_path_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match=r"cannot write .*file"):
        directory.open_directory(tmp_path / "file" / "run", "h", resume=False)


def test_leftovers_of_a_killed_process_are_swept(tmp_path):
    begun(tmp_path / "run", "running")
    (tmp_path / "run" / ".run.json.partial").write_text("x")
    (tmp_path / "run" / "checkpoints" / ".0001.partial").mkdir(parents=True)
    directory.open_directory(tmp_path / "run", "h", resume=True).close()
    assert list((tmp_path / "run").rglob("*.partial")) == []
