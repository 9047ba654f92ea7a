import pytest

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import views

FACTS = {"id": "X-1", "cost": 4200, "when": "2026-05-09T08:15:00+05:30", "spare": 1}


def test_what_is_written_reads_back_under_the_same_view_and_not_under_another():
    old = views.view_of([["id", "id"], ["price", "cost"], ["currency", "=INR"], ["at", "when"]], "v")
    new = views.view_of([["id", "id"], ["total", "cost", "paise"], ["at", "when", "dmy"]], "v")
    answer = views.written(new, FACTS)
    assert answer == {"id": "X-1", "total": 420000, "at": "09-05-2026T08:15:00+05:30"}
    assert views.read(new, answer) == {name: FACTS[name] for name in ("id", "cost", "when")}
    with pytest.raises(views.Unreadable, match="price"):
        views.read(old, answer)
    assert views.written(old, FACTS)["currency"] == "INR"


def test_a_null_is_written_and_cannot_be_read_as_a_fact():
    nulled = views.view_of([["rating", "=null"]], "v")
    assert views.written(nulled, {"rating": 5}) == {"rating": None}
    with pytest.raises(views.Unreadable, match="rating"):
        views.read(views.view_of([["rating", "rating"]], "v"), {"rating": None})


def test_facts_that_do_not_apply_are_left_out():
    assert views.written(views.view_of([["a", "b"]], "v"), {}) == {}


def test_an_unknown_transform_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"^hotel\.views\.offer\[0\].*'paisa'; did you mean 'paise'"):
        views.view_of([["a", "b", "paisa"]], "hotel.views.offer")
