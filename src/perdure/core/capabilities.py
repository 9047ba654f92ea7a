"""What an environment may offer beyond `gymnasium.Env`, all of it optional: provenance, labels, records.

An environment that offers nothing is a plain Tier 1 environment; absence is never an error.
A present but malformed label is one, since a run would otherwise be cut at the wrong places.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard, runtime_checkable

from perdure.core.errors import PerdureError

DATA = "data"
"""The key of a world's provenance under which it gives a hash of its data files, which a resume must find again."""


@runtime_checkable
class DescribesRuns(Protocol):
    """An environment that can say where its runs come from (server, versions, scenario)."""

    def describe_run(self) -> Mapping[str, Any]:
        """Keys of the environment's own choice, recorded as they are; `DATA` alone is read, and may be left out."""
        ...


def capability(env: Any, name: str) -> Any:
    """The attribute `name` of an environment or of any wrapper around it, or None where nobody has it.

    Gymnasium's own lookup goes first. Nothing is looked for behind `.unwrapped`, since that would
    pass over what a wrapper in the middle adds. An object without that lookup (a stand-in that is
    no `gymnasium.Env`) is asked directly.
    """
    if hasattr(env, "has_wrapper_attr"):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    return getattr(env, name, None)


def describe_run(env: Any) -> dict[str, Any]:
    """The environment's own provenance, or an empty mapping where it offers none.

    Raises PerdureError if `describe_run()` returns anything but a mapping.
    """
    describe = capability(env, "describe_run")
    if describe is None:
        return {}
    description = describe()
    if not _is_mapping(description):
        raise PerdureError(f"describe_run() of {env} returned {description!r}; it must return a mapping")
    return dict(description)


def regime_from_info(info: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The regime's id and whether this is the first step under it; (None, False) where the info is silent.

    `info["regime"]` may be a string, or a mapping with the keys "id" and "boundary", either of
    which may be missing. Raises PerdureError for anything else.
    """
    label = _label(info)
    if label is None or isinstance(label, str):
        return label, False
    return _name(label, "id"), bool(label.get("boundary", False))


def regime_origin_from_info(info: Mapping[str, Any]) -> str | None:
    """The id of the configuration that the present one repeats (`info["regime"]["origin"]`), or None."""
    label = _label(info)
    return _name(label, "origin") if _is_mapping(label) else None


def record_from_info(info: Mapping[str, Any]) -> Any:
    """The environment's own record of the step (`info["trace"]`), or None."""
    return info.get("trace")


def _label(info: Mapping[str, Any]) -> str | Mapping[str, Any] | None:
    label = info.get("regime")
    if label is None or isinstance(label, str) or _is_mapping(label):
        return label
    raise PerdureError(f'info["regime"] is {label!r}; it must be a name or a mapping with "id" and "boundary"')


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _name(label: Mapping[str, Any], key: str) -> str | None:
    value = label.get(key)
    if value is None or isinstance(value, str):
        return value
    raise PerdureError(f'info["regime"]["{key}"] is {value!r}; it must be a string')
