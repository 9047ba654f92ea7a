"""Words of one's own: what can be used is, and what cannot is refused by file, entry and remedy."""

import re
from pathlib import Path

import pytest

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import settings, tasks
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.records import LANGUAGES

ALL = ", ".join(f'{language} = "x"' for language in LANGUAGES)
PAGE = re.findall(
    r"```toml\n(.*?)```", (Path(__file__).parents[3] / "docs" / "concierge.md").read_text(encoding="utf-8"), re.DOTALL
)
CINEMA = next(text for text in PAGE if text.startswith('domain = "cinema"'))
MUSEUMS = next(text for text in PAGE if text.startswith("[places]"))
TODAY = """
[days]
today = {hi = "आज", ta = "இன்று", kn = "ಇಂದು", en = "this very day", hinglish = "aaj hi"}
"""
WRONG = [
    ("[places", "is no TOML"),
    ("places = 3", "places is 3; it must be a table"),
    ("[plces]", "has the unknown key 'plces'; did you mean 'places'?"),
    ('[places]\nmuseum = "fort"', "places.museum is 'fort'; it must be a list"),
    ('[places]\nmuseum = ["fort"]', "1 of the places of kind 'museum' are not held out; leave at least 2"),
    ('[places]\ndate = ["a", "b"]', "a kind of places is 'date'; that is a type of arguments"),
    ('[held_out]\nplce = ["zoo"]', "held_out has a key that is 'plce'; did you mean 'place'?"),
    ('[held_out]\nplace = ["zoo", "zu"]', "held_out.place has an entry that is 'zu'; "),
    ('[held_out]\nplace = ["zoo"]', "held_out.place has one place; hold out at least 2, or none"),
    ('[places]\nmuseum = ["a", "b"]\n[held_out]\nmuseum = ["a", "b"]', "0 of the places of kind 'museum'"),
    ('[place.fort]\nhi = "x"', "place.fort lacks en; give each a value"),
    ('[place.fort]\nen = "the {fort}"', "place.fort.en has a placeholder that is 'fort'"),
    ('[place.fort]\nen = "x"\nfr = "y"', "place.fort has the unknown key 'fr'; known: "),
    ('[window.noon]\nen = "noon"', "window has the unknown key 'noon'; did you mean 'afternoon'"),
    ('[days]\ntoday = {en = "now"}', "days.today lacks hi, ta, kn, hinglish; give each a value"),
    (f"[days]\nlater = {{{ALL}}}", "days has the unknown key 'later'"),
    (
        f"[days]\nthis = {{{ALL.replace('x', '{dy}')}}}",
        "days.this.hi has a placeholder that is 'dy'; did you mean 'day'",
    ),
    ('[weekdays]\nen = ["Mon"]', r"weekdays.en is \['Mon'\]; it must be a list of 7 entries"),
    ('[digits]\nhi = "0123"', "digits.hi is '0123'; it must be the ten digits"),
    ("[money]\nen = []", r"money.en is \[\]; it must be a list of 1 or more"),
    ('[money]\nen = ["{amount} rupees"]', r"money.en\[0\] has a placeholder that is 'amount'; "),
    ('[money]\nen = ["{n:,} rupees"]', r"money.en\[0\] formats \{n\}; give the name alone"),
    ('[telling]\nen = ["Note {"]', r"telling.en\[0\]: "),
    ('[asked.seats]\nen = ["how many"]', "asked has an entry without answer that is 'seats'; "),
    (f"[answers]\nyes = {{{ALL.replace('x', '{value}')}}}", "answers.yes.hi has a placeholder that is 'value'"),
    ('[roman]\nen = ["hai"]', "roman has the unknown key 'en'"),
]


def of(folder, text):
    """The catalogue with a file of words."""
    (folder / "words").mkdir()
    (folder / "words" / "x.toml").write_text(text, encoding="utf-8")
    return Catalogue([folder])


def test_words_of_ones_own_stand_beside_the_packages(tmp_path, data):
    words = of(tmp_path, MUSEUMS + TODAY).words
    assert words["places"]["museum"][2:] == words["held_out"]["museum"] == ["gallery", "palace"]
    assert words["places"]["city"] == data.words["places"]["city"]
    assert words["place"]["city_museum"] == {"en": "the city museum", "hinglish": "city museum"}
    assert words["days"]["today"]["en"] == "this very day"
    assert words["days"]["tomorrow"] == data.words["days"]["tomorrow"]


@pytest.mark.parametrize(("held_out", "places"), [(0, {"city_museum", "fort"}), (1, {"gallery", "palace"})])
def test_a_kind_of_places_of_ones_own_is_a_type(tmp_path, held_out, places):
    (tmp_path / "domains").mkdir()
    vendor = CINEMA.replace('city = { type = "city" }', 'city = { type = "museum" }')
    (tmp_path / "domains" / "cinema.toml").write_text(vendor, encoding="utf-8")
    catalogue = of(tmp_path, MUSEUMS)
    regime = {"stage": 2, "domain_cinema": 1, "language_en": 1, "held_out_places": held_out}
    chosen = settings.settings(catalogue, {**regime, "pattern_cinema_booking_fee": 1})
    goals = [tasks.generated(catalogue, seed, chosen).goal for seed in range(30)]
    assert {key["city"] for goal in goals for key in goal.keys} == places
    if not held_out:
        assert any("in the city museum" in goal.utterance for goal in goals)


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_words_that_cannot_be_used_are_refused_by_file_and_entry(tmp_path, text, said):
    with pytest.raises(ConfigError, match=rf"x\.toml.*{said}"):
        of(tmp_path, text)


def test_a_file_in_another_folder_is_refused(tmp_path):
    (tmp_path / "word").mkdir()
    (tmp_path / "word" / "x.toml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"x\.toml lies in word/; vendors are read from domains/, words from words/"):
        Catalogue([tmp_path])
