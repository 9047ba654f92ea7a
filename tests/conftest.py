"""What every test shares: property tests draw the same examples each time, with no deadline, since cores are shared."""

import gc
import importlib.util
import sys
from pathlib import Path

import hypothesis
import pytest

from perdure import cli

hypothesis.settings.register_profile("perdure", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("perdure")


MOST_MAPS = 25_000
"""Memory maps of a process; Linux allows 65,530, and XLA crashes where it gets no further one for a program."""


@pytest.fixture(autouse=True, scope="module")
def forgotten_programs():
    """Drop JAX's compiled programs after a module once they hold many memory maps."""
    yield
    maps = Path("/proc/self/maps")
    if "jax" in sys.modules and maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPS:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def load_module():
    """Load a file of helpers: path -> module, once in a process, so that equal components are of one type."""

    def load(path):
        name = f"perdure_tests_{path.stem}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        return sys.modules[name]

    return load


@pytest.fixture(scope="session")
def tiny(load_module):
    """The module tests/rl/tiny.py: small agents, worlds and learners."""
    return load_module(Path(__file__).with_name("rl") / "tiny.py")


@pytest.fixture
def perdure_command(monkeypatch, capsys):
    """Run the command line in this process: arguments -> (exit code, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["perdure", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return caught.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def refusal(perdure_command):
    """What a command says as it refuses: arguments -> its one line, without "error: "."""

    def run(*arguments, code=2):
        found, out, err = perdure_command(*arguments)
        assert (found, out) == (code, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err.removeprefix("error: ").rstrip("\n")

    return run
