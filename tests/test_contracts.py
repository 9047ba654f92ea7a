"""The project's own rules, executed: who may import whom, complete registries, valid documents, readable files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.core import registry
from perdure.harness import load

ROOT = Path(__file__).parents[1]
BARE = ("__init__", "base")
"""Files of a family that hold none of its members."""
SOURCES = ROOT / "src" / "perdure"
DOCUMENTS = sorted(
    path
    for folder in ("examples", "configs", "src/perdure/documents")
    for pattern in ("*.yaml", "*.yml")
    for path in (ROOT / folder).rglob(pattern)
)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(SOURCES, tmp_path / "src" / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def test_every_import_keeps_the_contracts(copy):
    finished = lint_imports(copy)
    assert finished.returncode == 0, finished.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("metrics/__init__.py", "import jax", "The harness side imports neither JAX nor torch"),
        ("harness/__init__.py", "def late():\n    import torch", "The harness side imports neither JAX nor torch"),
        ("core/__init__.py", "import perdure.metrics", "Layers import downwards only"),
        ("rl/__init__.py", "import perdure.agents.sac", "Layers import downwards only"),
        ("agents/sac.py", "import perdure.agents.ppo", "Agents never import each other"),
        ("extensions/resets.py", "import perdure.extensions.regularisation", "Extensions never import each other"),
        ("worlds/__init__.py", "import perdure.rl.loop", "Worlds import no learner"),
    ],
)
def test_a_deliberate_violation_is_caught(copy, file, line, contract):
    with (copy / "src" / "perdure" / file).open("a") as module:
        module.write(f"\n{line}\n")
    finished = lint_imports(copy)
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert f"{contract} BROKEN" in " ".join(finished.stdout.split())


@pytest.mark.parametrize("family", registry.FAMILIES)
def test_every_registered_name_resolves(family):
    for name in registry.names(family):
        assert callable(registry.resolve(family, name))


@pytest.mark.parametrize("family", ["agents", "extensions"])
def test_every_file_of_a_family_is_registered(family):
    registered = {target.partition(":")[0] for target in registry.names(family).values()}
    files = {f"perdure.{family}.{path.stem}" for path in (SOURCES / family).glob("*.py") if path.stem not in BARE}
    assert files <= registered


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with small datasets where documents look for theirs."""
    from perdure.rl import recording
    from perdure.worlds.pure.experts import PendulumExpert
    from perdure.worlds.pure.pendulum import Pendulum

    folder = tmp_path_factory.mktemp("documents")
    dataset = recording.record(Pendulum(), PendulumExpert(), episodes=1)
    for name in ("expert", "mixed"):
        dataset.save(folder / "data" / f"pendulum-{name}.npz")
    return folder


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_document_in_the_project_is_valid(path, recorded, monkeypatch):
    from perdure import build
    from perdure.pipeline import Pipeline

    monkeypatch.chdir(recorded)
    document = load.read(path)
    if document.is_sweep:
        load.sweep_of(document)
    elif "stages" in document.values:
        Pipeline(document.values).check()
    else:
        build.check(load.experiment_of(document))


def test_documents_are_there_to_be_checked():
    assert DOCUMENTS


@pytest.mark.parametrize("folder", ["src", "examples", "benchmarks"])
def test_no_file_is_longer_than_two_or_three_screens(folder):
    lengths = {str(path): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > 300} == {}
