"""What an extension is, whatever library the learner is built on: phases, their fold, and needs.

| phase | fold | may change its own state |
|---|---|---|
| init_state(agent_state, key, ctx) -> state | one each | - |
| pretrain(agent_state, state, ctx) -> (agent_state, state) | chained | yes |
| reward(agent_state, state, batch, reward, ctx) -> (reward, state) | chained | yes |
| on_target(agent_state, state, batch, target, ctx) -> target | chained | no |
| critic_loss(agent_state, state, batch, ctx) -> scalar | summed | no |
| actor_loss(agent_state, state, batch, ctx) -> scalar | summed | no |
| action(agent_state, state, obs, ctx) -> (Proposal or None, state) | last proposal wins | yes |
| eval_action(agent_state, state, obs, ctx) -> Proposal or None | last proposal wins | no |
| transform_action(agent_state, state, action, ctx) -> action | chained | no |
| post_update(agent_state, state, ctx) -> (agent_state, state) | chained | yes |
| eval_metrics(agent_state, state, ctx) -> {name: scalar} | merged, a repeated name raises | no |

A loss, target, reward or post_update phase may also append a mapping of metrics to what it
returns; a metric name given twice raises. List order is the order of composition. Each extension
has a key of its own in every phase (`ctx.key`), so adding one never changes another's draws.
"""

from collections.abc import Iterable

from perdure.core.errors import Refused

PHASES = (
    "init_state",
    "pretrain",
    "reward",
    "on_target",
    "critic_loss",
    "actor_loss",
    "action",
    "eval_action",
    "transform_action",
    "post_update",
    "eval_metrics",
)

IMPLIED = {
    "on_target": frozenset({"critic"}),
    "critic_loss": frozenset({"critic"}),
    "actor_loss": frozenset({"actor"}),
    "transform_action": frozenset({"continuous_actions"}),
}


class Extension:
    """The identity at every phase; a component deriving from it overrides the phases it concerns."""

    needs: frozenset[str] = frozenset()
    """Capabilities without which it cannot work, beyond those its phases imply."""

    def implemented_phases(self) -> tuple[str, ...]:
        """The phases this extension overrides, in the order of `PHASES`."""
        return tuple(
            phase for phase in PHASES if getattr(type(self), phase, None) is not getattr(Extension, phase, None)
        )

    def all_needs(self) -> frozenset[str]:
        """Declared needs and those its phases imply."""
        implied = [IMPLIED.get(phase, frozenset()) for phase in self.implemented_phases()]
        return self.needs.union(*implied)


def check_extensions(extensions: Iterable[Extension], offers: frozenset[str], learner: str) -> None:
    """Refuse, naming every offender, extensions whose needs `offers` does not cover, and repeats."""
    problems: list[str] = []
    seen: set[type[Extension]] = set()
    for position, extension in enumerate(extensions):
        place = f"extensions[{position}] ({type(extension).__name__})"
        missing = sorted(extension.all_needs() - offers)
        if missing:
            problems.append(f"{place} needs {', '.join(missing)}, which {learner} does not offer")
        if type(extension) in seen:
            problems.append(f"{place} is there twice; keep one")
        seen.add(type(extension))
    if problems:
        raise Refused("; ".join(problems))
