"""What is wrong with a domain file, told before any task is drawn from it."""

from collections.abc import Mapping
from typing import Any

from perdure.core.errors import ConfigError, nearest

SECTIONS = ("tools", "views", "pricing", "offers", "slots", "constraints", "templates", "skeletons", "phrases")
"""What the file of a vendor that goals are about must have."""


def check_domain(domain: str, spec: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming domain and entry, for a section, tool, constraint or phrase that is missing."""
    if "prefix" not in spec or "tools" not in spec:
        raise ConfigError(f"domain {domain} lacks prefix or tools; every vendor has both")
    if "templates" not in spec:
        return
    for section in SECTIONS:
        if section not in spec:
            raise ConfigError(f"domain {domain} lacks the section {section}; see docs/concierge.md")
    kinds = [tool.get("kind") for tool in spec["tools"].values()]
    for kind in ("search", "book"):
        if kinds.count(kind) != 1:
            raise ConfigError(f"domain {domain} has {kinds.count(kind)} tools of kind {kind!r}; it must have one")
    for template in spec["templates"]:
        _check_template(domain, spec, template)


def _check_template(domain: str, spec: Mapping[str, Any], template: Mapping[str, Any]) -> None:
    place = f"domain {domain}: template {template.get('id')!r}"
    for name in ("id", "constraints", "prefer", "purpose"):
        if name not in template:
            raise ConfigError(f"{place} lacks {name}; give it a value")
    for name in template["constraints"]:
        if name not in spec["constraints"]:
            raise ConfigError(f"{place} has the constraint {name!r}; {nearest(name, spec['constraints'])}")
    for name in (*template["constraints"], *template["prefer"]):
        if "en" not in spec["phrases"].get(name, {}):
            raise ConfigError(f"{place}: phrases.{name} has no English text; add at least en")
    if "en" not in template["purpose"] or not spec["skeletons"].get("en"):
        raise ConfigError(f"{place}: purpose and skeletons need at least en")
