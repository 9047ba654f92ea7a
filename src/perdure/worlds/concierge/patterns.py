"""Drift patterns: what a vendor's file says of each, its variants, and why one is refused."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import entries, forms
from perdure.worlds.concierge.records import LANGUAGES

KEPT = ("from", "to", "grace", "moved_from")
"""What a swap leaves as it is: versions, turns and the number before the drift."""


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


def written(entry: Any, domain: str, place: str) -> Iterator[tuple[Mapping[str, Any], Pattern]]:
    """A pattern of a file and its variants, each with what it is made of; ConfigError for one that cannot be used."""
    if not isinstance(entry, Mapping):
        forms.refuse(f"{place}: an entry of patterns", entry, "it must be a table")
    plain = {name: value for name, value in entry.items() if name != "variants"}
    original = made(domain, plain, place)
    _refuse_wrong(original, place)
    yield plain, original
    where = f"{place}: pattern {original.id!r}"
    forms.refuse_misfit(forms.Many(entries.VARIANT), entry.get("variants", []), where, "variants")
    for variant in entry.get("variants", ()):
        given = varied(plain, variant["swap"], variant["id"], place)
        pattern = made(domain, given, place, original.id)
        if pattern.patch == original.patch:
            raise ConfigError(
                f"{place}: pattern {pattern.id!r} has the patch of {original.id!r}; its swap {variant['swap']} must "
                "change something there"
            )
        _refuse_wrong(pattern, place)
        yield given, pattern


def varied(given: Mapping[str, Any], swap: Mapping[str, str], name: str, place: str) -> dict[str, Any]:
    """A pattern under another id, with numbers and names swapped, all at once, in all but `KEPT`."""
    if "" in swap:
        raise ConfigError(f"{place}: pattern {name!r}: swap replaces the empty text; give what is to be replaced")
    longest = sorted(swap, key=len, reverse=True)
    found = re.compile(rf"(?<!\d)(?:{'|'.join(map(re.escape, longest))})(?!\d)") if swap else None

    def swapped(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: swapped(item) for key, item in value.items()}
        if isinstance(value, list):
            return [swapped(item) for item in value]
        if isinstance(value, int) and not isinstance(value, bool):
            return _number(swap.get(str(value), str(value)), value, f"{place}: pattern {name!r}")
        if isinstance(value, str) and found is not None:
            return found.sub(lambda match: swap[match.group()], value)
        return value

    changed = {key: value if key in KEPT else swapped(value) for key, value in given.items()}
    return {**changed, "id": name}


def made(domain: str, given: Mapping[str, Any], place: str, variant_of: str = "") -> Pattern:
    """The pattern that an entry describes; ConfigError where a value has not its form."""
    forms.refuse_misfit(entries.PATTERN, given, f"{place}: pattern {given.get('id')!r}")
    shows = given.get("shows", {})
    return Pattern(
        id=given["id"],
        domain=domain,
        type=given["type"],
        from_version=given["from"],
        to_version=given["to"],
        family=given.get("family", ""),
        variant_of=variant_of,
        needs=given.get("needs", {}),
        expires=given.get("expires", False),
        consent=given.get("consent", False),
        notice=given.get("notice", ""),
        codes=tuple(shows.get("codes", ())),
        tools=tuple(f"{domain}.{verb}" for verb in shows.get("tools", ())),
        description=given.get("description", ""),
        numbers=tuple(given.get("numbers", ())),
        words={language: tuple(words) for language, words in given["words"].items()},
        expressions=tuple(tuple(word.casefold().split("+")) for words in given["words"].values() for word in words),
        tell={language: given["tell"].get(language, given["tell"].get("en", "")) for language in LANGUAGES},
        grace=given.get("grace", 0),
        moved_from=given.get("moved_from"),
        patch=tuple(given["patch"]),
    )


def numbers_of(text: str) -> set[int]:
    """The whole numbers that stand in a text, with or without commas."""
    return {int(number) for number in re.findall(r"\d{1,9}", re.sub(r"(?<=\d),(?=\d)", "", text))}


def _refuse_wrong(pattern: Pattern, place: str) -> None:
    """Raise ConfigError for a pattern that contradicts itself."""
    where = f"{place}: pattern {pattern.id!r}"
    numbers, start = pattern.numbers, pattern.moved_from
    if start is not None and (len(numbers) != 1 or numbers[0] == start):
        raise ConfigError(f"{where} has moved_from and the numbers {list(numbers)}; give one other number")
    if pattern.grace and not pattern.notice:
        raise ConfigError(f"{where} has a grace period and no notice; say in `notice` what is deprecated")
    if re.fullmatch(rf"{re.escape(pattern.domain)}\.[A-Za-z0-9_]+", pattern.id) is None:
        forms.refuse(f"{where}: id", pattern.id, f"it must be '{pattern.domain}.' and letters, digits or _")
    if pattern.to_version not in (pattern.from_version, pattern.from_version + 1):
        forms.refuse(f"{where}: to", pattern.to_version, f"it must be {pattern.from_version} or one more, as `from` is")
    said = pattern.tell["en"]
    if not said or not pattern.words.get("en"):
        raise ConfigError(f"{where}: words and tell need at least en")
    if not pattern.patch:
        raise ConfigError(f"{where}: patch is empty; a drift must change something")
    if not any(all(part in said.casefold() for part in each) for each in pattern.expressions):
        forms.refuse(f"{where}: tell.en", said, "it must hold one of the expressions of `words`")
    for number in numbers:
        if number not in numbers_of(said):
            forms.refuse(f"{where}: tell.en", said, f"it must hold the number {number} of `numbers`")
        if start is not None and not _holds(pattern.patch, number):
            raise ConfigError(f"{where}: patch does not hold the number {number} of `numbers`; what is told must be so")


def _holds(value: Any, number: int) -> bool:
    """Whether a number, or a text with it, is among the values of a patch."""
    if isinstance(value, Mapping):
        return any(_holds(item, number) for key, item in value.items() if key not in ("op", "at", "field"))
    if isinstance(value, (list, tuple)):
        return any(_holds(item, number) for item in value)
    if isinstance(value, str):
        return number in numbers_of(value)
    return value == number and not isinstance(value, bool)


def _number(text: str, before: int, where: str) -> int:
    if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) is None:
        raise ConfigError(f"{where}: swap turns the number {before} into {text!r}; give digits for a number")
    return int(text)
