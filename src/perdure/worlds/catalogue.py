"""From a world's id in a document to the pure world itself."""

from collections.abc import Mapping
from typing import Any

from perdure.core import component, registry
from perdure.core.errors import UnknownName, nearest

GYMNAX = "gymnax/"
"""Ids that begin so name a gymnax environment, such as gymnax/CartPole-v1."""


def is_pure(world_id: str) -> bool:
    """Whether an id names a pure world, one that a learner can compile; imports nothing."""
    return world_id.startswith(GYMNAX) or world_id in registry.names("worlds")


def pure(world_id: str, kwargs: Mapping[str, Any] | None = None, place: str = "environment") -> Any:
    """The pure world of a registered id or a gymnax one, with `kwargs` as its fields.

    Raises UnknownName for any other id, ConfigError for a field that it does not have, and
    MissingExtra where gymnax is not installed. `place` is where the document says so.
    """
    if world_id.startswith(GYMNAX):
        from perdure.worlds.adapters.gymnax import GymnaxWorld

        return GymnaxWorld(world_id.removeprefix(GYMNAX), tuple(sorted((kwargs or {}).items())))
    if not is_pure(world_id):
        hint = nearest(world_id, registry.names("worlds"))
        raise UnknownName(f"{place}.id is {world_id!r}, which is no pure world; {hint}")
    return component.make(registry.resolve("worlds", world_id, f"{place}.id"), kwargs or {}, f"{place}.kwargs")
