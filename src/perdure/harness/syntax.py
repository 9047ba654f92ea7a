"""YAML, JSON and TOML text to plain values that remember their lines, and back to YAML."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from perdure.core.errors import ConfigError
from perdure.harness import mistakes

LARGEST = 200_000
"""Values in a document; aliases of aliases could otherwise fill the memory."""

_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def parse(text: str, file: Path) -> tuple[Any, dict[str, str]]:
    """The values of a document's text, and the "file:line:column" of every dotted path in it.

    The file's ending decides: .toml, .json, else YAML. TOML has no lines to offer. Raises ConfigError
    naming file, line and column for broken syntax and for a key that stands twice.
    """
    marks: dict[str, str] = {}
    if file.suffix == ".toml":
        return _toml(text, file), marks
    if file.suffix == ".json":
        values = _json(text, file)
        # JSON without its tabs is YAML, whose parser knows lines and finds keys that stand twice.
        parse_yaml(text.replace("\t", " "), str(file), marks)
        return values, marks
    return parse_yaml(text, str(file), marks), marks


def _toml(text: str, file: Path) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}; correct the TOML") from None


def _json(text: str, file: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}:{error.colno}: {error.msg}; correct the JSON") from None
    except RecursionError:
        raise ConfigError(f"{file} is nested too deeply to be a document") from None


def parse_yaml(text: str, source: str, marks: dict[str, str]) -> Any:
    """The values of one YAML document; `marks` receives the place of every path."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else _Reader(loader, source, marks).value(node, (), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(f"{_position(source, mark)}: {error.problem or error.context}; correct the YAML") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(
            f"{source}: a character at position {error.position} is not allowed in YAML; remove it"
        ) from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply to be a document") from None


class _Reader(NamedTuple):
    """Turns YAML nodes into values, noting where each stands."""

    loader: Any
    source: str
    marks: dict[str, str]

    def value(self, node: Any, path: tuple[int | str, ...], above: tuple[int, ...]) -> Any:
        """The value of a node at `path`; `above` are the nodes around it, so that a cycle is seen."""
        if id(node) in above:
            raise ConfigError(f"{self.at(node)}: the alias contains itself; write the value out")
        if len(self.marks) > LARGEST:
            raise ConfigError(f"{self.source} holds more than {LARGEST:,} values; write a smaller document")
        above = (*above, id(node))
        self.marks.setdefault(mistakes.dotted(path), self.at(node))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTIONS:
            raise ConfigError(f"{self.at(node)}: the tag {node.tag!r} is not allowed in a document; leave it out")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(entry, (*path, i), above) for i, entry in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self.loader.construct_object(node)
        self.refuse_twice(node)
        self.loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key, entry in node.value:
            self.marks[mistakes.dotted((*path, key.value))] = self.at(key)
            values[key.value] = self.value(entry, (*path, key.value), above)
        return values

    def refuse_twice(self, node: Any) -> None:
        """ConfigError for a key that is not text, or that stands twice in one mapping."""
        seen: dict[str, Any] = {}
        for key, _ in node.value:
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise ConfigError(f"{self.at(key)}: the key {mistakes.shown(key.value)} is not text; put it in quotes")
            if key.value in seen:
                first = self.at(seen[key.value])
                raise ConfigError(
                    f"{self.at(key)}: {key.value} stands twice in one section, first at {first}; keep one"
                )
            seen[key.value] = key

    def at(self, node: Any) -> str:
        """ "file:line:column" of a node."""
        return _position(self.source, node.start_mark)


def _position(source: str, mark: Any) -> str:
    return source if mark is None else f"{source}:{mark.line + 1}:{mark.column + 1}"


def to_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as YAML that this and every other reader understands alike."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


_Resolvers = dict[str, list[tuple[str, re.Pattern[str]]]]

_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9][0-9_]*|[-+]?0x[0-9a-fA-F_]+|0o[0-7_]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "merge": (r"<<", "<"),
}


def _resolvers(start: _Resolvers) -> _Resolvers:
    """`start` with YAML 1.2's forms added, first character -> (tag, pattern)."""
    table = {first: list(entries) for first, entries in start.items()}
    for name, (pattern, firsts) in _SCALARS.items():
        for first in firsts:
            table.setdefault(first, []).append((f"tag:yaml.org,2002:{name}", re.compile(f"(?:{pattern})$")))
    return table


def _number(loader: Any, node: Any) -> int | float:
    text = loader.construct_scalar(node).replace("_", "").lower()
    if node.tag.endswith("float"):
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))
    return int(text, 0 if re.match(r"[-+]?0[xo]", text) else 10)


_NUMBERS = {f"tag:yaml.org,2002:{name}": _number for name in ("int", "float")}


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: 1e-3 is a number; yes, off, 12:30 and 2024-01-01 are text."""

    yaml_implicit_resolvers = _resolvers({})
    yaml_constructors = yaml.SafeLoader.yaml_constructors | _NUMBERS


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as anything else."""

    yaml_implicit_resolvers = _resolvers(yaml.SafeDumper.yaml_implicit_resolvers)

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        return True


def _text(dumper: Any, text: str) -> Any:
    # The emitter writes line separators such as U+0085 as they are, and a reader folds them into spaces.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _text)
