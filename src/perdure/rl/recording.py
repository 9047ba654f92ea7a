"""Where transition datasets come from: an expert rolled in a pure world, the rows of a replay, a Minari dataset.

Suffixes: T time, N environment copies.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core import seeds
from perdure.core.errors import ConfigError, DataError
from perdure.core.protocols import World
from perdure.rl import acting, experts
from perdure.rl.dataset import COLUMNS, REQUIRED, TransitionDataset
from perdure.rl.ops import prng

COPIES = 16
"""Episodes recorded side by side."""
CHUNK = 64
"""Steps of one compiled call."""
FIRST = 0xFFFFFFFF
"""What a copy's key is folded with for its first state, where a step's is folded with the step."""


class Going(NamedTuple):
    """Copies on their way through one episode each."""

    env: Any
    obs: jax.Array
    memory: Any
    """The expert's state."""
    unfinished: jax.Array
    """[N] whether the episode is still going."""
    t: jax.Array


class Setting(NamedTuple):
    """What may differ between recordings by one program; traced."""

    task: Any
    random_share: jax.Array
    max_steps: jax.Array


def record(
    world: World,
    expert: Any,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    random_share: float = 0.0,
    max_steps: int | None = None,
    params: Mapping[str, float] | None = None,
) -> TransitionDataset:
    """Whole episodes of an expert in a pure world: `episodes` of them, or as many as hold at least `steps` rows.

    Every copy begins an episode and is followed to its end, so that short episodes are no likelier than long ones. At
    each step of each copy, with probability `random_share`, a uniformly random action takes the place of the
    expert's; the row says which (`is_expert`) and what the expert would have done. An episode still going after
    `max_steps` (the world's horizon by default) is truncated there. `params` are the task's. The same arguments give
    the same rows.

    Raises ConfigError for arguments out of range or an expert of another world, and DataError if it gives actions, or
    the world observations, that are not finite.
    """
    wanted = _wanted(episodes, steps)
    if not 0 <= random_share <= 1:
        raise ConfigError(f"random_share is {random_share}; it lies in [0, 1]")
    longest = world.spec.horizon if max_steps is None else _count(max_steps, "max_steps")
    experts.check(expert, world.spec, "expert")
    setting = Setting(world.task(**(params or {})), jnp.float32(random_share), jnp.int32(longest))
    copies = COPIES if episodes is None else min(episodes, COPIES)
    begin, advance = _programs(world, expert, copies)

    rounds: list[dict[str, np.ndarray]] = []
    found = 0
    while found < wanted:
        rounds.append(_round(begin, advance, setting, seed, len(rounds)))
        found += copies if steps is None else len(rounds[-1]["reward"])
    columns = {name: np.concatenate([each[name] for each in rounds]) for name in COLUMNS}
    ends = np.flatnonzero(columns["terminated"] | columns["truncated"])
    last = ends[wanted - 1] if steps is None else ends[np.searchsorted(ends, wanted - 1)]
    return TransitionDataset(**{name: column[: last + 1] for name, column in columns.items()})


def export(rows: Mapping[str, Any], *, wrapped: bool) -> TransitionDataset:
    """The whole episodes among rows of N copies in time order: columns [T, N, ...] by the names of dataset.COLUMNS.

    `is_expert` and `expert_action` may be absent; other columns are left out. What follows the last end of a copy is
    dropped. `wrapped` says that older rows were overwritten: then so is what stands before its first end, as that
    episode may lack its beginning.

    Raises DataError where no whole episode remains, and ConfigError for a missing column or shapes that differ.
    """
    columns = {name: np.asarray(rows[name]) for name in COLUMNS if name in rows and rows[name] is not None}
    for name in REQUIRED:
        if name not in columns:
            raise ConfigError(f"rows have no column {name!r}; give all of {', '.join(REQUIRED)}")
    for name, column in columns.items():
        if column.ndim < 2 or column.shape[:2] != columns["reward"].shape:
            shapes = f"{name} has shape {list(column.shape)}, reward {list(columns['reward'].shape)}"
            raise ConfigError(f"{shapes}; give every column as [time, copies, ...]")
    ends_TN = columns["terminated"] | columns["truncated"]
    kept_TN = np.maximum.accumulate(ends_TN[::-1])[::-1]
    if wrapped:
        kept_TN &= np.cumsum(ends_TN, axis=0) > ends_TN
    if not kept_TN.any():
        raise DataError(f"the {ends_TN.size} rows hold no whole episode; export more of them")
    return TransitionDataset(**{name: _by_copy(column, kept_TN) for name, column in columns.items()})


def from_minari(source: Any, *, is_expert: bool = False) -> TransitionDataset:
    """A Minari dataset, by its id on this machine or as Minari loaded it; `is_expert` goes to every row.

    Actions come in world units and are stored in agent units: those outside the action space are cut to it.
    Raises MissingExtra without minari, Refused for spaces other than Box and Discrete, DataError for torn episodes.
    """
    from perdure.worlds.adapters import minari

    spec, columns = minari.read(source)
    action = np.asarray(experts.agent_units(spec, columns["action"]))
    return TransitionDataset(**columns | {"action": action, "is_expert": np.full(len(action), is_expert)})


def _round(begin, advance, setting, seed, number):
    """One episode of every copy, copy after copy, as columns."""
    world_key = prng.key(seeds.stream(seed, "world", number))
    choice_key = prng.key(seeds.stream(seed, "exploration", number))
    going, blocks = begin(world_key, setting.task), []
    while np.asarray(going.unfinished).any():
        going, block = advance(going, world_key, choice_key, setting)
        blocks.append(jax.device_get(block))
    rows_TN = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    kept_TN = rows_TN.pop("unfinished")
    return {name: _by_copy(column, kept_TN) for name, column in rows_TN.items()}


@functools.lru_cache(maxsize=16)
def _programs(world, expert, copies):
    """The compiled beginning of an episode in every copy, and `CHUNK` steps of it."""
    spec = world.spec
    keys_N = lambda key, t: jax.random.split(jax.random.fold_in(key, t), copies)

    @jax.jit
    def begin(key, task):
        env, obs = jax.vmap(world.reset, (0, None))(keys_N(key, jnp.uint32(FIRST)), task)
        return Going(env, obs, experts.start(expert, copies), jnp.ones(copies, bool), jnp.zeros((), jnp.int32))

    def step(going, world_key, choice_key, setting):
        given, memory = experts.ask(expert, going.memory, going.obs)
        proposed, (random, drawn) = experts.agent_units(spec, given), _draws(spec, choice_key, going.t, setting, copies)
        action = jnp.where(random if spec.discrete else random[:, None], drawn, proposed)
        env, obs, reward, terminated, truncated, *_ = jax.vmap(world.step, (0, 0, 0, None))(
            keys_N(world_key, going.t), going.env, acting.executed(spec, action), setting.task
        )
        truncated = truncated | (going.t + 1 >= setting.max_steps)
        values = (going.obs, action, reward, terminated, truncated, obs, ~random, proposed)
        row = dict(zip(COLUMNS, values, strict=True)) | {"unfinished": going.unfinished}
        unfinished = going.unfinished & ~(terminated | truncated)
        return Going(env, obs, memory, unfinished, going.t + 1), row

    @jax.jit
    def advance(going, world_key, choice_key, setting):
        return jax.lax.scan(lambda now, _: step(now, world_key, choice_key, setting), going, length=CHUNK)

    return begin, advance


def _draws(spec, key, t, setting, copies):
    """[N] whether each copy acts at random, and [N, ...] the random actions in agent units."""
    when_key, what_key = jax.random.split(jax.random.fold_in(key, t))
    random = jax.random.uniform(when_key, (copies,)) < setting.random_share
    if spec.discrete:
        return random, jax.random.randint(what_key, (copies,), 0, spec.action_dim)
    return random, jax.random.uniform(what_key, (copies, spec.action_dim), minval=-1.0, maxval=1.0)


def _by_copy(column_TN, kept_TN):
    """The kept rows, copy after copy in time order."""
    return column_TN.swapaxes(0, 1)[kept_TN.T]


def _wanted(episodes, steps):
    if (episodes is None) == (steps is None):
        raise ConfigError(f"episodes is {episodes} and steps {steps}; give one of the two")
    return _count(steps, "steps") if episodes is None else _count(episodes, "episodes")


def _count(value, name):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; give a whole number, at least 1")
    return value
