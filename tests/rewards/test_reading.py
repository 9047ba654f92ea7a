import pytest

from perdure.core.errors import ConfigError
from perdure.rewards.reading import keys, read, reads

INFO = {"cost": 1.0, "ledger": {"net": 2.0, "detail": {"cash": 3.0}}, "flat.key": 4.0}


@pytest.mark.parametrize(
    ("key", "value"), [("cost", 1.0), ("ledger.net", 2.0), ("ledger.detail.cash", 3.0), ("flat.key", 4.0)]
)
def test_a_dotted_key_reaches_into_nested_mappings(key, value):
    assert read(INFO, key) == value
    assert reads(INFO, key)


@pytest.mark.parametrize("key", ["ledger.nett", "cost.more", "nothing", "ledger.detail.cash.more"])
def test_a_missing_key_is_named_with_what_exists(key):
    assert not reads(INFO, key)
    with pytest.raises(ConfigError, match=rf"reads info\['{key}'\], which is missing; (did you mean|known)"):
        read(INFO, key)


def test_keys_are_the_leaves():
    assert keys(INFO) == {"cost", "ledger.net", "ledger.detail.cash", "flat.key"}
