"""Host environments from outside: their failures, and their state where they offer `get_state` and `set_state`.

Gymnasium's bookkeeping wrappers are looked through, and TimeLimit's count of steps is kept. Any
other wrapper may have a memory of its own (a reward with an episode's ledger, say), so the two
methods must then be on the outermost such layer; otherwise nothing is offered.
"""

import contextlib
from collections.abc import Generator
from typing import Any

from perdure.core.errors import PerdureError, RunFailed, told

BOOKKEEPING = ("PassiveEnvChecker", "OrderEnforcing", "TimeLimit")


@contextlib.contextmanager
def failing(place: str, env: Any) -> Generator[None]:
    """Turn whatever an environment raises into RunFailed that names `place` and the environment."""
    try:
        yield
    except PerdureError:
        raise
    except (Exception, SystemExit) as error:
        raise RunFailed(f"{place} ({env}) raised {told(error)}; mend the environment") from error


def read(env: Any) -> dict[str, Any] | None:
    """The environment's state, or None where it does not offer all of it."""
    layers, core = _layers(env)
    if not hasattr(core, "get_state") or not hasattr(core, "set_state"):
        return None
    return {"state": core.get_state(), "elapsed": [layer._elapsed_steps for layer in layers if _counts(layer)]}


def write(env: Any, saved: dict[str, Any]) -> None:
    """Bring an environment that was just reset to a state that `read` gave."""
    layers, core = _layers(env)
    core.set_state(saved["state"])
    for layer, elapsed in zip([layer for layer in layers if _counts(layer)], saved["elapsed"], strict=True):
        layer._elapsed_steps = elapsed


def _layers(env: Any) -> tuple[list[Any], Any]:
    layers: list[Any] = []
    while type(env).__name__ in BOOKKEEPING and hasattr(env, "env"):
        layers.append(env)
        env = env.env
    return layers, env


def _counts(layer: Any) -> bool:
    return type(layer).__name__ == "TimeLimit"
