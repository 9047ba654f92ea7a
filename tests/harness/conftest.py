import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fake():
    """The module fake.py beside this file: FakeLearner, SCHEDULE, PLAN, job."""
    spec = importlib.util.spec_from_file_location("perdure_tests_fake", Path(__file__).with_name("fake.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
