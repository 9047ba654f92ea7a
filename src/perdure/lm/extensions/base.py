"""What a language extension is, and what several of them share."""

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import nn

from perdure.core.errors import ConfigError, Refused, nearest
from perdure.lm.batch import TokenBatch
from perdure.lm.conversation import REPLAYED, Recorded
from perdure.lm.fisher import ParameterScope, build_parameter_filter
from perdure.lm.hooks import Hooks


class LanguageExtension(Protocol):
    """A component that a document may list under `algorithm.extensions` of a language learner."""

    def build(self, policy: Any = None) -> Hooks:
        """The part itself, fresh; which policy it joins it learns when its backend stands."""
        ...


def held(backend: Any, scope: ParameterScope | str) -> dict[str, nn.Parameter]:
    """The trainable parameters in `scope`; ConfigError where there is none."""
    parameters: Mapping[str, nn.Parameter] = backend.named_parameters()
    chosen = build_parameter_filter(scope, parameters)
    return {name: each for name, each in parameters.items() if chosen(name)}


def fresh(batch: TokenBatch) -> list[Recorded]:
    """The samples of a batch that no replay added, each a row of one turn whose reward is known."""
    return [row for row in batch.tokens if row.lane != REPLAYED and not math.isnan(row.turns[0].reward)]


def with_rows(batch: TokenBatch, rows: list[Recorded]) -> TokenBatch:
    """The batch and further rows after it, each an episode of its own that nothing follows."""
    if not rows:
        return batch
    if batch.episode_lengths is None:
        return TokenBatch((*batch.rows, *rows))
    tails = batch.tails or ((),) * len(batch.episode_lengths)
    lengths = tuple(len(row.turns) for row in rows)
    return TokenBatch((*batch.rows, *rows), (*batch.episode_lengths, *lengths), (*tails, *((),) * len(rows)))


def has_critic(backend: Any) -> bool:
    """Whether the backend trains a value head."""
    return any(name.startswith("v_head") for name in backend.named_parameters())


def refuse_without_critic(backend: Any, name: str, remedy: str) -> None:
    """Refused for a backend that trains no value head."""
    if not has_critic(backend):
        raise Refused(f"{name} needs a critic, which {type(backend).__name__} does not train; {remedy}")


def refuse_unknown(options: Mapping[str, Any], *parts: type) -> None:
    """ConfigError for a key of a backend that none of the components `parts` has, with the nearest one."""
    known = {field.name for part in parts for field in dataclasses.fields(part)}
    for name in options:
        if name not in known:
            raise ConfigError(f"algorithm.kwargs.{name} is not a key here; {nearest(name, known)}")


def at_least(part: Any, **lowest: float) -> None:
    """ConfigError for the first field of `part` that is below its lowest value, or NaN."""
    for name, low in lowest.items():
        value = getattr(part, name)
        if not value >= low:
            raise ConfigError(f"{name} is {value}; it must be at least {low:g}")


def named(path: str, field: str) -> Callable[..., Any] | None:
    """The function that "module:function" names, None for ""; ConfigError where there is none."""
    if not path:
        return None
    module, colon, function = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{field} {path!r} cannot be found ({error}); check the path") from None
    if not callable(found):
        raise ConfigError(f"{field} is {path!r}; name a function as module:function")
    return found
