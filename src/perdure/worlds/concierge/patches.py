"""How a contract drifts: operators that change a vendor's specification, and nothing else.

A patch is a mapping with `op`, `at` (a dotted path into the domain file) and what the operator needs.
An operator that would change nothing, or that points at nothing, is an error: a drift is always real.
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from perdure.core.errors import ConfigError, nearest

Spec = dict[str, Any]


def patched(spec: Mapping[str, Any], patches: Sequence[Mapping[str, Any]], place: str) -> Spec:
    """A copy of a specification with the patches applied in order; ConfigError names the patch at fault."""
    result = copy.deepcopy(dict(spec))
    for index, patch in enumerate(patches):
        where = f"{place}.patch[{index}]"
        operator = OPERATORS.get(patch.get("op", ""))
        if operator is None:
            raise ConfigError(f"{where}.op is {patch.get('op')!r}; {nearest(str(patch.get('op')), OPERATORS)}")
        operator(result, patch, where)
    return result


def _set(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    """Another value at the path: a number, a limit, a text, a type."""
    parent, name = _parent(spec, patch, where)
    if parent.get(name) == patch["value"]:
        raise ConfigError(f"{where}: {patch['at']} is {patch['value']!r} already; a drift must change something")
    parent[name] = patch["value"]


def _rename(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    """A field of a view under another name, at the same position."""
    view, index = _field(spec, patch, where)
    _refuse_taken(patch, [field[0] for field in view], where)
    view[index] = [patch["to"], *view[index][1:]]


def _remove(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    """A field of a view, or an item of a list, is gone."""
    items = _list(spec, patch, where)
    if "field" in patch:
        items.pop(_field(spec, patch, where)[1])
    elif patch.get("value") in items:
        items.remove(patch["value"])
    else:
        raise ConfigError(f"{where}: {patch['at']} has no {patch.get('value')!r} to remove")


def _rename_argument(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    arguments = _table(spec, patch["at"], where)
    if patch["field"] not in arguments:
        raise ConfigError(f"{where}: {patch['at']} has no {patch['field']!r}; {nearest(patch['field'], arguments)}")
    _refuse_taken(patch, arguments, where)
    renamed = {patch["to"] if name == patch["field"] else name: value for name, value in arguments.items()}
    arguments.clear()
    arguments.update(renamed)


def _require(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    """An argument that must be given: always, or only above `above` rupees in total."""
    argument = _table(spec, patch["at"], where)
    if "required_by" in argument or not argument.get("optional"):
        raise ConfigError(f"{where}: {patch['at']} is required already; a drift must change something")
    argument["required_by"] = {key: patch[key] for key in ("code", "above") if key in patch}


def _append(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    """Something more at the end of a list: a fee, an enumerated value, a field."""
    items = _list(spec, patch, where)
    if patch["value"] in items:
        raise ConfigError(f"{where}: {patch['at']} has {patch['value']!r} already; a drift must change something")
    items.append(patch["value"])


def _extend(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    for value in patch["values"]:
        _append(spec, {"at": patch["at"], "value": value}, where)


def _represent(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    """A field of a view written otherwise: from another source, or through a transform."""
    view, index = _field(spec, patch, where)
    name, source = view[index][:2]
    transform = [patch["transform"]] if "transform" in patch else []
    made = [name, patch.get("source", source), *transform]
    if made == view[index]:
        raise ConfigError(f"{where}: {patch['field']} is written so already; a drift must change something")
    view[index] = made


def _introduce(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    """A rule, page size or argument that was not there."""
    parent, name = _parent(spec, patch, where, new=True)
    if name in parent:
        raise ConfigError(f"{where}: {patch['at']} is there already; a drift must change something")
    parent[name] = copy.deepcopy(patch["value"])


def _bump(spec: Spec, patch: Mapping[str, Any], where: str) -> None:
    """A higher version of an authorisation: scopes and tokens are named by it."""
    parent, name = _parent(spec, patch, where)
    if not isinstance(parent[name], int):
        raise ConfigError(f"{where}: {patch['at']} is {parent[name]!r}; point at a version, a whole number")
    parent[name] += patch.get("by", 1)


OPERATORS: dict[str, Callable[[Spec, Mapping[str, Any], str], None]] = {
    "rename": _rename,
    "remove": _remove,
    "require_new_field": _require,
    "change_type": _set,
    "numeric_bump": _set,
    "enum_expand": _extend,
    "policy_flag_flip": _set,
    "time_window_shrink": _set,
    "tnc_text_swap": _set,
    "side_channel_notice_append": _append,
    "pricing_restructure": _append,
    "fee_append": _append,
    "auth_scope_bump": _bump,
    "token_version_bump": _bump,
    "rename_argument": _rename_argument,
    "enum_shrink": _remove,
    "unit_change": _represent,
    "nullable": _represent,
    "default_flip": _introduce,
    "rule_add": _introduce,
    "field_add": _append,
}
"""Operator name -> what it does; the first fourteen are the catalogue's, the others serve the further families."""


def _at(spec: Spec, path: str, where: str) -> Any:
    found: Any = spec
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            hint = nearest(part, found) if isinstance(found, Mapping) else "nothing lies below it"
            raise ConfigError(f"{where}: {path} leads nowhere at {part!r}; {hint}")
        found = found[part]
    return found


def _parent(spec: Spec, patch: Mapping[str, Any], where: str, new: bool = False) -> tuple[Spec, str]:
    path, _, name = patch["at"].rpartition(".")
    parent = _table(spec, path, where) if path else spec
    if not new:
        _at(spec, patch["at"], where)
    return parent, name


def _table(spec: Spec, path: str, where: str) -> Spec:
    found = _at(spec, path, where)
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {path} is no table; point at one, or at what lies in one")
    return found


def _list(spec: Spec, patch: Mapping[str, Any], where: str) -> list[Any]:
    found = _at(spec, patch["at"], where)
    if not isinstance(found, list):
        raise ConfigError(f"{where}: {patch['at']} is no list; point at one")
    return found


def _refuse_taken(patch: Mapping[str, Any], names: Collection[str], where: str) -> None:
    if patch["to"] in names:
        raise ConfigError(f"{where}: {patch['at']} has {patch['to']!r} already; give a name that is new")


def _field(spec: Spec, patch: Mapping[str, Any], where: str) -> tuple[list[Any], int]:
    view = _list(spec, patch, where)
    names = [field[0] if isinstance(field, list) and field else "" for field in view]
    if patch["field"] not in names:
        raise ConfigError(f"{where}: {patch['at']} has no {patch['field']!r}; {nearest(patch['field'], names)}")
    return view, names.index(patch["field"])
