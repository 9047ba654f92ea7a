"""One step of every environment copy of a seed, and the randomness of a whole window laid out beforehand.

Suffixes: T steps of a window, N environment copies, B rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl import acting, windows
from perdure.rl import schedule as schedules
from perdure.rl.ops import masks, prng
from perdure.rl.phases import Batch

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
    guide: acting.Guide


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


class Plan(NamedTuple):
    """All that a window needs and no step changes: leading axis [T]."""

    task: Any
    weights: jax.Array
    draws: acting.Draws
    step_keys: jax.Array
    fresh: Any
    """(state, obs) with which a copy whose episode ends here goes on: [T, N]."""


def first_lanes(trainer: Any, keys: Keys, schedule: schedules.TracedSchedule) -> Lanes:
    """Every copy at the start of its first episode."""
    task_1, _ = schedules.at(schedule, jnp.zeros(1, jnp.int32))
    task = jax.tree.map(lambda x: x[0], task_1)
    first_keys = jax.vmap(jax.random.fold_in, (0, None))(keys.lanes, jnp.uint32(FIRST))
    env, obs = jax.vmap(trainer.world.reset, (0, None))(first_keys, task)
    return Lanes(env, obs, start_memory(trainer, obs), _no_score(trainer), acting.start_guide(trainer, trainer.n_envs))


def plan(trainer: Any, keys: Keys, clock: Any, schedule: schedules.TracedSchedule) -> Plan:
    """The window's tasks, keys and fresh episodes, drawn in a few wide operations."""
    t_T = clock.t + jnp.arange(trainer.window_steps, dtype=jnp.int32)
    task_T, weights_T = schedules.at(schedule, t_T * trainer.n_envs)
    fold_T = jax.vmap(jax.random.fold_in, (None, 0))
    draws_T = jax.vmap(lambda key: acting.draw(trainer, key))(fold_T(keys.exploration, t_T))
    lane_key_TN = jax.vmap(lambda t: jax.vmap(jax.random.fold_in, (0, None))(keys.lanes, t))(t_T)
    pair_TN2 = jax.vmap(jax.vmap(jax.random.split))(lane_key_TN)
    fresh_TN = jax.vmap(jax.vmap(trainer.world.reset, (0, None)))(pair_TN2[..., 1], task_T)
    return Plan(task_T, weights_T, draws_T, pair_TN2[..., 0], fresh_TN)


def step(trainer: Any, seed: Any, moment: Plan, clock: Any) -> tuple[Any, Batch, Any]:
    """Act in every copy once: the seed after it, the rows to learn from and the line of the trace."""
    lanes, spec = seed.lanes, trainer.world.spec
    choice, extensions = acting.choose(trainer, seed, lanes.obs, lanes.guide, moment.draws, clock)
    taken = acting.executed(spec, choice.action)
    env, next_obs, _, terminated, truncated, *_ = outcome = jax.vmap(trainer.world.step, (0, 0, 0, None))(
        moment.step_keys, lanes.env, taken, moment.task
    )
    memory, reward, components = rewarded(trainer, lanes.memory, moment.weights, taken, outcome)
    done = terminated | truncated
    columns, guide = acting.followed(trainer, choice, next_obs)
    fresh_env, fresh_obs = moment.fresh
    if acting.keeps_reset_obs(trainer.agent):
        columns["reset_obs"] = fresh_obs
    rows = Batch(lanes.obs, reward=reward, terminated=terminated, truncated=truncated, next_obs=next_obs, **columns)
    if seed.extensions.uses("action"):
        rows = rows._replace(reward=reward + choice.bonus, terminated=terminated | choice.end)

    following = Lanes(env, next_obs, memory, lanes.score, guide)
    beginning = Lanes(
        fresh_env,
        fresh_obs,
        start_memory(trainer, fresh_obs),
        _no_score(trainer),
        acting.start_guide(trainer, trainer.n_envs),
    )
    if trainer.detector:
        following = following._replace(score=lanes.score + reward)
    detector, alarm = _watched(trainer, seed.detector, following.score, reward, done)
    lanes = jax.tree.map(lambda a, b: masks.where(done, a, b), beginning, following)
    seed = seed._replace(lanes=lanes, extensions=extensions, detector=detector)
    if trainer.detector:
        seed = seed._replace(shift=seed.shift | alarm)
    return seed, rows, Record(reward, terminated, truncated, taken, components, alarm)


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


def _no_score(trainer):
    return jnp.zeros(trainer.n_envs) if trainer.detector else ()


def start_memory(trainer: Any, obs: jax.Array) -> Any:
    """What reward components remember at the start of an episode of each row of `obs`; () without any."""
    if trainer.reward is None:
        return ()
    zero, no = jnp.zeros(obs.shape[0]), jnp.zeros(obs.shape[0], bool)
    seen = windows.last(trainer.world, obs)
    return trainer.reward.start(jnp, {"obs": seen, "env_reward": zero, "terminated": no, "truncated": no})


def rewarded(trainer: Any, memory: Any, weights: Any, action: jax.Array, outcome: tuple) -> tuple[Any, jax.Array, dict]:
    """Memory, reward and its components after what `world.step` gave for an action in world units."""
    _, next_obs, reward, terminated, truncated, *info = outcome
    if trainer.reward is None:
        return (), reward, {}
    known = {
        "obs": windows.last(trainer.world, next_obs),
        "env_reward": reward,
        "terminated": terminated,
        "truncated": truncated,
    }
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
