"""Golden runs: where two seconds of each agent lead. A refactoring moves no number; see update_golden.py."""

import json

import jax
import pytest

NAMES = (
    "ppo",
    "ppo_continuous",
    "dqn",
    "sac",
    "td3",
    "redq",
    "pqn",
    "apo",
    "apo_continuous",
    "asac",
    "avg",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_short_run_leads_where_it_led(name, goldens):
    recorded = json.loads(goldens.FILE.read_text(encoding="utf-8"))
    assert set(recorded["cases"]) == set(goldens.CASES)
    where = f"recorded with jax {recorded['jax']}, this is {jax.__version__}"
    assert goldens.measured(name) == pytest.approx(recorded["cases"][name], rel=1e-4, abs=1e-6), where
