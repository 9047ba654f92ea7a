"""What is learnt from an expert before the run begins: its policy, its value, and a critic that believes in it."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension, Run
from perdure.rl import cloning, phi, ranges, rehearse, views, windows
from perdure.rl.cloning import PretrainLosses
from perdure.rl.fit import AgentState
from perdure.rl.ops import moments
from perdure.rl.optim import OptState
from perdure.rl.phases import Batch, Context
from perdure.rl.phi import MCPretrainAux, PhiStar, pretrain_critic_mc, pretrain_critic_online_light, refresh_phi_star
from perdure.rl.phi import MCPretrainResults as MCPretrainResults
from perdure.rl.rehearse import pretrain_critic_bellman

COPIES = 16
"""Copies of the world in which BellmanPretrain's expert is played."""


class Cloned(NamedTuple):
    """What CloningPretrain remembers."""

    losses: PretrainLosses
    """Means over the first and the last epoch; NaN where the actor was skipped."""
    observations: moments.Moments
    """Of the expert's observations."""


class Valued(NamedTuple):
    """What MCPretrain remembers."""

    phi_star: PhiStar
    aux: MCPretrainAux


class Refreshed(NamedTuple):
    """What PhiRefresh remembers."""

    phi_star: PhiStar
    """The one that everybody reads."""
    params: dict[str, Any]
    """The one that learns."""
    opt: OptState


@component
class CloningPretrain(Extension):
    """Begin with an actor that imitates an expert: behavioural cloning (Pomerleau, 1989) before the first step.

    The expert is played for `n_steps` in every copy of the world. The actor is fitted to its actions by Adam at the
    actor's learning rate: the likelihood of a Normal whose spread is at least exp(-1), squashed where the actor
    is, the likelihood of the choice where actions are discrete, the squared error where the actor is deterministic.

    It reads observations standardised by the mean and deviation of the expert's. An agent that normalises observations
    takes these over as its own statistics; of any other, they are folded into the actor's first layer
    (w / deviation, b - mean w / deviation, exact), which then reads raw observations. Numbers that the
    expert never varies are only centred, and what convolutions read is left as it is.
    """

    expert_policy: Any = None
    n_steps: int = 100_000
    """Steps of the expert in each copy of the world; the run's budget does not count them."""
    epochs: int = 10
    batch_size: int = 64
    skip_actor: bool = False
    """Leave the actor alone, so that only the agent's normaliser learns from the expert."""
    reset_log_std: bool = False
    """Give the spread of actions, or the part of the last layer that makes it, its initial values back."""
    reset_actor_head: bool = False
    """Give the whole last layer its initial values back."""

    needs = frozenset({"actor", "simulator"})

    def __post_init__(self):
        ranges.check(self, **dict.fromkeys(("n_steps", "epochs", "batch_size"), ranges.COUNT))

    def objection(self, run: Run) -> str | None:
        """It comes before whatever else learns before the run; no option may be without effect."""
        earlier = [type(each).__name__ for each in run.before(self) if "pretrain" in each.implemented_phases()]
        if earlier:
            return f"comes after {earlier[0]}, which learns before the run too; list it first of them"
        if self.skip_actor and not run.agent.normalize_observations:
            return "has skip_actor, which leaves an agent without a normaliser nothing; remove one of the two"
        if self.reset_log_std and (run.spec.discrete or "policy_density" not in run.agent.offers):
            return "has reset_log_std, but the actor has no spread; set reset_log_std: false"
        return None

    def pretrain(self, agent_state: AgentState, state: tuple[()], ctx: Context) -> tuple[AgentState, Cloned]:
        """Play the expert and clone it."""
        play_key, fit_key = jax.random.split(ctx.key)
        rows_R = rehearse.flat(rehearse.rollout(ctx, self.expert_policy, play_key, ctx.n_envs, self.n_steps))
        seen = windows.last(ctx.world, rows_R.obs)
        observed = moments.extend(moments.empty(seen.shape[1:]), seen)
        if self.skip_actor:
            unknown = jnp.full((), jnp.nan)
            return agent_state, Cloned(PretrainLosses(unknown, unknown), observed)
        agent_state, losses = self.clone(agent_state, rows_R, observed, fit_key, ctx)
        return agent_state, Cloned(losses, observed)

    def provided(self, state: Cloned) -> Mapping[str, Any]:
        """The statistics of observations that an agent which normalises them begins with."""
        return {"obs_moments": state.observations}

    def eval_metrics(self, agent_state: AgentState, state: Cloned, ctx: Context) -> dict[str, jax.Array]:
        """The losses of the first and the last epoch."""
        return {f"cloning/{name}": value for name, value in state.losses._asdict().items()}

    def clone(
        self, agent_state: AgentState, rows_R: Batch, observed: moments.Moments, key: jax.Array, ctx: Context
    ) -> tuple[AgentState, PretrainLosses]:
        """The agent with its actor fitted to the actions of rows [R] whose raw observations have these statistics."""
        start = {name: agent_state.params[name] for name in ("actor", "log_std") if name in agent_state.params}
        mean, spread = cloning.scale(ctx, observed)
        look = lambda obs: (obs - mean) / spread
        if ctx.agent.normalize_observations:
            look = lambda obs: windows.framewise(ctx.world, partial(moments.standardise, observed), obs)
        params, losses = cloning.fitted(ctx, start, rows_R, look, key, self.epochs, self.batch_size)
        params = self._partly_reset(start, params, ctx)
        if ctx.nets["actor"].plain and not ctx.agent.normalize_observations:
            params |= {"actor": cloning.folded(params["actor"], mean, spread)}
        slow = {name: params.get(name, tree) for name, tree in agent_state.slow.items()}
        return agent_state._replace(params=agent_state.params | params, slow=slow), losses

    def _partly_reset(self, start, params, ctx):
        """The parameters, with what the options name as it was at the start."""
        *hidden, head = params["actor"]
        first = start["actor"][-1]
        if self.reset_log_std and "log_std" in params:
            params = params | {"log_std": start["log_std"]}
        elif self.reset_log_std:
            spread = jnp.arange(head["b"].shape[0]) >= ctx.spec.action_dim
            head = jax.tree.map(lambda new, old: jnp.where(spread, old, new), head, first)
        return params | {"actor": [*hidden, first if self.reset_actor_head else head]}


@component
class MCPretrain(Extension):
    """Learn what an expert is worth before the run: phi*, critics regressed on its returns and frozen.

    See rl.phi.pretrain_critic_mc for the regression, in the agent's architecture and by its critic's optimiser, on
    raw observations. Then the agent's own critic is nudged towards it (rl.phi.pretrain_critic_online_light).
    """

    expert_policy: Any = None
    n_mc_steps: int = 10_000
    """Steps of the expert in each of its copies of the world; the run's budget does not count them."""
    n_mc_episodes: int = 100
    """Copies of the world, each of which begins with an episode of its own."""
    n_steps: int = 5_000
    """Batches of 256 rows that phi* learns from; no more rows are played than these hold."""
    use_online_light: bool = True
    online_light_steps: int = 500
    online_light_lr_scale: float = 0.1
    """What the learning rate is multiplied by during the nudge, above zero."""

    needs = frozenset({"critic", "discounted", "simulator"})
    provides: ClassVar[frozenset[str]] = frozenset({"phi_star"})

    def __post_init__(self):
        counts = ("n_mc_steps", "n_mc_episodes", "n_steps", "online_light_steps")
        ranges.check(self, **dict.fromkeys(counts, ranges.COUNT), online_light_lr_scale=ranges.POSITIVE)

    def objection(self, run: Run) -> str | None:
        """What is learnt before the run must be on the run's scale."""
        return _out_of_scale(self, run, "set use_online_light: false" if self.use_online_light else "")

    def pretrain(self, agent_state: AgentState, state: tuple[()], ctx: Context) -> tuple[AgentState, Valued]:
        """Play the expert, learn its value, and nudge the agent's critic."""
        learn_key, nudge_key = jax.random.split(ctx.key)
        result = pretrain_critic_mc(
            ctx, self.expert_policy, learn_key, self.n_mc_steps, self.n_mc_episodes, self.n_steps
        )
        if self.use_online_light:
            agent_state = pretrain_critic_online_light(
                ctx,
                agent_state,
                result.phi_star,
                result.rows,
                nudge_key,
                self.online_light_steps,
                self.online_light_lr_scale,
            )
        return agent_state, Valued(result.phi_star, result.aux)

    def provided(self, state: Valued) -> Mapping[str, Any]:
        """phi*."""
        return {"phi_star": state.phi_star}

    def eval_metrics(self, agent_state: AgentState, state: Valued, ctx: Context) -> dict[str, jax.Array]:
        """The range of phi* and how its regression went."""
        known = {"v_min": state.phi_star.v_min, "v_max": state.phi_star.v_max} | state.aux._asdict()
        return {f"mc_pretrain/{name}": value for name, value in known.items()}


@component
class BellmanPretrain(Extension):
    """Begin with a critic that learnt from an expert's steps, by the agent's own critic updates.

    The agent's expert is played for `n_expert_steps`; then come `n_steps` of the agent's own updates on batches of
    those rows. The extensions' phases are folded in them, slow copies follow at the agent's rate, and everything but
    the critic and what its targets remember is put back after each.
    """

    n_steps: int = 5_000
    n_expert_steps: int = 20_000
    """Rows to play; the run's budget does not count them."""

    needs = frozenset({"critic", "replay", "agent_expert", "simulator"})

    def __post_init__(self):
        ranges.check(self, n_steps=ranges.COUNT, n_expert_steps=ranges.COUNT)

    def objection(self, run: Run) -> str | None:
        """What is learnt before the run must be on the run's scale, and phi* be there for those that read it."""
        return _out_of_scale(self, run) or phi.late(self, run)

    def pretrain(self, agent_state: AgentState, state: tuple[()], ctx: Context) -> tuple[AgentState, PretrainLosses]:
        """Play the expert and learn from its steps."""
        play_key, learn_key = jax.random.split(ctx.key)
        copies = min(COPIES, self.n_expert_steps)
        rows_TN = rehearse.rollout(ctx, None, play_key, copies, -(-self.n_expert_steps // copies))
        return pretrain_critic_bellman(ctx, agent_state, rehearse.flat(rows_TN), learn_key, self.n_steps)

    def eval_metrics(self, agent_state: AgentState, state: PretrainLosses, ctx: Context) -> dict[str, jax.Array]:
        """The critic's loss at the first and at the last update."""
        return {f"bellman_pretrain/{name}": value for name, value in state._asdict().items()}


@component
class PhiRefresh(Extension):
    """Let phi* go on learning from what the expert executes in the run; see rl.phi.refresh_phi_star.

    It has a phi* of its own, which takes the place of the one it begins with. Targets are those of the last one shown.
    Each of the last `steps` updates of every `interval` adds a step on that update's batch, and with the
    `interval`th the result is shown. `v_min` and `v_max` stay.
    """

    expert_policy: Any = None
    interval: int = 500
    """Updates of the agent between two refreshes."""
    steps: int = 20
    """At most `interval`."""

    needs = frozenset({"phi_star", "q_critic", "discounted", "replay"})
    reads = frozenset({"is_expert"})
    provides: ClassVar[frozenset[str]] = frozenset({"phi_star"})

    def __post_init__(self):
        ranges.check(self, interval=ranges.COUNT, steps=ranges.COUNT)
        if self.steps > self.interval:
            raise ConfigError(f"steps is {self.steps}; it is at most interval, {self.interval}")

    def pretrain(self, agent_state: AgentState, state: tuple[()], ctx: Context) -> tuple[AgentState, Refreshed]:
        """Take over the phi* that others learnt."""
        phi_star = ctx.provided["phi_star"]
        params = {"critic": phi_star.params}
        return agent_state, Refreshed(phi_star, params, views.optimiser(ctx, "critic").init(params))

    def provided(self, state: Refreshed) -> Mapping[str, Any]:
        """phi* as it was last shown."""
        return {"phi_star": state.phi_star}

    def post_update(self, agent_state: AgentState, state: Refreshed, ctx: Context) -> tuple[AgentState, Refreshed]:
        """Learn and show, where it is time."""

        def learnt(state):
            params, opt = refresh_phi_star(ctx, state.phi_star, state.params, state.opt, ctx.recent, self.expert_policy)
            return state._replace(params=params, opt=opt)

        shown = lambda state: state._replace(phi_star=state.phi_star._replace(params=state.params["critic"]))
        near = ctx.previous.updates % self.interval >= self.interval - self.steps
        state = jax.lax.cond(near, learnt, lambda state: state, state)
        return agent_state, jax.lax.cond(ctx.crossed(self.interval), shown, lambda state: state, state)


def _out_of_scale(extension, run, remedy="set normalize_observations: false"):
    """Why what is learnt before the run would not be on its scale; "" for a remedy: observations do not matter."""
    if run.agent.normalize_rewards:
        return "learns values before the run has scaled any reward; set normalize_rewards: false"
    told = any(isinstance(each, CloningPretrain) for each in run.before(extension))
    if remedy and run.agent.normalize_observations and not told:
        return f"moves the critic before the normaliser has seen anything; list cloning_pretrain before it, or {remedy}"
    return None
