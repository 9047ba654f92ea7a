"""Every extension with every agent that accepts it, for a few windows of the one loop."""

import numpy as np
import pytest

from perdure.core import registry
from perdure.core.component import component
from perdure.core.errors import Refused
from perdure.core.extension import Extension
from perdure.extensions.regularisation import L2Init
from perdure.extensions.resets import ReDo, ShrinkPerturb

AGENTS = ("ppo", "dqn", "sac")
TOGETHER = (*AGENTS, "apo", "asac", "avg", "pqn", "redq", "td3")
EXTENSIONS = {
    "l2_init": L2Init(strength=1.0),
    "redo": ReDo(threshold=0.5, interval=3),
    "shrink_perturb": ShrinkPerturb(interval=3),
}


def test_every_registered_agent_and_extension_is_among_the_pairs():
    assert set(TOGETHER) == set(registry.names("agents"))
    assert set(EXTENSIONS) == set(registry.names("extensions"))


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_the_pair_trains_and_differs_from_the_plain_agent(name, extension, tiny):
    plain, _, _ = tiny.train(tiny.made(name), 192)
    state, _, metrics = tiny.train(tiny.made(name, (EXTENSIONS[extension],)), 192)
    weights = tiny.host(state.train.seeds.agent.params)
    assert all(np.isfinite(leaf).all() for leaf in weights.values())
    assert np.isfinite(metrics[-1]["loss/critic"]).all()
    without = tiny.host(plain.train.seeds.agent.params)
    assert any((weights[path] != without[path]).any() for path in weights if path.startswith("critic"))


@pytest.mark.parametrize("name", TOGETHER)
def test_all_of_them_train_together_and_report(name, tiny):
    made = tiny.made(name, tuple(EXTENSIONS.values()))
    state, _, _ = tiny.train(made, 192)
    found = made.evaluate(state, {"level": 1.0}, 1)
    assert set(found.metrics) == {"redo/dormant_fraction", "redo/recycled_units"}
    assert (found.metrics["redo/recycled_units"] > 0).all()
    assert ((found.metrics["redo/dormant_fraction"] >= 0) & (found.metrics["redo/dormant_fraction"] <= 1)).all()
    assert all(np.isfinite(leaf).all() for leaf in tiny.host(state.train.seeds.agent.params).values())


@component
class Needy(Extension):
    """Needs what a test says."""

    what: str = ""

    def all_needs(self):
        return frozenset({self.what})


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("apo", "discounted"),
        ("asac", "discounted"),
        ("avg", "replay"),
        ("avg", "critic_ensemble"),
        ("pqn", "actor"),
        ("pqn", "replay"),
        ("td3", "policy_density"),
        ("redq", "v_critic"),
    ],
)
def test_what_an_agent_cannot_offer_is_refused_with_the_reason(name, what, tiny):
    with pytest.raises(Refused, match=rf"Needy\) needs {what}, which {name.upper()} "):
        tiny.made(name, (Needy(what),))
