"""The framework of extensions under the names that users of Ajax know; what it is made of stands in core and rl."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from perdure.core.errors import Refused
from perdure.core.extension import COLUMNS, Extension, MissingCapability, NotWired, Run, check_extensions, unfollowed
from perdure.rl import fold
from perdure.rl.fold import Extensions
from perdure.rl.phases import Batch, Metrics, Proposal, merged
from perdure.rl.phases import Context as ExtensionContext

__all__ = [
    "PHASE_BATCH_KEYS",
    "Batch",
    "Extension",
    "ExtensionContext",
    "ExtensionStack",
    "MissingCapability",
    "NotWired",
    "Proposal",
    "Run",
    "check_capabilities",
    "check_extension_experts",
    "check_extensions",
    "holds_expert",
    "merge_metrics",
    "phase_output",
]

_ROWS = tuple(name for name in Batch._fields if name not in ("target", "params", "agent_loss", "scored_action"))
PHASE_BATCH_KEYS: dict[str, tuple[str, ...]] = {
    "reward": _ROWS,
    "on_target": (*_ROWS, "scored_action"),
    "critic_loss": (*_ROWS, "scored_action", "target", "params"),
    "actor_loss": (*_ROWS, "params", "agent_loss"),
}
"""Phase -> the fields of `Batch` that are filled there; a column that a run does not keep is ()."""

check_capabilities = check_extensions
merge_metrics = merged


def phase_output(result: Any) -> tuple[Any, Metrics]:
    """(value, metrics) of what a phase returned: the value alone, or with a mapping of metrics."""
    value, extra = fold.split(result)
    return value, merged({}, *extra)


def holds_expert(extension: Extension) -> bool:
    """Whether the extension brings an expert of its own."""
    return getattr(extension, "expert_policy", None) is not None


def check_extension_experts(extensions: Iterable[Extension], expert: Any) -> None:
    """Refuse extensions whose own expert is stateful and not the agent's `expert`: it would not be followed."""
    for position, extension in enumerate(extensions):
        if unfollowed(extension, expert):
            name = type(extension).__name__
            raise Refused(f"extensions[{position}] ({name}) brings a stateful expert; give it as the agent's own")


@dataclasses.dataclass(frozen=True)
class ExtensionStack:
    """Extensions in the order of composition, folded over states that the caller keeps.

    The compiled loop folds rl.fold.Extensions, which holds states and key besides; every method here is one of its.
    """

    extensions: tuple[Extension, ...] = ()

    def implemented_phases(self) -> frozenset[str]:
        """Phases that any extension overrides."""
        return frozenset(phase for part in self.extensions for phase in part.implemented_phases())

    def buffer_fields(self) -> frozenset[str]:
        """Optional columns that any extension reads."""
        return frozenset().union(*(part.reads for part in self.extensions)) & COLUMNS

    def with_experts(self, expert: Any) -> "ExtensionStack":
        """The stack itself, its experts checked against the agent's: perdure finds them through the context."""
        check_extension_experts(self.extensions, expert)
        return self

    def bind_to_agent(self, **context: Any) -> "ExtensionStack":
        """The stack itself: what Ajax's agents bind, perdure's extensions read from the context. Raises Refused."""
        if context:
            raise Refused(
                f"bind_to_agent was given {', '.join(sorted(context))}, which perdure binds itself; pass none"
            )
        return self

    def fold_init_states(self, agent_state: Any, key: Any, ctx: ExtensionContext) -> tuple[Any, ...]:
        """The first state of each extension."""
        return Extensions.begin(self.extensions, agent_state, key, ctx).states

    fold_init = fold_init_states

    def fold_pretrain(self, agent_state: Any, states: Any, ctx: ExtensionContext) -> tuple[Any, Any]:
        """(agent_state, states) after the phase pretrain; keys come from `ctx.key`."""
        agent_state, after = self._over(states, ctx).pretrain(agent_state, ctx)
        return agent_state, after.states

    def fold_reward(self, agent_state: Any, states: Any, batch: Batch, ctx: ExtensionContext) -> tuple[Any, Any, Any]:
        """(rewards, states, metrics)."""
        batch, after, metrics = self._over(states, ctx).reward(agent_state, batch, ctx)
        return batch.reward, after.states, metrics

    def fold_on_target(
        self, agent_state: Any, states: Any, batch: Batch, target: Any, ctx: ExtensionContext
    ) -> tuple[Any, Metrics]:
        """(targets, metrics)."""
        return self._over(states, ctx).target(agent_state, batch, target, ctx)

    def fold_critic_loss(
        self, agent_state: Any, states: Any, batch: Batch, ctx: ExtensionContext
    ) -> tuple[Any, Metrics]:
        """(sum of terms, metrics)."""
        return self._over(states, ctx).loss("critic_loss", agent_state, batch, ctx)

    def fold_actor_loss(
        self, agent_state: Any, states: Any, batch: Batch, ctx: ExtensionContext
    ) -> tuple[Any, Metrics]:
        """(sum of terms, metrics)."""
        return self._over(states, ctx).loss("actor_loss", agent_state, batch, ctx)

    def fold_post_update(self, agent_state: Any, states: Any, ctx: ExtensionContext) -> tuple[Any, Any, Metrics]:
        """(agent_state, states, metrics)."""
        agent_state, after, metrics = self._over(states, ctx).post_update(agent_state, ctx)
        return agent_state, after.states, metrics

    def fold_eval_metrics(self, agent_state: Any, states: Any, ctx: ExtensionContext) -> Metrics:
        """Every extension's metrics of an evaluation."""
        return self._over(states, ctx).eval_metrics(agent_state, ctx)

    def _over(self, states, ctx):
        return Extensions(tuple(states), ctx.key, self.extensions)
