from pathlib import Path

import pytest

LM = Path(__file__).parents[1] / "lm"


@pytest.fixture(scope="session")
def stage(load_module):
    """The module tests/lm/answered.py: windows of answers that need no world."""
    return load_module(LM / "answered.py")


@pytest.fixture(scope="session")
def letters(load_module):
    """The module tests/lm/letters.py: a small text world, and a small policy for it."""
    return load_module(LM / "letters.py")
