import copy

import pytest

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import patches

SPEC = {
    "domain": "shop",
    "tools": {"book": {"args": {"a": {"type": "id"}, "n": {"type": "count", "optional": True}}}},
    "views": {"offer": [["id", "id"], ["price", "cost"]]},
    "terms": {"hours": 24},
    "policies": {"kinds": {"values": ["x", "y"]}},
    "pricing": [{"name": "base", "of": "cost"}],
    "auth": {"version": 1},
}


def patched(**patch):
    return patches.patched(SPEC, [patch], "here")


@pytest.mark.parametrize(
    ("patch", "look", "found"),
    [
        (
            {"op": "rename", "at": "views.offer", "field": "price", "to": "total"},
            lambda s: s["views"]["offer"][1],
            ["total", "cost"],
        ),
        ({"op": "remove", "at": "views.offer", "field": "price"}, lambda s: s["views"]["offer"], [["id", "id"]]),
        (
            {"op": "enum_shrink", "at": "policies.kinds.values", "value": "x"},
            lambda s: s["policies"]["kinds"]["values"],
            ["y"],
        ),
        (
            {"op": "enum_expand", "at": "policies.kinds.values", "values": ["z"]},
            lambda s: s["policies"]["kinds"]["values"],
            ["x", "y", "z"],
        ),
        ({"op": "numeric_bump", "at": "terms.hours", "value": 6}, lambda s: s["terms"]["hours"], 6),
        ({"op": "auth_scope_bump", "at": "auth.version"}, lambda s: s["auth"]["version"], 2),
        ({"op": "fee_append", "at": "pricing", "value": {"name": "fee"}}, lambda s: s["pricing"][1], {"name": "fee"}),
        ({"op": "rule_add", "at": "page_size", "value": 2}, lambda s: s["page_size"], 2),
        (
            {"op": "unit_change", "at": "views.offer", "field": "price", "transform": "paise"},
            lambda s: s["views"]["offer"][1],
            ["price", "cost", "paise"],
        ),
        (
            {"op": "nullable", "at": "views.offer", "field": "price", "source": "=null"},
            lambda s: s["views"]["offer"][1],
            ["price", "=null"],
        ),
        (
            {"op": "rename_argument", "at": "tools.book.args", "field": "a", "to": "b"},
            lambda s: list(s["tools"]["book"]["args"]),
            ["b", "n"],
        ),
        (
            {"op": "require_new_field", "at": "tools.book.args.n", "code": "MISSING", "above": 5},
            lambda s: s["tools"]["book"]["args"]["n"]["required_by"],
            {"code": "MISSING", "above": 5},
        ),
    ],
)
def test_operators_change_what_they_name_and_nothing_of_the_original(patch, look, found):
    before = copy.deepcopy(SPEC)
    assert look(patched(**patch)) == found
    assert before == SPEC


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"op": "renam", "at": "views.offer"}, "did you mean 'rename'"),
        ({"op": "rename", "at": "views.offer", "field": "prise", "to": "x"}, "did you mean 'price'"),
        ({"op": "numeric_bump", "at": "terms.hour", "value": 3}, "did you mean 'hours'"),
        ({"op": "numeric_bump", "at": "terms.hours", "value": 24}, "must change something"),
        ({"op": "enum_expand", "at": "policies.kinds.values", "values": ["x"]}, "must change something"),
        ({"op": "enum_shrink", "at": "policies.kinds.values", "value": "z"}, "no 'z' to remove"),
        ({"op": "require_new_field", "at": "tools.book.args.a", "code": "M"}, "required already"),
        ({"op": "rule_add", "at": "terms.hours", "value": 1}, "is there already"),
        ({"op": "rename_argument", "at": "tools.book.args", "field": "c", "to": "d"}, "has no 'c'"),
    ],
)
def test_a_patch_that_does_nothing_is_refused_with_its_place(patch, said):
    with pytest.raises(ConfigError, match=r"^here\.patch\[0\]") as caught:
        patched(**patch)
    assert said in str(caught.value)


def test_all_fourteen_published_operators_are_there():
    published = (
        "rename remove require_new_field change_type numeric_bump enum_expand policy_flag_flip time_window_shrink "
        "tnc_text_swap side_channel_notice_append pricing_restructure fee_append auth_scope_bump token_version_bump"
    )
    assert set(published.split()) <= set(patches.OPERATORS)
