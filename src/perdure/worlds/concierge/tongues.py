"""Which of the five languages a message is in: its script, and for Roman letters the share of common Hindi words."""

import re
import unicodedata

from perdure.worlds.concierge.catalogue import Catalogue

SCRIPTS = {"hi": "DEVANAGARI", "ta": "TAMIL", "kn": "KANNADA"}
LEAST_SHARE = 0.4
"""Share of letters that must be of the language's own script; names and borrowed words may be Roman."""
ROMAN_SHARE = 0.15
"""Share of words that are common Hindi ones, from which on Roman text counts as hinglish."""


def identified(catalogue: Catalogue, message: str) -> str | None:
    """hi, ta, kn, en or hinglish; None where a message has no words to tell by."""
    text = _CODES.sub(" ", message)
    counts = dict.fromkeys(SCRIPTS, 0)
    roman = 0
    for character in text:
        code = ord(character)
        if 0x900 <= code < 0x980:
            counts["hi"] += 1
        elif 0xB80 <= code < 0xC00:
            counts["ta"] += 1
        elif 0xC80 <= code < 0xD00:
            counts["kn"] += 1
        elif code < 0x250 and unicodedata.category(character)[0] == "L":
            roman += 1
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
_WORDS = re.compile(r"[a-z']+")
