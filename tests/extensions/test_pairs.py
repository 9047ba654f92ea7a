"""Every extension with every agent: trained together with others that the agent accepts, or refused with the reason."""

import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure import compatibility
from perdure.core import registry
from perdure.core.component import component
from perdure.core.errors import Refused
from perdure.core.extension import Extension, MissingCapability, NotWired
from perdure.rl import loop
from perdure.rl import schedule as schedules
from perdure.rl import state as states
from perdure.worlds import catalogue

COLUMNS = compatibility.columns()
IDS = [f"{agent}-{'discrete' if discrete else 'continuous'}" for agent, discrete in COLUMNS]
NAMES = sorted(registry.names("extensions"))
PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
AT_LEAST = {
    "online_bc": "sac",
    "imitation_loss": "sac td3 redq asac avg ppo apo",
    "residual_policy": "sac",
    "jsrl_curriculum": "sac",
    "expert_value_metrics": "sac td3 redq asac",
    "cloning_pretrain": "sac td3 redq asac avg apo",
    "mc_pretrain": "sac",
    "bellman_pretrain": "sac",
    "phi_refresh": "sac",
    "prior_data": "sac td3 redq asac dqn",
    "ibrl": "sac td3 redq avg",
    "lcb_gated_bootstrap": "sac td3 redq",
    "critic_blend": "sac",
    "mc_variance_correction": "sac",
    "value_box": "sac",
    "edge_exploration": "sac",
    "kernel_repulsion": "sac td3 redq asac",
    "conditioning_metrics": "sac td3 redq asac avg ppo apo dqn pqn",
    "bias_vore_decomposition": "sac td3 redq asac avg ppo apo dqn pqn",
    "bias_vore_penalty": "sac td3 redq asac avg ppo apo dqn pqn",
    "gail": "ppo",
    "conservative_q": "sac redq asac avg",
    "cal_ql": "sac redq",
    "target_bc": "td3",
}
"""Extension -> the agents that take it in Ajax 0.4.0, which perdure's must take as well."""
BROUGHT = {"agent_expert", "phi_star", "boundary", "simulator"}
"""What the runs of these tests bring beside the agent."""
GROUP = 12
"""Extensions that are trained together."""


def spec_of(discrete):
    return catalogue.pure(compatibility.WORLDS[discrete], {}).spec


def refusal(name, agent, discrete):
    """Why the pair is refused; None if it is not."""
    extension = compatibility.example(name, spec_of(discrete))
    made = registry.resolve("agents", agent)()
    parts = compatibility.companions(extension, spec_of(discrete), made)
    return compatibility.verdict(made, parts, discrete)


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_names_the_extension_and_what_the_agent_lacks(name):
    for agent, discrete in COLUMNS:
        made = registry.resolve("agents", agent)()
        parts = compatibility.companions(compatibility.example(name, spec_of(discrete)), spec_of(discrete), made)
        reason = compatibility.verdict(made, parts, discrete)
        kind = "discrete_actions" if discrete else "continuous_actions"
        lacking = [part.all_needs() - made.offers - {kind} - BROUGHT for part in parts]
        if any(lacking):
            assert reason is not None
        if reason is not None:
            assert any(f"({type(part).__name__})" in reason for part in parts)
            assert all(need in reason for needs in lacking for need in needs), reason


@pytest.mark.parametrize("name", AT_LEAST)
def test_what_ajax_accepts_is_accepted(name):
    for agent in AT_LEAST[name].split():
        kinds = [discrete for column, discrete in COLUMNS if column == agent]
        assert any(refusal(name, agent, discrete) is None for discrete in kinds), (name, agent)


def test_the_page_holds_the_table_that_the_code_gives():
    assert compatibility.table() in PAGE.read_text()


@component
class Still:
    """An expert that always does the same."""

    discrete: bool

    def __call__(self, obs):
        if self.discrete:
            return jnp.ones(obs.shape[:-1], jnp.int32)
        return jnp.full((*obs.shape[:-1], 1), 3.0)


def groups(agent, discrete):
    """Names of the extensions that the agent accepts, `GROUP` at a time, none of which refuses another."""
    made, spec, found = registry.resolve("agents", agent)(), spec_of(discrete), []
    for name in NAMES:
        if refusal(name, agent, discrete) is not None:
            continue
        for group in found:
            fits = compatibility.verdict(made, assembled([*group, name], spec, made), discrete) is None
            if len(group) < GROUP and fits:
                group.append(name)
                break
        else:
            found.append([name])
    return found


def assembled(names, spec, agent):
    """The extensions of these names and of those that they need, each once, those that others need first."""
    parts = {}
    for name in names:
        for part in compatibility.companions(compatibility.example(name, spec), spec, agent):
            parts[type(part)] = small(part)
    return tuple(sorted(parts.values(), key=first_to_last))


def first_to_last(part):
    """Cloning before any other pretraining, givers of phi* before those that need it, and others that pretrain last."""
    gives, takes = "phi_star" in part.provides, "phi_star" in part.all_needs()
    return (type(part).__name__ != "CloningPretrain", not gives or takes, not gives)


def trained(made, tiny):
    """The state after two windows, and its metrics."""
    state, _, metrics = tiny.train(made, 64)
    return state, metrics, made.evaluate(state, {"level": 1.0}, 1)


QUICK = ("sac-continuous",)
"""The agent that takes most; the others are trained among the slow tests, and traced among these."""


@pytest.mark.parametrize(("agent", "discrete"), COLUMNS, ids=IDS)
def test_every_accepted_pair_traces_to_a_program_that_keeps_its_shapes(agent, discrete, tiny):
    world = tiny.Clockwork(continuous=not discrete)
    rollout = {"expert": Still(discrete), "boundary_source": "oracle"}
    for names in groups(agent, discrete):
        made = tiny.made(
            agent, assembled(names, world.spec, tiny.agent(agent)), world=world, seeds=(0,), rollout=rollout
        )
        before, after = shapes(made, tiny)
        assert before == after, names


def shapes(made, tiny):
    """Shapes and types of the state before and after a window, nothing computed."""
    plan = schedules.traced(tiny.STILL, made.trainer.world)
    numbers = states.numbers((0,), made.trainer.n_envs)
    state = jax.eval_shape(partial(loop.init, made.trainer), numbers, plan, made.data)
    one = jax.ShapeDtypeStruct((), jnp.int32)
    after, *_ = jax.eval_shape(partial(loop.advance, made.trainer), state, plan, one, one, made.data)
    told = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)
    return told(state), told(after)


@pytest.mark.parametrize(
    ("agent", "discrete"),
    [
        pytest.param(*column, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for column, name in zip(COLUMNS, IDS, strict=True)
    ],
)
def test_every_accepted_extension_trains(agent, discrete, tiny):
    world = tiny.Clockwork(continuous=not discrete)
    rollout = {"expert": Still(discrete), "boundary_source": "oracle"}
    for names in groups(agent, discrete):
        parts = assembled(names, world.spec, tiny.agent(agent))
        made = tiny.made(agent, parts, world=world, seeds=(0,), rollout=rollout)
        state, metrics, found = trained(made, tiny)
        leaves = tiny.host(state.train.seeds.agent.params)
        assert all(np.isfinite(leaf).all() for leaf in leaves.values()), names
        assert np.isfinite(metrics[-1]["loss/critic"]).all(), names
        assert found.returns.shape == (1, 1)


def small(part):
    """The extension with few steps of pretraining and few rows."""
    sizes = {
        "n_steps": 4,
        "n_mc_steps": 8,
        "n_mc_episodes": 2,
        "online_light_steps": 2,
        "epochs": 1,
        "n_expert_steps": 16,
    }
    known = {field.name for field in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: value for name, value in sizes.items() if name in known})


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
    with pytest.raises(MissingCapability, match=rf"Needy\) needs {what}, which {name.upper()} "):
        tiny.made(name, (Needy(what),))


@pytest.mark.parametrize(
    ("what", "remedy"), [("agent_expert", "give algorithm.expert"), ("boundary", "choose boundary_source")]
)
def test_what_a_run_lacks_is_refused_with_the_remedy(what, remedy, tiny):
    with pytest.raises(NotWired, match=rf"Needy\) needs {what}; {remedy}"):
        tiny.made("sac", (Needy(what),))
    assert issubclass(NotWired, Refused)
