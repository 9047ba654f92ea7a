from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def written(load_module):
    """The module written.py beside this file: networks, gradients and optimisers in NumPy."""
    return load_module(Path(__file__).with_name("written.py"))


@pytest.fixture(scope="session")
def ladder(load_module):
    """The module ladder.py beside this file: the probe worlds in one world."""
    return load_module(Path(__file__).with_name("ladder.py"))


@pytest.fixture(scope="session")
def goldens(load_module):
    """The module update_golden.py beside this file."""
    return load_module(Path(__file__).with_name("update_golden.py"))


@pytest.fixture(scope="session")
def single(load_module):
    """The module single.py beside this file: batches, contexts and one update by itself."""
    return load_module(Path(__file__).with_name("single.py"))
