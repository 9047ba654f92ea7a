"""Gymnasium spaces as JSON values and as the Spec of a world, and a Spec as JSON."""

# Gymnasium's spaces leave their fields untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import numpy as np

from perdure.core import capabilities
from perdure.core.records import Spec


def as_json(space: Any) -> dict[str, Any]:
    """A JSON form of a space: its kind and what defines it. An unbounded end of a Box is null."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        low, high = _bounds(space.low), _bounds(space.high)
        return {"kind": "box", "shape": list(space.shape), "dtype": space.dtype.name, "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "multi_discrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "multi_binary", "shape": list(space.shape)}
    if isinstance(space, spaces.Text):
        return {"kind": "text", "min_length": space.min_length, "max_length": space.max_length}
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "spaces": {name: as_json(inner) for name, inner in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "spaces": [as_json(inner) for inner in space.spaces]}
    return {"kind": "other", "repr": repr(space)}


def spec_of(env: Any) -> Spec:
    """What an agent must know of a host environment.

    Spaces other than Box and Discrete read as no shape and no actions; whoever understands them asks
    the environment itself. An environment that says `persistent = True` never ends.
    """
    from gymnasium.spaces import Box, Discrete

    seen: Any = env.observation_space
    acts: Any = env.action_space
    box: bool = isinstance(acts, Box)
    discrete: bool = isinstance(acts, Discrete)
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    low, high = (tuple(bound.ravel().tolist()) for bound in (acts.low, acts.high)) if box else ((), ())
    return Spec(
        obs_shape=tuple(seen.shape) if isinstance(seen, Box) else (),
        action_dim=int(acts.n) if discrete else len(low),
        discrete=discrete,
        low=low,
        high=high,
        horizon=int(limit) if limit else 1000,
        episodic=not capabilities.capability(env, "persistent"),
    )


def of_spec(spec: Spec) -> dict[str, Any]:
    """Observation and action spaces of a compiled world in the same form."""
    action: dict[str, Any] = {"kind": "discrete", "n": spec.action_dim, "start": 0}
    if not spec.discrete:
        low, high = _bounds(np.array(spec.low)), _bounds(np.array(spec.high))
        action = {"kind": "box", "shape": [spec.action_dim], "dtype": "float32", "low": low, "high": high}
    seen = {"kind": "box", "shape": list(spec.obs_shape), "dtype": "float32", "low": None, "high": None}
    return {"observation": seen, "action": action}


def _bounds(values: np.ndarray) -> Any:
    """One number where all are equal, else a nested list; null stands for no bound."""
    first = values.ravel()[0] if values.size else 0.0
    if (values == first).all():
        return float(first) if np.isfinite(first) else None
    return (
        [_bounds(row) for row in values] if values.ndim > 1 else [float(v) if np.isfinite(v) else None for v in values]
    )
