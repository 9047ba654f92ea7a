from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def watch(load_module):
    """The module watch.py."""
    return load_module(Path(__file__).with_name("watch.py"))
