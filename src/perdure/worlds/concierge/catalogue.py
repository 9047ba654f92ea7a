"""All that is data: domains with their contracts and drifts, templates, words. Loaded once, checked, and hashed."""

import functools
import hashlib
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError, DataError, nearest, told
from perdure.worlds.concierge import checks, facts, forms, patches, patterns, spoken, wishes
from perdure.worlds.concierge import contract as contracts
from perdure.worlds.concierge.patterns import Pattern

DATA = Path(__file__).with_name("data")
PAYMENT = "payment"
PUBLISHED = ("airline", "cab", "restaurant", "hotel", PAYMENT)
CORE_PATTERNS = 20
"""Drift patterns of the published catalogue; perdure's further families have `family` set."""


class Catalogue:
    """Domains, patterns, templates and words from the folders given; `data/` of this package is always there.

    A folder has `domains/*.toml` and `words/*.toml`. Raises ConfigError, naming the file and the entry, for
    data that cannot be used.
    """

    def __init__(self, folders: Sequence[Path] = ()):
        self.domains: dict[str, dict[str, Any]] = {}
        self.patterns: dict[str, Pattern] = {}
        self.words: dict[str, Any] = {}
        self._written: dict[str, tuple[Mapping[str, Any], Path]] = {}
        self._paths: dict[str, Path] = {}
        said: list[tuple[dict[str, Any], Path]] = []
        digest = hashlib.sha256()
        for folder in (DATA, *folders):
            if not any(Path(folder).glob("*/*.toml")):
                raise ConfigError(f"{folder} holds neither domains/*.toml nor words/*.toml; name a folder that does")
            for path in sorted(Path(folder).glob("*/*.toml")):
                text, found = _parsed(path)
                digest.update(text.encode())
                if path.parent.name == "words":
                    self._say(path, found)
                    said.append((found, path))
                else:
                    self._add(path, found)
        for found, path in reversed(said):  # A file may spoil what an earlier one says; it is the one to name.
            spoken.refuse_unusable(found, self.words, str(path))
        self.hash = digest.hexdigest()[:16]
        for domain, spec in self.domains.items():
            checks.check_domain(domain, spec, self.words["places"], str(self._paths[domain]))
        self.consumers = tuple(sorted(name for name, spec in self.domains.items() if "templates" in spec))
        self.identifiers = frozenset(
            name
            for spec in self.domains.values()
            for tool in spec["tools"].values()
            for name, argument in tool["args"].items()
            if argument["type"] in ("id", "token", "code", "gst")
        ) | {"dish_id"}
        """Arguments whose values an agent can only have been told."""
        self.roman_hindi = frozenset(self.words["roman"]["hinglish"])
        self._scaled: dict[str, Pattern] = {}
        self._contracts: dict[tuple[str, int, tuple[str, ...]], contracts.Contract] = {}
        self._of_domain = {
            domain: tuple(pattern for pattern in self.patterns.values() if pattern.domain == domain)
            for domain in self.domains
        }
        self._check()

    def contract(self, domain: str, version: int, pattern_ids: tuple[str, ...] = ()) -> contracts.Contract:
        """The contract of a vendor that began at a stock `version` and then drifted."""
        key = (domain, version, pattern_ids)
        found = self._contracts.get(key)
        if found is None:
            found = self._contracts[key] = self._compiled(*key)
        return found

    def versions(self, domain: str) -> int:
        """The newest stock version of a domain."""
        return 1 + len(self.domains[domain].get("versions", ()))

    def of_domain(self, domain: str) -> tuple[Pattern, ...]:
        """The patterns of a vendor, in the order of its file."""
        return self._of_domain.get(domain, ())

    def pattern(self, pattern_id: str) -> Pattern:
        """A pattern by id; ConfigError with the nearest one."""
        found = self.patterns.get(pattern_id) or self._scaled.get(pattern_id)
        if found is None:
            raise ConfigError(f"there is no drift pattern {pattern_id!r}; {nearest(pattern_id, self.patterns)}")
        return found

    def scaled(self, pattern_id: str, factor: float) -> str:
        """The id of a pattern whose number moves `factor` times as far: "ID@NUMBER", or its own where that is equal.

        A number stops at 1. Raises ConfigError where the pattern has no number to move, or where it would not move.
        """
        pattern = self.pattern(pattern_id)
        if pattern.moved_from is None:
            raise ConfigError(f"pattern {pattern_id!r} moves no number; its severity cannot be set")
        usual, start = pattern.numbers[0], pattern.moved_from
        number = _moved(pattern, factor)
        if number == usual:
            return pattern_id
        if number == start:
            raise ConfigError(f"severity {factor:g} leaves {pattern_id} at {start}; a drift must change something")
        name = f"{pattern_id}@{number}"
        if name not in self._scaled:
            given, path = self._written[pattern_id]
            swap = {f"{usual:,}": f"{number:,}", f"{usual}": f"{number}"}
            moved = patterns.varied(given, swap, name, str(path))
            self._scaled[name] = patterns.made(pattern.domain, moved, str(path), pattern_id)
        return name

    def spread(self, pattern_id: str, low: float, high: float) -> tuple[str, ...]:
        """The ids of a pattern whose number moves `low` to `high` times as far, by tenths.

        Left out is what would not move, and a number that is another pattern's, which is held out from this one.
        """
        pattern = self.pattern(pattern_id)
        if pattern.moved_from is None:
            return (pattern_id,)
        original = pattern.variant_of or pattern.id
        siblings = [each for each in self.patterns.values() if original in (each.variant_of, each.id)]
        kept = {pattern.moved_from, *(each.numbers[0] for each in siblings if each is not pattern)}
        tenths = range(math.ceil(low * 10 - 1e-9), math.floor(high * 10 + 1e-9) + 1)
        factors = [tenth / 10 for tenth in tenths if _moved(pattern, tenth / 10) not in kept]
        if not factors:
            raise ConfigError(f"severity {low:g} to {high:g} leaves nothing of {pattern_id}; widen it")
        return tuple(dict.fromkeys(self.scaled(pattern_id, factor) for factor in factors))

    def held_out_places(self, kind: str) -> list[str]:
        """The places of a kind that no training task has to do with."""
        return self.words["held_out"].get(kind, [])

    def _compiled(self, domain: str, version: int, pattern_ids: tuple[str, ...]) -> contracts.Contract:
        epoch = sum(self.pattern(pattern_id).expires for pattern_id in pattern_ids)
        newest = max([version, *(self.pattern(pattern_id).to_version for pattern_id in pattern_ids)])
        return contracts.compiled(self._patched(domain, version, pattern_ids), newest, epoch)

    def _patched(self, domain: str, version: int, pattern_ids: tuple[str, ...] = ()) -> Mapping[str, Any]:
        """A vendor's file with the stock releases up to a version and then the drifts applied."""
        spec, place = self.domains[domain], self._paths[domain]
        for index, release in enumerate(spec.get("versions", ())):
            if release["number"] <= version:
                spec = patches.patched(spec, release["patch"], f"{place}: versions[{index}]")
        for pattern_id in pattern_ids:
            spec = patches.patched(spec, self.pattern(pattern_id).patch, f"{place}: pattern {pattern_id!r}")
        return spec

    def _say(self, path: Path, found: dict[str, Any]) -> None:
        forms.refuse_misfit(spoken.FORM, found, str(path))
        for name, entries in found.items():
            self.words.setdefault(name, {}).update(entries)

    def _add(self, path: Path, found: dict[str, Any]) -> None:
        if path.parent.name != "domains":
            raise ConfigError(f"{path} lies in {path.parent.name}/; vendors are read from domains/, words from words/")
        forms.refuse_misfit(forms.NAME, found.setdefault("domain", path.stem), str(path), "domain")
        domain = found["domain"]
        if domain in self.domains:
            raise ConfigError(f"{path}: domain {domain!r} stands in {self._paths[domain]} too; give it another name")
        entries = found.pop("patterns", [])
        forms.refuse_misfit(forms.Many(forms.ANYTHING), entries, str(path), "patterns")
        for entry in entries:
            for given, made in patterns.written(entry, domain, str(path)):
                if made.id in self.patterns:
                    raise ConfigError(f"{path}: pattern {made.id!r} stands twice; ids are unique")
                self.patterns[made.id] = made
                self._written[made.id] = (given, path)
        self.domains[domain], self._paths[domain] = found, path

    def _check(self) -> None:
        core = sum(not pattern.held_out and pattern.domain in PUBLISHED for pattern in self.patterns.values())
        if core != CORE_PATTERNS:
            raise DataError(f"the catalogue has {core} published drift patterns; it must have {CORE_PATTERNS}")
        for domain in self.domains:
            for version in range(2, self.versions(domain) + 1):
                place = f"{self._paths[domain]}: after versions[{version - 2}]"
                checks.check_domain(domain, self._patched(domain, version), self.words["places"], place)
        for pattern in self.patterns.values():
            self._check_pattern(pattern)

    def _check_pattern(self, pattern: Pattern) -> None:
        """Raise ConfigError for a pattern that its vendor cannot drift by."""
        domain, places, path = pattern.domain, self.words["places"], self._written[pattern.id][1]
        others = {each.to_version for each in self.of_domain(domain) if each is not pattern}
        versions = {*range(1, self.versions(domain) + 1), *others}
        where, place = (f"{path}: {way}pattern {pattern.id!r}" for way in ("", "after "))
        wishes.check_pattern(self.domains[domain], pattern, versions, self.patterns, places, where)
        after = self._patched(domain, pattern.from_version, (pattern.id,))
        checks.check_domain(domain, after, places, place)
        wishes.refuse_unanswered(after, pattern, where)
        if "templates" in after:
            before = self._patched(domain, pattern.from_version)
            facts.refuse_misread(before, after, place)


@functools.cache
def default() -> Catalogue:
    """The catalogue of the package's own data."""
    return Catalogue()


def _moved(pattern: Pattern, factor: float) -> int:
    """The number of a pattern that moves it `factor` times as far; it stops at 1."""
    start = pattern.moved_from
    assert start is not None, "it moves a number"
    return max(1, math.floor(start + (pattern.numbers[0] - start) * factor + 0.5))


def _parsed(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file and what it says."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {told(error)}") from None
