import numpy as np
import pytest


@pytest.fixture
def info():
    """The info of one step of one lane: what is always there, and what a test adds."""

    def of(**values):
        return {"obs": np.zeros(2), "env_reward": 0.0, "terminated": False, "truncated": False, **values}

    return of
