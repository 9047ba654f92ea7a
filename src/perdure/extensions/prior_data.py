"""Rows of a dataset beside those that the run collects."""

from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension, Run
from perdure.rl import experts, phi, ranges, rehearse
from perdure.rl.dataset import TransitionDataset
from perdure.rl.fit import AgentState
from perdure.rl.phases import Batch, Context
from perdure.rl.prior import Prior

DERIVED = ("next_action", "reset_obs", "return_to_go")
"""Columns that a run may keep and a dataset can tell."""


@component
class PriorData(Extension):
    """Learn from a dataset and from the run at once, after updates on the dataset alone if so wished.

    Rows of the dataset stand beside the replay, are never overwritten and do not count among its capacity. Batches
    are drawn from all rows alike, or half of each from the dataset (`symmetric`: Ball et al., 2023,
    arXiv:2302.02948, section 4.1). The agent's normalisers have seen the dataset when the run begins.
    """

    dataset: TransitionDataset
    offline_updates: int = 0
    """Updates of the agent on the dataset alone before the first step; at least 0."""
    symmetric: bool = False
    """Whether every batch, once the run collects, is half of the dataset."""

    needs = frozenset({"off_policy", "replay"})

    def __post_init__(self):
        ranges.check(self, offline_updates=ranges.AT_LEAST_ZERO)

    def objection(self, run: Run) -> str | None:
        """The dataset is of this world, and tells all that rows of this run tell.

        Raises ConfigError where the dataset is of another world.
        """
        self.dataset.check_fits(run.spec, f"extensions[{len(run.before(self))}].dataset")
        if experts.is_stateful(run.expert):
            return "cannot tell what the stateful expert does along the dataset's episodes; use a stateless expert"
        return phi.late(self, run) if self.offline_updates else None

    def data(self, run: Run) -> dict[str, Any]:
        """The columns of the dataset; returns are discounted as the agent does, or not at all."""
        return self.dataset.columns(*DERIVED, discount=getattr(run.agent, "discount", 1.0))

    def prior(self, data: Any) -> Prior:
        """The rows, and their part of every batch."""
        return Prior(data, 0.5 if self.symmetric else None)

    def pretrain(self, agent_state: AgentState, state: tuple[()], ctx: Context) -> tuple[AgentState, tuple[()]]:
        """The updates on the dataset alone, each on rows drawn anew."""
        if not self.offline_updates:
            return agent_state, state
        columns: dict[str, Any] = {name: jnp.asarray(x) for name, x in ctx.data.items() if name != "expert_action"}
        rows_R = Batch(**columns)
        learn = ctx.learn
        assert learn is not None

        def update(agent_state, number):
            draw_key, update_key = jax.random.split(jax.random.fold_in(ctx.key, number))
            rows_B = rehearse.drawn(rows_R, draw_key, ctx.agent.feed.batch_size)
            return learn(agent_state, rows_B, update_key, number)[0], ()

        return jax.lax.scan(update, agent_state, jnp.arange(self.offline_updates))[0], state
