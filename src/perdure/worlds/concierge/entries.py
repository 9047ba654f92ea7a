"""What a vendor's file holds: for each entry its form. What entries mean to each other, `checks` says."""

from perdure.worlds.concierge import judge, patches, views
from perdure.worlds.concierge.contract import Argument
from perdure.worlds.concierge.forms import (
    ANY_TEXT,
    ANY_WHOLE,
    ANYTHING,
    NAME,
    SCALAR,
    SHARE,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    Choice,
    Many,
    Named,
    Option,
    Row,
    Table,
    pair,
    table,
    whole,
)
from perdure.worlds.concierge.records import KINDS, LANGUAGES, MAX_TURNS

MOST_OFFERS = 100
SPOKEN = Named(TEXT, LANGUAGES)
HOUR = whole(0, 24)

ARGUMENT = Table(
    {
        "type": TEXT,
        "optional": SWITCH,
        "default": SCALAR,
        "filter": Option(("at_most", "equals", "holds", "window")),
        "of": TEXT,
        "request": TEXT,
        "required_by": table({"code": TEXT, "above": WHOLE}, "above"),
    },
    ("type",),
)
assert ARGUMENT.fields.keys() == set(Argument._fields) - {"name"}, "every field of an argument can be given"
TOOL = table(
    {
        "kind": Option(("search", "book", "cancel", "read", "issue", "charge", "refund")),
        "args": Named(ARGUMENT),
        "keys": TEXTS,
        "selects": TEXT,
        "single": SWITCH,
        "shown": TEXT,
        "description": ANY_TEXT,
    },
    *("keys", "selects", "single", "shown", "description"),
)
VIEW = Many(Row((TEXT, TEXT, Option(tuple(views.TRANSFORMS))), 2), least=1)
PART = table(
    {
        "name": TEXT,
        "of": TEXT,
        "amount": ANY_WHOLE,
        "percent": ANY_WHOLE,
        "per": TEXT,
        "if": TEXT,
        "unless": TEXT,
        "at": Option(("booking",)),
    },
    *("of", "amount", "percent", "per", "if", "unless", "at"),
)
POLICY = Choice(
    "kind",
    {
        "departed": table({"code": TEXT}),
        "same_day_after": table({"hour": HOUR, "code": TEXT}),
        "offered": table({"attribute": TEXT, "values": Many(TEXT, 1), "code": TEXT}),
        "hours_refused": table(
            {
                "attribute": TEXT,
                "value": SCALAR,
                "of": TEXT,
                "start": HOUR,
                "end": HOUR,
                "available": TEXTS,
                "code": TEXT,
            }
        ),
        "minimum": table({"amount": WHOLE, "code": TEXT}),
        "menu": table({"code": TEXT}),
        "stay": table({"code": TEXT}),
        "rate_limit": table({"turns": whole(0, 16), "code": TEXT}),
        "outage": table({"tool": TEXT, "attempts": whole(0, 16), "code": TEXT}, "code"),
    },
)
assert set(judge.RULES) <= set(POLICY.tables), "every rule can be given"
ATTRIBUTE = Table(
    {
        "low": ANY_WHOLE,
        "high": ANY_WHOLE,
        "step": whole(1),
        "distinct": SWITCH,
        "shared": SWITCH,
        "choice": Many(SCALAR, 1),
        "chance": SHARE,
        "times": Many(whole(0, 23), 1),
        "menu": Many(Row((TEXT, Option(("veg", "egg", "nonveg")), WHOLE, WHOLE), 4), 1),
        "veg_rows": TEXT,
        "factor": TEXT,
    }
)
OFFERS = table(
    {"count": pair(1, MOST_OFFERS), "each": Many(Named(SCALAR), 1), "attributes": Named(ATTRIBUTE)}, "count", "each"
)
_SLOT = {
    "type": TEXT,
    "choice": Many(SCALAR, 1),
    "days": pair(0, 3650),
    "other_than": TEXT,
    "after": TEXT,
    "dishes": Many(TEXT, 1),
    "count": pair(1, 20),
}
SLOT, PART_OF_SLOT = Table(_SLOT, ("type",)), Table(_SLOT)
CONSTRAINT = table(
    {"fact": TEXT, "test": Option(tuple(judge.TESTS)), "choice": Many(SCALAR, 1), "planted": SWITCH},
    "choice",
    "planted",
)
TEMPLATE = table(
    {
        "id": TEXT,
        "constraints": TEXTS,
        "prefer": Many(TEXT, 1),
        "purpose": SPOKEN,
        "held_out": SWITCH,
        "min_stage": whole(1, max(MAX_TURNS)),
        "slots": Named(PART_OF_SLOT),
    },
    *("held_out", "min_stage", "slots"),
)
_AT = {"at": TEXT}
_SET = table({**_AT, "value": ANYTHING})
_RENAME = table({**_AT, "field": TEXT, "to": TEXT})
_REMOVE = table({**_AT, "field": TEXT, "value": ANYTHING}, "field", "value")
_REPRESENT = table({**_AT, "field": TEXT, "transform": TEXT, "source": TEXT}, "transform", "source")
_BUMP = table({**_AT, "by": whole(1)}, "by")
PATCH = Choice(
    "op",
    {
        **dict.fromkeys(patches.OPERATORS, _SET),
        **dict.fromkeys(("rename", "rename_argument"), _RENAME),
        **dict.fromkeys(("remove", "enum_shrink"), _REMOVE),
        **dict.fromkeys(("unit_change", "nullable"), _REPRESENT),
        **dict.fromkeys(("auth_scope_bump", "token_version_bump"), _BUMP),
        "require_new_field": table({**_AT, "code": TEXT, "above": WHOLE}, "above"),
        "enum_expand": table({**_AT, "values": Many(ANYTHING, 1)}),
    },
)
_ALTERNATIVE = {
    "constraint": TEXT,
    "values": Many(SCALAR, 1),
    "prefer": Many(TEXT, 1),
    "request": Named(SCALAR),
    "slots": Named(PART_OF_SLOT),
    "setting": Option(("same_day",)),
}
NEEDS = Table(
    {
        **_ALTERNATIVE,
        "budget": SWITCH,
        "total_above": WHOLE,
        "choice": SWITCH,
        "either": Many(Table(_ALTERNATIVE), 1),
        "not_after": TEXTS,
    }
)
PATTERN = table(
    {
        "id": TEXT,
        "from": whole(1),
        "to": whole(1),
        "type": Option(KINDS),
        "words": Named(TEXTS, LANGUAGES),
        "tell": SPOKEN,
        "patch": Many(PATCH),
        "numbers": Many(WHOLE),
        "moved_from": WHOLE,
        "grace": whole(0, max(MAX_TURNS.values())),
        "needs": NEEDS,
        "shows": Table({"codes": TEXTS, "tools": TEXTS}),
        "expires": SWITCH,
        "consent": SWITCH,
        "notice": ANY_TEXT,
        "family": ANY_TEXT,
        "description": ANY_TEXT,
    },
    *("numbers", "moved_from", "grace", "needs", "shows", "expires", "consent", "notice", "family", "description"),
)
VARIANT = table({"id": TEXT, "swap": Named(TEXT)})
DOMAIN = Table(
    {
        "domain": NAME,
        "prefix": TEXT,
        "most_total": WHOLE,
        "page_size": whole(0, MOST_OFFERS),
        "item_fields": Many(Option(("modifiers",))),
        "unrequested": TEXTS,
        "auth": Table({"version": whole(1), "mfa_above": WHOLE}),
        "tools": Named(TOOL),
        "views": Named(VIEW),
        "terms": Named(SCALAR),
        "derived": Named(TEXT),
        "pricing": Many(PART),
        "policies": Named(POLICY),
        "offers": OFFERS,
        "slots": Named(SLOT),
        "constraints": Named(CONSTRAINT),
        "templates": Many(TEMPLATE, 1),
        "skeletons": Named(Many(TEXT, 1), LANGUAGES),
        "names": Named(SPOKEN),
        "phrases": Named(SPOKEN),
        "versions": Many(table({"number": whole(2), "patch": Many(PATCH, 1)})),
    },
    ("domain", "prefix", "tools"),
)
