import importlib.util
import sys
from pathlib import Path

import pytest


def _loaded(name, path):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def tiny():
    """The module tests/rl/tiny.py, loaded once in a process, so that equal components are of one type."""
    return _loaded("perdure_tests_tiny", Path(__file__).parents[1] / "rl" / "tiny.py")


@pytest.fixture(scope="session")
def written():
    """The module written.py beside this file: networks, gradients and optimisers in NumPy."""
    return _loaded("perdure_tests_written", Path(__file__).with_name("written.py"))


@pytest.fixture(scope="session")
def ladder():
    """The module ladder.py beside this file: the probe worlds in one world."""
    return _loaded("perdure_tests_ladder", Path(__file__).with_name("ladder.py"))


@pytest.fixture(scope="session")
def goldens():
    """The module update_golden.py beside this file."""
    return _loaded("perdure_tests_goldens", Path(__file__).with_name("update_golden.py"))


@pytest.fixture(scope="session")
def single():
    """The module single.py beside this file: batches, contexts and one update by itself."""
    return _loaded("perdure_tests_single", Path(__file__).with_name("single.py"))
