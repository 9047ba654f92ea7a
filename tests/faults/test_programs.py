"""What stands in programs, states and sources, none of which is compiled here."""

import re
from functools import partial

import jax
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr

from perdure.core import registry
from perdure.extensions.expert import JSRLCurriculum, OnlineBC
from perdure.extensions.exploration import EDGEExploration
from perdure.extensions.instrumentation import BiasVoreDecomposition
from perdure.extensions.pretrain import MCPretrain, PhiRefresh
from perdure.extensions.prior_data import PriorData
from perdure.extensions.target_mods import ValueBox
from perdure.rl import loop
from perdure.rl.dataset import TransitionDataset


def shapes(tree):
    """Path -> shape and type."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype) for path, leaf in paths}


@pytest.mark.parametrize(("name", "metric"), [("asac", "average/soft_reward"), ("apo", "average/reward")])
def test_an_average_reward_agent_reports_its_average_reward_in_every_window(name, metric, watch, tiny):
    trainer = tiny.made(name, (BiasVoreDecomposition(),)).trainer
    state, plan = watch.begun(trainer, tiny)
    told = jax.eval_shape(partial(loop.advance, trainer), state, plan, np.int32(1), np.int32(1))[2]
    assert told[metric].shape == (1, trainer.chunk_rounds)


def test_an_expert_without_an_extension_is_no_part_of_the_program(watch, tiny):
    bare, unread = tiny.made("sac"), tiny.made("sac", rollout={"expert": watch.Always()})
    assert str(watch.program(bare, tiny)) == str(watch.program(unread, tiny))
    for path in (watch.SOURCES / "agents").glob("*.py"):
        assert "expert" not in watch.code_words(path), path


def test_agents_and_the_loop_know_no_extension(watch):
    names = registry.names("extensions")
    # A plain word, of which the loop has a use of its own.
    known = {*names, *(target.partition(":")[2] for target in names.values())} - {"diagnostics"}
    files = [*(watch.SOURCES / "agents").glob("*.py"), *(watch.SOURCES / "rl").rglob("*.py")]
    assert len(files) > 40
    for path in files:
        assert not known & watch.code_words(path), path
        assert not re.search(r"^\s*(from|import) perdure\.extensions", path.read_text(), re.MULTILINE), path


def test_extensions_keep_their_state_to_themselves(watch, tiny):
    expert = {"rollout": {"expert": watch.Always()}}
    small = MCPretrain(n_mc_steps=6, n_mc_episodes=2, n_steps=2, online_light_steps=2)
    parts = (small, PhiRefresh(), OnlineBC(), JSRLCurriculum(4), EDGEExploration(), ValueBox())
    made, bare = tiny.made("sac", parts, **expert), tiny.made("sac", **expert)
    with_them, without = (watch.begun(each.trainer, tiny, each.data)[0].seeds for each in (made, bare))
    assert len(with_them.extensions.states) == 6
    assert shapes(with_them.agent) == shapes(without.agent)
    # Of where a copy stands they are told one thing more, as any extension that reads it would be: the episode's age.
    added = shapes(with_them.lanes).items() - shapes(without.lanes).items()
    assert [path for path, _ in added] == [".guide.age"]


def constants(closed):
    """The constants of a traced program and of all programs inside it."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for each in jax.tree.leaves(dict(equation.params), is_leaf=lambda x: isinstance(x, ClosedJaxpr)):
            if isinstance(each, ClosedJaxpr):
                yield from constants(each)


def dataset(rows):
    """Episodes of one step."""
    obs, no = np.zeros((rows, 2), np.float32), np.zeros(rows, bool)
    return TransitionDataset(obs, np.zeros(rows, np.int32), np.zeros(rows), ~no, no, obs)


def test_a_dataset_is_no_constant_of_the_program(watch, tiny):
    made = tiny.made("dqn", (PriorData(dataset(5_000)),), seeds=(0, 1, 2))
    assert made.data[0]["obs"].shape == (5_000, 2)  # Of all three seeds.
    assert max((np.size(each) for each in constants(watch.program(made, tiny))), default=0) < 1_000
    again = tiny.made("dqn", (PriorData(dataset(5_000)),), seeds=(0, 1, 2))
    assert (again.trainer, hash(again.trainer)) == (made.trainer, hash(made.trainer))


def test_the_replay_takes_the_bytes_of_the_rows_that_the_run_can_fill(watch, tiny):
    def held(name, total_steps, **settings):
        made = tiny.made(name, rollout={"total_steps": total_steps}, **settings)
        store = watch.begun(made.trainer, tiny)[0].seeds.store
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(store))

    # Two observations of two numbers, an action, a reward, and two flags.
    row = 2 * 2 * 4 + 4 + 4 + 2
    assert held("sac", 96, feed_capacity=1_000_000) == 96 * row
    assert held("dqn", 96, feed_capacity=1_000_000) == 96 * row
    assert held("sac", 1_000_000, feed_capacity=64) == 64 * row
    assert held("ppo", 96) == 0
