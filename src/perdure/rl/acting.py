"""How the action of every copy is chosen: the agent's, an expert's, an extension's. Suffix N: environment copies."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl import experts
from perdure.rl.phases import Batch, Proposal, Scene


class Draws(NamedTuple):
    """The random numbers that acting needs; drawn for a whole window at once, which costs a step nothing."""

    own: Any
    """What the agent's `noise` gave."""
    uniform: Any
    """[N] uniformly random actions, or () for agents that never warm up."""


class Guide(NamedTuple):
    """What is followed along the episode of every copy because somebody reads it; () where nobody does."""

    expert: Any = ()
    """State of a stateful expert."""
    age: Any = ()
    """[N] steps since the episode began."""


class Choice(NamedTuple):
    """What every copy does next, and what the row keeps of how that came about."""

    action: jax.Array
    """To be executed, in agent units."""
    columns: dict[str, Any]
    """Columns of the row, its action among them."""
    bonus: Any
    end: Any
    guide: Guide
    """Where the expert stands after it."""


def keeps_reset_obs(agent: Any) -> bool:
    """Whether the rows carry what follows a reset: for an agent that values it instead of cutting the bootstrap."""
    return "reset_obs" in agent.offers


def start_guide(trainer: Any, n_envs: int) -> Guide:
    """The guide at the start of an episode of each copy."""
    return Guide(
        trainer.expert.init_state(n_envs) if experts.is_stateful(trainer.expert) else (),
        jnp.zeros(n_envs, jnp.int32) if "step_in_episode" in trainer.columns else (),
    )


def executed(spec: Any, action: jax.Array) -> jax.Array:
    """An agent's action in world units: indices as they are, [-1, 1] mapped onto the box.

    A dimension without both bounds keeps the number, cut at the bound that it has.
    """
    if spec.discrete:
        return action
    low, high = jnp.array(spec.low), jnp.array(spec.high)
    clipped = jnp.clip(action, -1.0, 1.0)
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    return jnp.where(bounded, (high + low) / 2 + (high - low) / 2 * clipped, jnp.clip(clipped, low, high))


def draw(trainer: Any, key: jax.Array) -> Draws:
    """The random numbers for one action of every copy."""
    spec, n_envs = trainer.world.spec, trainer.n_envs
    own = trainer.agent.noise(key, n_envs, spec)
    if trainer.on_policy or trainer.agent.feed.learning_starts == 0:
        return Draws(own, ())
    if spec.discrete:
        return Draws(own, jax.random.randint(key, (n_envs,), 0, spec.action_dim))
    return Draws(own, jax.random.uniform(key, (n_envs, spec.action_dim), minval=-1.0, maxval=1.0))


def choose(trainer: Any, seed: Any, obs: jax.Array, guide: Guide, draws: Draws, clock: Any) -> tuple[Choice, Any]:
    """The choice for each copy at raw observations, and the extensions after it.

    Replay agents act uniformly while they warm up. The agent's action is transformed; an extension's proposal,
    which takes its place also during the warm-up, is executed as it is.
    What an on-policy agent learns from is its own action, whatever became of it.
    """
    advice, guide = _asked(trainer, obs, guide)
    scene = Scene(obs, advice, age=guide.age) if trainer.extended else Scene()
    seen, ctx = seed.normaliser.look(trainer, obs), trainer.context(clock, noise=draws.own, scene=scene)
    action, aux = trainer.agent.act(seed.agent, seen, ctx)
    if not isinstance(draws.uniform, tuple):
        action = jnp.where(ctx.step < trainer.agent.feed.learning_starts, draws.uniform, action)
    own = seed.extensions.transform(seed.agent, action, ctx._replace(scene=scene._replace(policy_action=action)))
    proposal, extensions = Proposal(own, False), seed.extensions
    proposes = extensions.uses("action")
    if proposes:
        ctx = ctx._replace(scene=scene._replace(policy_action=own))
        proposal, extensions = extensions.act(seed.agent, seen, own, ctx)
    columns = {"action": action if trainer.on_policy and not proposes else proposal.action, "aux": aux}
    if "is_expert" in trainer.columns:
        columns["is_expert"] = jnp.broadcast_to(proposal.mask, obs.shape[:1])
    if experts.is_stateful(trainer.expert):
        columns["expert_action"] = advice
    return Choice(proposal.action, columns, proposal.bonus, proposal.end, guide), extensions


def followed(trainer: Any, choice: Choice, next_obs: jax.Array) -> tuple[dict[str, Any], Guide]:
    """What else the row keeps once the true successors are known, and the guide if the episode goes on."""
    columns = dict(choice.columns)
    if experts.is_stateful(trainer.expert):
        columns["next_expert_action"], _ = _asked(trainer, next_obs, choice.guide)
    if "return_to_go" in trainer.columns:
        columns["return_to_go"] = jnp.full(next_obs.shape[:1], -jnp.inf)
    if "next_action" in trainer.columns:
        columns["next_action"] = unknown_action(choice.action)
    age = choice.guide.age
    return columns, choice.guide._replace(age=age if isinstance(age, tuple) else age + 1)


def unknown_action(action: jax.Array) -> jax.Array:
    """What stands where an action is unknown: NaN, or -1 for an index."""
    return jnp.full_like(action, -1 if jnp.issubdtype(action.dtype, jnp.integer) else jnp.nan)


def with_experts(trainer: Any, rows: Batch) -> Batch:
    """Rows with what extensions may read of them: raw observations, and what a stateless expert does there.

    What an agent goes on from where it cuts nothing is the fresh observation, so that is the successor then.
    """
    if not trainer.extended:
        return rows
    successor = rows.next_obs
    if keeps_reset_obs(trainer.agent):
        successor = jnp.where(rows.terminated[..., None], rows.reset_obs, successor)
    rows = rows._replace(raw_obs=rows.obs, raw_next_obs=successor)
    if trainer.expert is None or experts.is_stateful(trainer.expert):
        return rows
    units = lambda obs: experts.agent_units(trainer.world.spec, trainer.expert(obs))
    return rows._replace(expert_action=units(rows.obs), next_expert_action=units(successor))


def evaluated(trainer: Any, seed: Any, obs: jax.Array, guide: Guide, ctx: Any) -> tuple[jax.Array, Guide]:
    """The action of an evaluation for each row of raw observations, in world units, and the guide after it."""
    advice, guide = _asked(trainer, obs, guide)
    seen = seed.normaliser.look(trainer, obs)
    action = trainer.agent.act_greedy(seed.agent, seen, ctx)
    ctx = ctx._replace(scene=Scene(obs, advice, action, guide.age))
    age = guide.age if isinstance(guide.age, tuple) else guide.age + 1
    final = seed.extensions.eval_act(seed.agent, seen, action, ctx)
    return executed(trainer.world.spec, final), guide._replace(age=age)


def _asked(trainer, obs, guide):
    """The expert's action at raw observations, in agent units, and the guide after it; () without an expert."""
    if trainer.expert is None or not trainer.extended:
        return (), guide
    if not experts.is_stateful(trainer.expert):
        return experts.agent_units(trainer.world.spec, trainer.expert(obs)), guide
    action, state = trainer.expert(guide.expert, obs)
    return experts.agent_units(trainer.world.spec, action), guide._replace(expert=state)
