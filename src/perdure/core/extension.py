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
| gradient(agent_state, state, grads, batch, ctx) -> grads | chained | no |
| step(agent_state, state, change, batch, ctx) -> change | chained | no |

`gradient` sees {network: gradients} before the optimiser, `step` {network: change of the parameters}
that it makes of them. A loss, target, reward or post_update phase may also append a mapping of
metrics to what it returns; a metric name given twice raises. List order is the order of
composition. Each extension has a key of its own in every phase (`ctx.key`), so adding one never
changes another's draws.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from perdure.core.errors import Refused
from perdure.core.records import Spec

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
    "gradient",
    "step",
)

IMPLIED = {
    "on_target": frozenset({"critic"}),
    "critic_loss": frozenset({"critic"}),
    "actor_loss": frozenset({"actor"}),
    "action": frozenset({"off_policy"}),
    "transform_action": frozenset({"continuous_actions"}),
}

REMEDIES = {
    "agent_expert": "give algorithm.expert",
    "phi_star": "list mc_pretrain before it",
    "boundary": "choose boundary_source oracle or detector",
    "simulator": "it rolls an expert out in the world, so choose a world of perdure list worlds",
}
"""Needs that the rest of a run can bring, and how; the others are of the algorithm."""

COLUMNS = frozenset({"is_expert", "return_to_go", "next_action", "step_in_episode"})
"""What `Extension.reads` may name: columns and counters that are kept only where somebody reads them."""


class MissingCapability(Refused):
    """The algorithm, or the kind of its actions, cannot do what an extension is made of."""


class NotWired(Refused):
    """The algorithm could, but the run does not bring what an extension needs: a companion, an expert, a source."""


class Run(NamedTuple):
    """What an extension may look at before it agrees to a run."""

    spec: Spec
    agent: Any
    extensions: tuple["Extension", ...]
    expert: Any = None
    """The agent's own expert."""

    def before(self, extension: "Extension") -> tuple["Extension", ...]:
        """The extensions listed before this one."""
        return self.extensions[: next(i for i, each in enumerate(self.extensions) if each is extension)]


class Extension:
    """The identity at every phase; a component deriving from it overrides the phases it concerns.

    One with a field `expert_policy` follows an expert: None there stands for the agent's own.
    """

    needs: frozenset[str] = frozenset()
    """Capabilities without which it cannot work, beyond those its phases imply."""
    reads: frozenset[str] = frozenset()
    """Which of `COLUMNS` it looks at."""
    provides: ClassVar[frozenset[str]] = frozenset()
    """Needs of later extensions that this one meets."""

    def implemented_phases(self) -> tuple[str, ...]:
        """The phases this extension overrides, in the order of `PHASES`."""
        return tuple(
            phase for phase in PHASES if getattr(type(self), phase, None) is not getattr(Extension, phase, None)
        )

    def all_needs(self) -> frozenset[str]:
        """Declared needs and those that its phases and its expert imply."""
        implied = [IMPLIED.get(phase, frozenset()) for phase in self.implemented_phases()]
        lacks_own = self.follows_expert and getattr(self, "expert_policy", None) is None
        return self.needs.union(["agent_expert"] if lacks_own else [], *implied)

    @property
    def follows_expert(self) -> bool:
        """Whether it asks the expert of its field `expert_policy`."""
        return hasattr(self, "expert_policy")

    def objection(self, run: Run) -> str | None:
        """Why it cannot be part of `run` although its needs are met; None: it can."""
        return None

    def data(self, run: Run) -> Any:
        """Arrays that its phases read as `ctx.data`: handed to the program, and shared by all seeds."""
        return ()

    def prior(self, data: Any) -> Any:
        """A rl.prior.Prior of `data`: rows that updates see beside the collected ones; None: there are none."""
        return None

    def provided(self, state: Any) -> Mapping[str, Any]:
        """What later extensions find under `ctx.provided`, by name."""
        return {}


def check_extensions(
    extensions: Iterable[Extension], offers: frozenset[str], learner: str, run: Run | None = None
) -> None:
    """Refuse, naming every offender, extensions that the learner or the run cannot serve, and repeats.

    Raises MissingCapability where an algorithm cannot, NotWired where only the run lacks something.
    """
    incapable: list[str] = []
    lacking: list[str] = []
    seen: set[type[Extension]] = set()
    for position, extension in enumerate(extensions):
        place = f"extensions[{position}] ({type(extension).__name__})"
        missing = sorted(extension.all_needs() - offers)
        foreign = [need for need in missing if need not in REMEDIES]
        if foreign:
            incapable.append(f"{place} needs {', '.join(foreign)}, which {learner} does not offer")
        lacking += [f"{place} needs {need}; {REMEDIES[need]}" for need in missing if need in REMEDIES]
        if type(extension) in seen:
            lacking.append(f"{place} is there twice; keep one")
        objection = None if missing or run is None else _objection(extension, run)
        if objection:
            lacking.append(f"{place} {objection}")
        seen.add(type(extension))
        offers = offers | extension.provides
    if incapable or lacking:
        raise (MissingCapability if incapable else NotWired)("; ".join([*incapable, *lacking]))


def unfollowed(extension: Extension, expert: Any) -> bool:
    """Whether it brings a stateful expert that is not the agent's own `expert`, the only one that is followed."""
    own = getattr(extension, "expert_policy", None)
    return hasattr(own, "init_state") and own != expert


def _objection(extension: Extension, run: Run) -> str | None:
    if unfollowed(extension, run.expert):
        return (
            "has a stateful expert_policy, which is followed along episodes only as the agent's own; "
            "move it to algorithm.expert"
        )
    return extension.objection(run)
