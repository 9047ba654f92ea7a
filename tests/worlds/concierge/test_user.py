import pytest

from perdure.worlds.concierge import user
from perdure.worlds.concierge.records import LANGUAGES, Constraint, Goal

GOAL = Goal(
    "airline",
    "",
    "",
    ({},),
    {},
    (Constraint("budget", "total", "at_most", 4600),),
    ("fare", "lowest"),
    "en",
    "",
    (),
    {"gst_number": "29ABCDE1234F1Z5", "mfa_code": "918273"},
)


def answer(data, message, language="en", answered=0, goal=GOAL):
    return user.reply(data, goal, message, language, answered, 3, "2026-05-01T10:00")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("slot", "value"), [("gst_number", "29ABCDE1234F1Z5"), ("mfa_code", "918273")])
def test_secrets_are_told_when_asked_in_any_language(data, language, slot, value):
    reply = answer(data, data.words["asking"][slot][language], language)
    assert value in reply.text
    assert reply.slots == (slot,)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_budget_is_told_when_asked(data, language):
    from perdure.worlds.concierge.evidence import normalised

    reply = answer(data, data.words["asking"]["budget"][language], language)
    assert "4600" in normalised(reply.text)


def test_what_is_unknown_or_too_much_is_not_told(data):
    assert answer(data, "What colour is the sky?").text == "I do not know, please decide."
    assert answer(data, "It costs 4,500. All right?").text == "Yes, that is fine."
    assert answer(data, "What is your budget?", goal=GOAL._replace(constraints=())).slots == ()
    tired = answer(data, "What is the OTP?", answered=user.MOST_ANSWERS)
    assert "918273" not in tired.text
    assert not tired.helpful
