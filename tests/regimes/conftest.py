import pytest

from perdure.core.component import make


@pytest.fixture
def build():
    """Builds a provider from the keyword arguments that a document would hold."""

    def from_fields(cls, **fields):
        return make(cls, fields, "regime")

    return from_fields
