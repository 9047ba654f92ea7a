import re
import unicodedata

import pytest

from perdure.worlds.concierge import phrases, settings, tasks
from perdure.worlds.concierge.chance import Draws
from perdure.worlds.concierge.records import LANGUAGES, Constraint

SCRIPTS = {"hi": (0x900, 0x980), "ta": (0xB80, 0xC00), "kn": (0xC80, 0xD00)}


def speaker(data, language, seed=0, now="2026-05-01T10:00"):
    return phrases.Speaker(data, "airline", language, now, Draws(seed))


@pytest.mark.parametrize(
    ("number", "text"), [(199, "199"), (4600, "4,600"), (123456, "1,23,456"), (10**7, "1,00,00,000")]
)
def test_indian_commas(number, text):
    assert phrases.grouped(number) == text


def test_dates_are_said_as_people_say_them(data):
    said = speaker(data, "en")
    assert [said.date(f"2026-05-{day:02d}") for day in (1, 2, 8, 7)] == [
        "today",
        "tomorrow",
        "on 8 May",
        "this Thursday",
    ]
    assert speaker(data, "hinglish").date("2026-05-04") == "is Somvaar"


def test_a_speaker_may_name_every_day_by_its_date(data):
    said = phrases.Speaker(data, "airline", "en", "2026-05-01T10:00", Draws(0), near_days=False)
    assert [said.date(f"2026-05-{day:02d}") for day in (1, 2, 7)] == ["on 1 May", "on 2 May", "on 7 May"]


def test_terse_users_name_days_by_their_date(data):
    near = re.compile(r"today|tomorrow|this [A-Z]", re.IGNORECASE)
    for terse, some in ((True, False), (False, True)):
        chosen = settings.settings(data, {"domain_cab": 1, "language_en": 1}, terse)
        said = [tasks.generated(data, seed, chosen).goal.utterance for seed in range(40)]
        assert any(map(near.search, said)) is some


def test_scripts_have_their_own_digits_for_some_speakers(data):
    for language, zero in (("hi", "०"), ("ta", "௦"), ("kn", "೦")):
        said = {speaker(data, language, seed).digits("10") for seed in range(30)}
        assert said == {"10", chr(ord(zero) + 1) + zero}
    assert {speaker(data, "en", seed).digits("10") for seed in range(30)} == {"10"}


def test_a_constraint_is_a_sentence_with_its_value(data):
    assert speaker(data, "en").clause(Constraint("cabin_bag", "cabin_kg", "at_least", 7)) == "My cabin bag weighs 7 kg."
    assert "चाहिए" not in speaker(data, "hi").clause(Constraint("window", "depart", "window", "morning"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_utterances_are_clean_and_various(data, language):
    chosen = settings.settings(data, {"stage": 2, "drift": 0, f"language_{language}": 1})
    seen = {}
    for seed in range(120):
        goal = tasks.generated(data, seed, chosen).goal
        text = goal.utterance
        assert len(text) <= phrases.MOST_UTTERANCE
        assert not re.search(r"[{}_]|\d{4}-\d{2}|\b[A-Z]{3}\b", text), "no placeholder, no ISO date, no code"
        assert text == unicodedata.normalize("NFC", text)
        letters = [ord(character) for character in text if unicodedata.category(character)[0] == "L"]
        if language in SCRIPTS:
            low, high = SCRIPTS[language]
            assert all(low <= code < high for code in letters)
        else:
            assert all(code < 0x250 for code in letters)
        seen.setdefault(goal.domain, set()).add(text)
    assert all(len(texts) > 15 for texts in seen.values())
