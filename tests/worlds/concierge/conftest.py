"""A catalogue for all tests, tasks by a regime's numbers, and the vendors of a plain errand."""

import pytest

from perdure.worlds.concierge import catalogue, settings, tasks
from perdure.worlds.concierge.vendors import Vendors

NOW = "2026-05-01T10:00"


@pytest.fixture(scope="session")
def data():
    return catalogue.default()


@pytest.fixture(scope="session")
def pose(data):
    """pose(seed, **params): the task of a seed under a regime."""

    def make(seed, terse=False, **params):
        return tasks.generated(data, seed, settings.settings(data, params, terse))

    return make


@pytest.fixture
def vendors(data):
    """vendors(**versions): all vendors at stock versions, nothing planted, the code 424242, no noise."""

    def make(now=NOW, failing=(), **versions):
        made = Vendors(data, 7, now, versions, {}, "424242", failing=failing)
        made._noise = lambda name, arguments: 1
        return made

    return make
