"""The probe ladder: the first world that is not learned names the part that is broken."""

import numpy as np
import pytest

from perdure.worlds import probes

AGENTS = ("ppo", "ppo_continuous", "dqn", "sac", "td3", "redq", "pqn", "avg")


@pytest.mark.parametrize("rung", range(5), ids=lambda rung: tuple(probes.ladder())[rung].removeprefix("perdure/probe_"))
@pytest.mark.parametrize("name", AGENTS)
def test_the_probe_is_learned(name, rung, ladder):
    trainer, seed = ladder.trained(name, rung)
    continuous = trainer.world.continuous
    answers = list(probes.ladder(continuous).values())[rung].answers(ladder.DISCOUNT)
    values = ladder.valued(trainer, seed, answers.observations, answers.actions)
    # An agent that still explores while it learns values states a little below the best policy's.
    slack = 0.35 if answers.actions and name.startswith("ppo") else 0.12
    np.testing.assert_allclose(values, answers.values, atol=slack)
    if answers.actions:
        unbounded = trainer.on_policy and continuous
        own = lambda: ladder.chosen(trainer, seed, answers.observations)
        found = ladder.typical(name, rung, answers.observations) if unbounded else own()
        np.testing.assert_allclose(found, answers.actions, atol=0.2)


@pytest.mark.parametrize("name", AGENTS)
def test_truncation_keeps_the_bootstrap_in_the_whole_loop(name, ladder):
    trainer, seed = ladder.trained(name, ladder.TRUNCATED)
    assert float(ladder.valued(trainer, seed, [0.0], None)[0]) == pytest.approx(1 / (1 - ladder.DISCOUNT), abs=0.15)


@pytest.mark.parametrize("name", AGENTS)
def test_termination_drops_the_bootstrap_in_the_whole_loop(name, ladder):
    trainer, seed = ladder.trained(name, 0)
    assert float(ladder.valued(trainer, seed, [0.0], None)[0]) == pytest.approx(1.0, abs=0.1)
