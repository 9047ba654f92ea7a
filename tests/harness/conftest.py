import importlib.util
import sys
from pathlib import Path

import pytest


def _beside(name):
    spec = importlib.util.spec_from_file_location(f"perdure_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake():
    """The module fake.py beside this file: FakeLearner, SCHEDULE, PLAN, job."""
    return _beside("fake")


@pytest.fixture(scope="session")
def worlds():
    """The module worlds.py beside this file: host environments, policies and an algorithm."""
    return _beside("worlds")
