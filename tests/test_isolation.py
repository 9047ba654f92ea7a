"""Reading, measuring and reporting need neither JAX nor torch, and no drawing library before something is drawn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = ("jax", "jaxlib", "optax", "torch", "transformers", "matplotlib", "gymnax")

BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is blocked by the test")

sys.meta_path.insert(0, Blocker())
"""

IMPORT_ALL = """
import importlib, pkgutil, perdure
for family in ("core", "metrics", "regimes", "rewards", "harness", "report"):
    package = importlib.import_module(f"perdure.{family}")
    for module in pkgutil.walk_packages(package.__path__, f"perdure.{family}."):
        importlib.import_module(module.name)
"""

METRICS = """
from perdure.cli import main
sys.argv = ["perdure", "metrics", {folder!r}, "--json"]
main()
"""

LIGHT = """
import sys, perdure
heavy = {"jax", "numpy", "pydantic", "gymnasium", "pyarrow", "scipy"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def run(code: str, *arguments: str) -> str:
    finished = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture
def foreign_trace(tmp_path: Path) -> Path:
    """Somebody else's run: forty one-step episodes that pay 1, then forty that pay 3, required keys and labels only."""
    rows = [
        {"seed": 0, "step": step, "reward": 1.0 + 2.0 * (step >= 40), "terminated": True, "truncated": False}
        | {"regime": {"id": "calm" if step < 40 else "storm"}}
        for step in range(80)
    ]
    folder = tmp_path / "runs" / "theirs"
    folder.mkdir(parents=True)
    (folder / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


def test_the_blocker_blocks():
    with pytest.raises(AssertionError, match="blocked by the test"):
        run(BLOCKER + "import jax")


def test_harness_metrics_and_report_import_without_jax_torch_and_matplotlib():
    run(BLOCKER + IMPORT_ALL)


def test_metrics_of_a_foreign_trace_need_neither_jax_nor_torch(foreign_trace):
    summary = json.loads(run(BLOCKER + METRICS.format(folder=str(foreign_trace))))
    assert "theirs" in json.dumps(summary)


def test_importing_perdure_loads_no_heavy_library():
    assert run(LIGHT).strip() == "[]"
