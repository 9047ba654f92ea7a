import pytest

from perdure.worlds.concierge import tongues
from perdure.worlds.concierge.records import LANGUAGES


def sentences(data, language):
    """Everything the world's scripts say in a language, and the users' clauses."""
    words = data.words
    said = [pattern.tell[language] for pattern in data.patterns.values()]
    said += [words["asking"][slot][language] for slot in words["asking"]]
    said += [words["answers"][kind][language].format(value="4,600") for kind in words["answers"]]
    for domain in data.consumers:
        for phrase in data.domains[domain]["phrases"].values():
            said.append(phrase[language].format(value="7", n="2"))
    return [text for text in said if len(text.split()) > 2]


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_is_told_apart_on_its_own_corpus(data, language):
    corpus = sentences(data, language)
    assert len(corpus) >= 60
    right = sum(tongues.identified(data, text) == language for text in corpus)
    assert right / len(corpus) >= 0.95


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Your flight AIR-1a2b is booked for ₹4,600.", "en"),
        ("Aapki flight AIR-1a2b book ho gayi hai.", "hinglish"),
        ("आपकी flight बुक हो गई है।", "hi"),
        ("உங்கள் flight பதிவு செய்யப்பட்டது.", "ta"),
        ("ನಿಮ್ಮ flight ಬುಕ್ ಆಗಿದೆ.", "kn"),
        ("AIR-1a2b", None),
        ("4,600", None),
    ],
)
def test_names_and_borrowed_words_do_not_decide(data, text, language):
    assert tongues.identified(data, text) == language


def test_what_cannot_be_told_fits_any_language(data):
    assert all(tongues.fits(data, "OK 42", language) for language in LANGUAGES)
    assert not tongues.fits(data, "Your booking is done, thank you.", "ta")
