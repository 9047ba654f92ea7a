import collections

import pytest

from perdure.core.errors import ConfigError, DataError
from perdure.worlds.concierge import catalogue
from perdure.worlds.concierge.records import LANGUAGES

PUBLISHED = {
    "airline": {
        "price_rename",
        "pax_required",
        "booking_window_shrink",
        "baggage_tnc_rewrite",
        "reschedule_tnc",
        "convenience_fee_append",
    },
    "cab": {"fare_breakdown", "school_hours_mini_reject", "vehicle_class_expand", "surge_policy_tnc", "toll_unbundle"},
    "restaurant": {"items_shape_bump", "min_order_bump", "veg_filter_semantic"},
    "hotel": {"gst_field", "cancel_window_shrink", "early_checkin_tnc", "resort_fee_append"},
    "payment": {"auth_scope_upgrade", "mfa_required"},
}


def test_the_twenty_published_patterns_are_there_by_type(data):
    published = [pattern for pattern in data.patterns.values() if not pattern.held_out]
    assert {pattern.id for pattern in published} == {f"{d}.{name}" for d, names in PUBLISHED.items() for name in names}
    counts = collections.Counter(pattern.type for pattern in published)
    assert counts == {"schema": 5, "policy": 5, "tnc": 5, "pricing": 3, "auth": 2}


def test_sixteen_tools_are_there(data):
    tools = [name for domain in data.domains for name in data.contract(domain, 1).tools]
    assert sorted(tools) == sorted(
        [
            "airline.search",
            "airline.book",
            "airline.cancel",
            "airline.get_booking",
            "cab.estimate",
            "cab.book",
            "cab.cancel",
            "hotel.search",
            "hotel.book",
            "hotel.cancel",
            "payment.charge",
            "payment.refund",
            "payment.get_token",
            "restaurant.search",
            "restaurant.order",
            "restaurant.track",
        ]
    )


def test_held_out_families_and_variants_exist(data):
    families = {pattern.family for pattern in data.patterns.values()} - {""}
    assert families == {
        "unit_change",
        "date_format",
        "default_flip",
        "revert",
        "enum_removal",
        "rate_limit",
        "pagination",
        "nullable",
        "outage",
        "deprecation",
    }
    variants = [pattern for pattern in data.patterns.values() if pattern.variant_of]
    assert len(variants) >= 13
    for variant in variants:
        original = data.pattern(variant.variant_of)
        assert variant.patch != original.patch, "another field or threshold"
        assert variant.description != original.description
        assert (variant.type, variant.domain) == (original.type, original.domain)


def test_every_pattern_changes_its_contract_and_can_be_told_in_every_language(data):
    for pattern in data.patterns.values():
        before = data.contract(pattern.domain, pattern.from_version)
        after = data.contract(pattern.domain, pattern.from_version, (pattern.id,))
        assert before != after._replace(version=before.version, epoch=before.epoch)
        assert after.version == pattern.to_version
        assert set(pattern.tell) == set(pattern.words) == set(LANGUAGES)


def test_contracts_are_compiled_once(data):
    assert data.contract("cab", 2, ("cab.fare_breakdown",)) is data.contract("cab", 2, ("cab.fare_breakdown",))


def test_six_templates_a_domain_each_with_words_in_every_language(data):
    assert data.consumers == ("airline", "cab", "hotel", "restaurant")
    for domain in data.consumers:
        spec = data.domains[domain]
        assert len({template["id"] for template in spec["templates"]}) >= 6
        for language in LANGUAGES:
            assert len(set(spec["skeletons"][language])) >= 4
            assert all(language in template["purpose"] for template in spec["templates"])
            needed = {name for each in spec["templates"] for name in (*each["constraints"], *each["prefer"])}
            assert all(language in spec["phrases"][name] for name in needed)


def test_a_catalogue_that_lost_a_published_pattern_is_refused(monkeypatch):
    monkeypatch.setattr(catalogue, "CORE_PATTERNS", 21)
    with pytest.raises(DataError, match="has 20 published drift patterns; it must have 21"):
        catalogue.Catalogue()


def test_an_unknown_pattern_is_refused_with_the_nearest(data):
    with pytest.raises(ConfigError, match=r"did you mean 'airline\.pax_required'"):
        data.pattern("airline.pax_require")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("domain = 1 2", "is no TOML"),
        ('domain = "x"\n[tools.a]\nkind = "search"\nargs = {}\n', "lacks prefix or tools"),
        (
            'domain = "x"\nprefix = "X"\n[tools.a]\nkind = "search"\nargs = {}\n[[templates]]\nid = "x"\n',
            "lacks the section views",
        ),
        ('domain = "x"\nprefix = "X"\ntools = {}\n[[patterns]]\nid = "q"\n', "lacks from, to, type"),
        ('domain = "airline"\n', r"x\.toml: domain 'airline' stands in .*airline\.toml too; give it another name"),
        (
            'domain = "x"\nprefix = "X"\ntools = {}\n[[patterns]]\nid = "q"\nfrom = 1\nto = 2\ntype = "price"\n'
            "words = {}\ntell = {}\npatch = []\n",
            "did you mean 'pricing'",
        ),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, text, said):
    (tmp_path / "domains").mkdir()
    (tmp_path / "domains" / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        catalogue.Catalogue([tmp_path])


def test_a_folder_without_data_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds neither domains/\*\.toml"):
        catalogue.Catalogue([tmp_path / "nowhere"])
