import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny():
    """The module tests/rl/tiny.py, loaded once in a process, so that equal components are of one type."""
    name = "perdure_tests_tiny"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "rl" / "tiny.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
