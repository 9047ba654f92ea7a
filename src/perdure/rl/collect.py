"""One step of every environment copy of a seed, and the randomness of a whole window laid out beforehand.

Suffixes: T steps of a window, N environment copies, B rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl import schedule as schedules
from perdure.rl.ops import moments, prng
from perdure.rl.phases import Batch, Proposal

FIRST = 0xFFFFFFFF
COLUMNS = ("reward", "terminated", "truncated", "action")


class SeedNumbers(NamedTuple):
    """One 32-bit number per named stream, from core.seeds.stream; [S] each, `world` [S, N]."""

    world: Any
    init: Any
    exploration: Any
    policy: Any
    replay: Any
    extensions: Any


class Keys(NamedTuple):
    """Root keys of a seed's streams; they never change."""

    lanes: jax.Array
    exploration: jax.Array
    policy: jax.Array
    replay: jax.Array

    @classmethod
    def of(cls, numbers: SeedNumbers) -> "Keys":
        return cls(
            jax.vmap(prng.key)(numbers.world),
            prng.key(numbers.exploration),
            prng.key(numbers.policy),
            prng.key(numbers.replay),
        )


class Lanes(NamedTuple):
    """Where each environment copy stands."""

    env: Any
    obs: jax.Array
    memory: Any
    """What reward components remember."""
    score: Any
    """Return of the unfinished episode, kept where a detector watches."""


class Record(NamedTuple):
    """What a step leaves in the trace: [..., T, N] each."""

    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    action: jax.Array
    """In world units, as it was executed."""
    components: dict[str, jax.Array]
    alarm: Any
    """[..., T] whether the detector fired; () without one."""

    def without(self, rows: Batch) -> "Record":
        """The line without the columns that the rows hold already; they become ()."""
        return self._replace(**{name: () for name in COLUMNS if getattr(self, name) is getattr(rows, name)})

    def completed(self, rows: Batch) -> "Record":
        """What `without` shortened, whole again."""
        absent = [name for name in COLUMNS if isinstance(getattr(self, name), tuple)]
        return self._replace(**{name: getattr(rows, name) for name in absent})


class Draws(NamedTuple):
    """The random numbers that acting needs; drawn for a whole window at once, which costs a step nothing."""

    own: Any
    """What the agent's `noise` gave."""
    uniform: Any
    """[N] uniformly random actions, or () for agents that never warm up."""


class Plan(NamedTuple):
    """All that a window needs and no step changes: leading axis [T]."""

    task: Any
    weights: jax.Array
    draws: "Draws"
    step_keys: jax.Array
    fresh: Any
    """(state, obs) with which a copy whose episode ends here goes on: [T, N]."""


class Normaliser(NamedTuple):
    """Running statistics of observations and of discounted returns; () where unused."""

    obs: Any
    returns: Any
    running: Any

    @classmethod
    def begin(cls, trainer: Any) -> "Normaliser":
        agent = trainer.agent
        return cls(
            moments.empty(trainer.world.spec.obs_shape) if agent.normalize_observations else (),
            moments.empty() if agent.normalize_rewards else (),
            jnp.zeros(trainer.n_envs) if agent.normalize_rewards else (),
        )

    def look(self, trainer: Any, obs: jax.Array) -> jax.Array:
        """Observations as the networks see them."""
        return moments.standardise(self.obs, obs) if trainer.agent.normalize_observations else obs

    def see(self, trainer: Any, rows: Batch) -> Batch:
        """Rows as an update sees them: observations standardised, rewards in units of the returns' spread."""
        rows = rows._replace(obs=self.look(trainer, rows.obs), next_obs=self.look(trainer, rows.next_obs))
        if keeps_reset_obs(trainer.agent):
            rows = rows._replace(reset_obs=self.look(trainer, rows.reset_obs))
        if not trainer.agent.normalize_rewards:
            return rows
        return rows._replace(reward=rows.reward * jax.lax.rsqrt(self.returns.variance + 1e-8))

    def absorb(self, trainer: Any, rows_TN: Batch) -> "Normaliser":
        """The statistics with fresh rows added."""
        result = self
        if trainer.agent.normalize_observations:
            flat = rows_TN.obs.reshape(-1, *rows_TN.obs.shape[2:])
            result = result._replace(obs=moments.extend(self.obs, flat))
        if trainer.agent.normalize_rewards:

            def step(running_N, row):
                running_N = trainer.agent.discount * running_N + row.reward
                return jnp.where(row.terminated | row.truncated, 0.0, running_N), running_N

            running, seen_TN = jax.lax.scan(step, self.running, rows_TN)
            result = result._replace(returns=moments.extend(self.returns, seen_TN.reshape(-1)), running=running)
        return result


def first_lanes(trainer: Any, keys: Keys, schedule: schedules.TracedSchedule) -> Lanes:
    """Every copy at the start of its first episode."""
    task_1, _ = schedules.at(schedule, jnp.zeros(1, jnp.int32))
    task = jax.tree.map(lambda x: x[0], task_1)
    first_keys = jax.vmap(jax.random.fold_in, (0, None))(keys.lanes, jnp.uint32(FIRST))
    env, obs = jax.vmap(trainer.world.reset, (0, None))(first_keys, task)
    return Lanes(env, obs, start_memory(trainer, obs), _no_score(trainer))


def plan(trainer: Any, keys: Keys, clock: Any, schedule: schedules.TracedSchedule) -> Plan:
    """The window's tasks, keys and fresh episodes, drawn in a few wide operations."""
    t_T = clock.t + jnp.arange(trainer.window_steps, dtype=jnp.int32)
    task_T, weights_T = schedules.at(schedule, t_T * trainer.n_envs)
    fold_T = jax.vmap(jax.random.fold_in, (None, 0))
    draws_T = jax.vmap(lambda key: draw(trainer, key))(fold_T(keys.exploration, t_T))
    lane_key_TN = jax.vmap(lambda t: jax.vmap(jax.random.fold_in, (0, None))(keys.lanes, t))(t_T)
    pair_TN2 = jax.vmap(jax.vmap(jax.random.split))(lane_key_TN)
    fresh_TN = jax.vmap(jax.vmap(trainer.world.reset, (0, None)))(pair_TN2[..., 1], task_T)
    return Plan(task_T, weights_T, draws_T, pair_TN2[..., 0], fresh_TN)


def step(trainer: Any, seed: Any, moment: Plan, clock: Any) -> tuple[Any, Batch, Any]:
    """Act in every copy once: the seed after it, the rows to learn from and the line of the trace."""
    lanes, spec = seed.lanes, trainer.world.spec
    proposal, aux, extensions = propose(trainer, seed, lanes.obs, moment.draws, clock)
    taken = executed(spec, proposal.action)
    env, next_obs, _, terminated, truncated, *_ = outcome = jax.vmap(trainer.world.step, (0, 0, 0, None))(
        moment.step_keys, lanes.env, taken, moment.task
    )
    memory, reward, components = rewarded(trainer, lanes.memory, moment.weights, taken, outcome)
    done = terminated | truncated
    rows = Batch(lanes.obs, proposal.action, reward, terminated, truncated, next_obs, aux)
    if proposal.mask is not None:
        rows = rows._replace(reward=reward + proposal.bonus, terminated=terminated | proposal.end)

    fresh_env, fresh_obs = moment.fresh
    if keeps_reset_obs(trainer.agent):
        rows = rows._replace(reset_obs=fresh_obs)
    following = Lanes(env, next_obs, memory, lanes.score)
    beginning = Lanes(fresh_env, fresh_obs, start_memory(trainer, fresh_obs), _no_score(trainer))
    if trainer.detector:
        following = following._replace(score=lanes.score + reward)
    detector, alarm = _watched(trainer, seed.detector, following.score, reward, done)
    lanes = jax.tree.map(lambda a, b: _where(done, a, b), beginning, following)
    seed = seed._replace(lanes=lanes, extensions=extensions, detector=detector)
    if trainer.detector:
        seed = seed._replace(shift=seed.shift | alarm)
    return seed, rows, Record(reward, terminated, truncated, taken, components, alarm)


def keeps_reset_obs(agent: Any) -> bool:
    """Whether the rows carry what follows a reset: for an agent that values it instead of cutting the bootstrap."""
    return "reset_obs" in agent.offers


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


def brief_step(trainer: Any, seed: Any, moment: Plan, clock: Any) -> tuple[Any, Batch, Any]:
    """`step`, the line without what the rows hold."""
    seed, rows, line = step(trainer, seed, moment, clock)
    return seed, rows, line.without(rows)


def blank(take: Callable, trainer: Any, seed: Any, window: Plan, clock: Any) -> tuple[Batch, Any]:
    """Zeroed buffers for the rows and the trace of a window, as `step` or `brief_step` gives them: [T, N] each."""
    moment = jax.tree.map(lambda x: x[0], window)
    _, rows, line = jax.eval_shape(lambda: take(trainer, seed, moment, clock))
    zeros = lambda x: jnp.zeros((trainer.window_steps, *x.shape), x.dtype)
    return jax.tree.map(zeros, rows), jax.tree.map(zeros, line)


def draw(trainer: Any, key: jax.Array) -> Draws:
    """The random numbers for one action of every copy."""
    spec, n_envs = trainer.world.spec, trainer.n_envs
    own = trainer.agent.noise(key, n_envs, spec)
    if trainer.on_policy or trainer.agent.feed.learning_starts == 0:
        return Draws(own, ())
    if spec.discrete:
        return Draws(own, jax.random.randint(key, (n_envs,), 0, spec.action_dim))
    return Draws(own, jax.random.uniform(key, (n_envs, spec.action_dim), minval=-1.0, maxval=1.0))


def propose(trainer: Any, seed: Any, obs: jax.Array, draws: Draws, clock: Any) -> tuple[Proposal, Any, Any]:
    """The action for each copy in agent units, what the agent keeps of it, and the extensions after it.

    Replay agents act uniformly while they warm up; an extension's proposal still takes its place.
    """
    seen, ctx = seed.normaliser.look(trainer, obs), trainer.context(clock, noise=draws.own)
    action, aux = trainer.agent.act(seed.agent, seen, ctx)
    if not isinstance(draws.uniform, tuple):
        action = jnp.where(ctx.step < trainer.agent.feed.learning_starts, draws.uniform, action)
    if seed.extensions.uses("action") or seed.extensions.uses("transform_action"):
        proposal, extensions = seed.extensions.act(seed.agent, seen, action, ctx)
        return proposal, aux, extensions
    return Proposal(action, None, 0.0, False), aux, seed.extensions


def _no_score(trainer):
    return jnp.zeros(trainer.n_envs) if trainer.detector else ()


def start_memory(trainer: Any, obs: jax.Array) -> Any:
    """What reward components remember at the start of an episode of each row of `obs`; () without any."""
    if trainer.reward is None:
        return ()
    zero, no = jnp.zeros(obs.shape[0]), jnp.zeros(obs.shape[0], bool)
    return trainer.reward.start(jnp, {"obs": obs, "env_reward": zero, "terminated": no, "truncated": no})


def rewarded(trainer: Any, memory: Any, weights: Any, action: jax.Array, outcome: tuple) -> tuple[Any, jax.Array, dict]:
    """Memory, reward and its components after what `world.step` gave for an action in world units."""
    _, next_obs, reward, terminated, truncated, *info = outcome
    if trainer.reward is None:
        return (), reward, {}
    known = {"obs": next_obs, "env_reward": reward, "terminated": terminated, "truncated": truncated}
    known |= info[0] if info else {}
    memory, reward, components, _ = trainer.reward.step(jnp, memory, action, known, weights)
    return memory, reward, components


def _watched(trainer, detector, score_N, reward_N, done_N):
    """The detector after this step: it is shown finished returns, or rewards where episodes never end."""
    if trainer.detector is None:
        return detector, ()
    if trainer.world.spec.episodic:
        count = done_N.sum()
        signal, present = jnp.where(done_N, score_N, 0.0).sum() / jnp.maximum(count, 1), count > 0
    else:
        signal, present = reward_N.mean(), jnp.ones((), bool)
    stepped, alarm = trainer.detector.step(jnp, detector, signal)
    kept = jax.tree.map(lambda new, old: jnp.where(present, new, old), stepped, detector)
    return kept, alarm & present


def _where(mask, a, b):
    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)
