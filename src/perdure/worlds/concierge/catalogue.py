"""All that is data: domains with their contracts and drifts, templates, words. Loaded once, checked, and hashed."""

import functools
import hashlib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perdure.core.errors import ConfigError, DataError, nearest
from perdure.worlds.concierge import checks, patches
from perdure.worlds.concierge import contract as contracts
from perdure.worlds.concierge.records import KINDS, LANGUAGES

DATA = Path(__file__).with_name("data")
PAYMENT = "payment"
CORE_PATTERNS = 20
"""Drift patterns of the published catalogue; perdure's further families have `family` set."""


class Pattern(NamedTuple):
    """One way in which a contract may drift."""

    id: str
    domain: str
    type: str
    from_version: int
    to_version: int
    family: str
    """"" for the twenty published patterns, else the name of a family that is held out of training."""
    variant_of: str
    """The published pattern that this one is with other fields or thresholds, "" for none; held out of training too."""
    needs: Mapping[str, Any]
    """What the goal must have for this drift to matter."""
    expires: bool
    """Whether the ids of offers are renewed as it comes into force."""
    consent: bool
    """Whether the user must be told before the booking that stands."""
    notice: str
    codes: tuple[str, ...]
    """Error codes that reveal it."""
    tools: tuple[str, ...]
    """Tools whose next ok result reveals it."""
    description: str
    numbers: tuple[int, ...]
    """Numbers of the new fact."""
    words: Mapping[str, tuple[str, ...]]
    """Language -> expressions of which one stands in any sentence that tells of it; "a+b" asks for both parts."""
    expressions: tuple[tuple[str, ...], ...]
    """`words` of all languages, case folded, each as its parts."""
    tell: Mapping[str, str]
    """Language -> such a sentence."""
    grace: int
    """Turns for which the old form is accepted after the notice; 0 for none."""
    moved_from: int | None
    """What its number was before the drift; None where there is no number to move."""
    patch: tuple[Mapping[str, Any], ...]

    @property
    def held_out(self) -> bool:
        """Whether it is none of those that are trained on by default."""
        return bool(self.family or self.variant_of)


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
        digest = hashlib.sha256()
        for folder in (DATA, *folders):
            if not any(Path(folder).glob("*/*.toml")):
                raise ConfigError(f"{folder} holds neither domains/*.toml nor words/*.toml; name a folder that does")
            for path in sorted(Path(folder).glob("*/*.toml")):
                text = path.read_text(encoding="utf-8")
                digest.update(text.encode())
                self._add(path, _parsed(text, path))
        self.hash = digest.hexdigest()[:16]
        for domain, spec in self.domains.items():
            checks.check_domain(domain, spec)
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
            kept = {key: given[key] for key in ("from", "to", "grace", "moved_from") if key in given}
            moved = {**_swapped(given, swap), **kept, "id": name, "variant_of": pattern_id}
            self._scaled[name] = _pattern(pattern.domain, moved, path)
        return name

    def spread(self, pattern_id: str, low: float, high: float) -> tuple[str, ...]:
        """The ids of a pattern whose number moves `low` to `high` times as far, by tenths.

        Left out is what would not move, and a number that is another pattern's, which is held out from this one.
        """
        pattern = self.pattern(pattern_id)
        if pattern.moved_from is None:
            return (pattern_id,)
        siblings = [each for each in self.patterns.values() if pattern_id in (each.variant_of, each.id)]
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
        spec = self.domains[domain]
        for release in spec.get("versions", ()):
            if release["number"] <= version:
                spec = patches.patched(spec, release["patch"], f"{domain}.versions[{release['number']}]")
        epoch = 0
        for pattern_id in pattern_ids:
            pattern = self.pattern(pattern_id)
            spec = patches.patched(spec, pattern.patch, f"pattern {pattern_id}")
            version, epoch = max(version, pattern.to_version), epoch + pattern.expires
        return contracts.compiled(spec, version, epoch)

    def _add(self, path: Path, found: dict[str, Any]) -> None:
        if path.parent.name == "words":
            for name, entries in found.items():
                known = self.words.setdefault(name, {})
                known.update(entries)
            return
        if path.parent.name != "domains":
            return
        domain = found.get("domain", path.stem)
        if domain in self.domains and path.parent.parent == DATA:
            raise ConfigError(f"{path}: domain {domain!r} stands twice")
        for pattern in found.pop("patterns", []):
            for given in _with_variants(pattern):
                made = _pattern(domain, given, path)
                if made.id in self.patterns:
                    raise ConfigError(f"{path}: pattern {made.id!r} stands twice; ids are unique")
                self.patterns[made.id] = made
                self._written[made.id] = (given, path)
        self.domains[domain] = found

    def _check(self) -> None:
        core = sum(not pattern.held_out and pattern.domain in _PUBLISHED for pattern in self.patterns.values())
        if core != CORE_PATTERNS:
            raise DataError(f"the catalogue has {core} published drift patterns; it must have {CORE_PATTERNS}")
        for domain in self.domains:
            for version in range(1, self.versions(domain) + 1):
                self.contract(domain, version)
        for pattern in self.patterns.values():
            self.contract(pattern.domain, pattern.from_version, (pattern.id,))


_PUBLISHED = ("airline", "cab", "restaurant", "hotel", PAYMENT)


@functools.cache
def default() -> Catalogue:
    """The catalogue of the package's own data."""
    return Catalogue()


def _moved(pattern: Pattern, factor: float) -> int:
    """The number of a pattern that moves it `factor` times as far; it stops at 1."""
    start = pattern.moved_from
    assert start is not None, "it moves a number"
    return max(1, math.floor(start + (pattern.numbers[0] - start) * factor + 0.5))


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None


def _with_variants(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A pattern and its `variants`: the same with numbers or names swapped, everywhere."""
    plain = {name: value for name, value in given.items() if name != "variants"}
    variants = [
        {**_swapped(plain, variant["swap"]), "id": variant["id"], "variant_of": given["id"]}
        for variant in given.get("variants", ())
    ]
    return [plain, *variants]


def _swapped(value: Any, swap: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _swapped(item, swap) for name, item in value.items()}
    if isinstance(value, list):
        return [_swapped(item, swap) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(swap.get(str(value), value))
    if isinstance(value, str):
        for old, new in swap.items():
            value = re.sub(rf"(?<!\d){re.escape(old)}(?!\d)", new, value)
    return value


def _pattern(domain: str, given: Mapping[str, Any], path: Path) -> Pattern:
    place = f"{path}: pattern {given.get('id')!r}"
    missing = [name for name in ("id", "from", "to", "type", "words", "tell", "patch") if name not in given]
    if missing:
        raise ConfigError(f"{place} lacks {', '.join(missing)}; give each a value")
    if given["type"] not in KINDS:
        raise ConfigError(f"{place} has the type {given['type']!r}; {nearest(given['type'], KINDS)}")
    numbers = tuple(given.get("numbers", ()))
    if "moved_from" in given and (len(numbers) != 1 or numbers[0] == given["moved_from"]):
        raise ConfigError(f"{place} has moved_from and the numbers {list(numbers)}; give one other number")
    if given.get("grace") and not given.get("notice"):
        raise ConfigError(f"{place} has a grace period and no notice; say in `notice` what is deprecated")
    shows = given.get("shows", {})
    tell = {language: given["tell"].get(language, given["tell"].get("en", "")) for language in LANGUAGES}
    return Pattern(
        id=given["id"],
        domain=domain,
        type=given["type"],
        from_version=given["from"],
        to_version=given["to"],
        family=given.get("family", ""),
        variant_of=given.get("variant_of", ""),
        needs=given.get("needs", {}),
        expires=given.get("expires", False),
        consent=given.get("consent", False),
        notice=given.get("notice", ""),
        codes=tuple(shows.get("codes", ())),
        tools=tuple(f"{domain}.{verb}" for verb in shows.get("tools", ())),
        description=given.get("description", ""),
        numbers=numbers,
        words={language: tuple(words) for language, words in given["words"].items()},
        expressions=tuple(tuple(word.casefold().split("+")) for words in given["words"].values() for word in words),
        tell=tell,
        grace=given.get("grace", 0),
        moved_from=given.get("moved_from"),
        patch=tuple(given["patch"]),
    )
