"""What a host step leaves in the trace: observations as digests, actions as JSON, all of it as one row."""

# Observations and actions are of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from perdure.core import capabilities
from perdure.core.records import Transition

THOUGHTS = ("logprob", "value", "entropy", "effective_rank", "latency_ms")


def row(transition: Transition, place: Mapping[str, Any], thought: Mapping[str, Any], wall: float) -> dict[str, Any]:
    """A row of schema perdure.trace/1 but for the run's own facts.

    `place` has seed, episode and window; `thought` what the policy said of its choice; `wall` is in
    seconds. What the environment itself records (`info["trace"]`) is added, but cannot change what
    the harness knows better.
    """
    info = transition.info
    record = capabilities.record_from_info(info)
    return {
        "raw": info.get("reward_raw") or {},
        "bounds": info.get("reward_bounds") or {"ub": None, "lb": None},
        "events": info.get("reward_warnings") or [],
        "probe": None,
        **(record if isinstance(record, Mapping) else {}),
        **place,
        "step": transition.step,
        "lane": transition.lane,
        "wall": wall,
        "regime": {
            "id": transition.regime_id,
            "origin": transition.regime_origin,
            "boundary": transition.boundary,
            "source": None,
        },
        "reward": transition.reward,
        "components": transition.reward_components,
        "terminated": transition.terminated,
        "truncated": transition.truncated,
        "action": transition.action,
        "obs_digest": digest(transition.observation),
        "policy": {name: thought.get(name) for name in THOUGHTS},
    }


def digest(observation: Any) -> str:
    """Sixteen hex digits that tell observations apart: of their bytes, types and shapes."""
    state = hashlib.blake2b(digest_size=8)
    _feed(state, observation)
    return state.hexdigest()


def finite(value: Any) -> bool:
    """Whether no number in an observation or reward is NaN or infinite; text and other things pass."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "fc" or bool(np.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(finite(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return all(finite(item) for item in value)
    return not isinstance(value, (float, np.floating)) or math.isfinite(value)


def as_action(value: Any, space: Any) -> Any:
    """An action of `space` from what JSON kept of it."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: as_action(value[name], inner) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_action(item, inner) for item, inner in zip(value, space.spaces, strict=True))
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return np.asarray(value, space.dtype)
    return value


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(array.tobytes() if not array.dtype.hasobject else repr(array.tolist()).encode())
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            state.update(f"<{name}>".encode())
            _feed(state, value[name])
    elif isinstance(value, (tuple, list)):
        state.update(f"[{len(value)}]".encode())
        for item in value:
            _feed(state, item)
    else:
        state.update(repr(value).encode())
