"""Which of the five languages a message is in: its script, and for Roman letters the share of common Hindi words."""

import re

from perdure.worlds.concierge.catalogue import Catalogue

SCRIPTS = {
    name: re.compile(f"[{block}]")
    for name, block in (("hi", "\u0900-\u097f"), ("ta", "\u0b80-\u0bff"), ("kn", "\u0c80-\u0cff"))
}
"""Language -> the characters of its own script."""
LEAST_SHARE = 0.4
"""Share of letters that must be of the language's own script; names and borrowed words may be Roman."""
ROMAN_SHARE = 0.15
"""Share of words that are common Hindi ones, from which on Roman text counts as hinglish."""


def identified(catalogue: Catalogue, message: str) -> str | None:
    """hi, ta, kn, en or hinglish; None where a message has no words to tell by."""
    text = _CODES.sub(" ", message)
    roman = len(_ROMAN.findall(text))
    counts = {language: len(script.findall(text)) for language, script in SCRIPTS.items()}
    total = roman + sum(counts.values())
    if not total:
        return None
    language = max(counts, key=lambda name: counts[name])
    if counts[language] >= LEAST_SHARE * total:
        return language
    words = _WORDS.findall(text.casefold())
    lexicon = catalogue.roman_hindi
    hindi = sum(word in lexicon for word in words)
    return "hinglish" if words and hindi >= ROMAN_SHARE * len(words) else "en"


def fits(catalogue: Catalogue, message: str, language: str) -> bool:
    """Whether a message may be said to a user who speaks `language`; what cannot be told fits any."""
    return identified(catalogue, message) in (None, language)


_CODES = re.compile(r"[A-Z]{2,}[-A-Z0-9a-f]*|\b\w*[_:]\w*\b|\b\w*\d\w*\b")
"""Codes, identifiers and numbers, which belong to no language."""
_ROMAN = re.compile("[{}]".format("".join(filter(str.isalpha, map(chr, range(0x250))))))
_WORDS = re.compile(r"[a-z']+")
