"""The two sets of defaults of the language backends, and how a key of its own overrides them.

"reference" is the behaviour of the published backends, oddities included; "corrected" is perdure's.
"""

from collections.abc import Mapping
from typing import Any

from perdure.core.errors import ConfigError, nearest

PRESETS = ("corrected", "reference")

POLICY: Mapping[str, tuple[Any, Any]] = {
    "conversation": ("append", "fresh"),
    "value_init": ("zeros", "default"),
}
"""Key of a LanguagePolicy -> (corrected, reference)."""

TRAINING: Mapping[str, tuple[Any, Any]] = {
    "gae": ("episodic", "degenerate"),
    "ratio": ("per_token", "sequence_mean"),
    "action_tokens": ("all", "qwen_think"),
    "old_policy_pass": ("eval", "train"),
    "update_dropout": (False, True),
    "value_position": ("token", "final"),
    "bootstrap": ("value", "zero"),
    "kl_penalty": ("k3", "l2_anchor"),
    "kl_under_adapters": (True, False),
}
"""Key of a PPOBackend -> (corrected, reference)."""


def resolve(preset: str, table: Mapping[str, tuple[Any, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Each key of `table`: as `given`, or, where that is None, as the preset has it."""
    if preset not in PRESETS:
        raise ConfigError(f"preset is {preset!r}; {nearest(preset, PRESETS)}")
    column = PRESETS.index(preset)
    return {key: values[column] if given.get(key) is None else given[key] for key, values in table.items()}
