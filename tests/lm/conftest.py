from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def letters(load_module):
    """The module letters.py beside this file: a small text world, and a small policy for it."""
    return load_module(Path(__file__).with_name("letters.py"))


@pytest.fixture(scope="session")
def stage(load_module):
    """The module answered.py beside this file: windows of answers that need no world, and stand-ins for backends."""
    return load_module(Path(__file__).with_name("answered.py"))
