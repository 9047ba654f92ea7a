"""Every example runs, in a process of its own, and prints what it says it does."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

PRINTED = {
    "01_shifting_cartpole.py": ["forgetting", "the run is in"],
    "02_metrics_of_any_trace.py": ["adaptation_speed", "forgetting"],
    "03_own_environment.py": ["1000 rows in"],
    "04_detect_a_shift.py": ["PageHinkley: step 5", "Cusum: step 5"],
    "05_own_extension.py": ["damped/removed"],
    "06_own_world.py": ["ice: ", "gravel: ", "programs compiled: 1"],
    "07_offline.py": ["learned from it alone", "learned after 500 steps in the world"],
}


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_the_example_runs(name, tmp_path):
    command = [sys.executable, str(EXAMPLES / name), *([] if name[:2] in ("04", "06") else [str(tmp_path / "runs")])]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert [text for text in PRINTED[name] if text not in finished.stdout] == []
