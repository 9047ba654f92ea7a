import pytest

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import settings


def test_the_three_sets_of_patterns_are_disjoint_and_make_up_all(data):
    sets = [set(settings.settings(data, {"held_out": number}).patterns) for number in range(4)]
    assert [len(each) for each in sets] == [20, 14, 11, 45]
    assert sets[0] | sets[1] | sets[2] == sets[3]


def test_naming_one_weight_leaves_out_the_others(data):
    chosen = settings.settings(data, {"language_ta": 2, "domain_cab": 1, "pattern_cab_surge_policy_tnc": 1})
    assert chosen.languages == (("ta", 2.0),)
    assert chosen.domains == (("cab", 1.0),)
    assert chosen.patterns == ("cab.surge_policy_tnc",)


def test_stages_have_their_mix_of_languages(data):
    assert dict(settings.settings(data, {"stage": 1}).languages) == {"en": 0.5, "hinglish": 0.3, "hi": 0.2}
    assert set(dict(settings.settings(data, {"stage": 3}).languages)) == {"en", "hinglish", "hi", "ta", "kn"}
    assert set(dict(settings.settings(data, {"stage": 3}, terse=True).languages)) == {"en", "hinglish"}
    with pytest.raises(ConfigError, match="language_ta is set, but terse users speak en and hinglish"):
        settings.settings(data, {"language_ta": 1.0, "language_en": 1.0}, terse=True)


def test_a_pattern_needs_its_vendor_and_a_version_early_enough(data):
    chosen = settings.settings(data, {"domain_airline": 1, "version_airline": 2, "version_payment": 2})
    assert {pattern.id for pattern in settings.usable(data, chosen)} == {
        "airline.pax_required",
        "airline.reschedule_tnc",
        "payment.mfa_required",
    }


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"stage": 4}, "whole number from 1 to 3"),
        ({"stage": 1.5}, "whole number"),
        ({"drift": 1.2}, "between 0 and 1"),
        ({"stages": 2}, "did you mean 'stage'"),
        ({"domain_hotle": 1}, "did you mean 'domain_hotel'"),
        ({"language_en": -1}, "0 or more"),
        ({"language_en": 0, "language_hi": 0}, "all weights"),
        ({"version_cab": 9}, "whole number from 1 to 2"),
        ({"held_out": 5}, "from 0 to 3"),
    ],
)
def test_wrong_parameters_are_refused(data, params, said):
    with pytest.raises(ConfigError, match=said):
        settings.settings(data, params)
