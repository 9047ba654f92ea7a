import pytest

from perdure.worlds.concierge import baselines, evidence, scoring
from perdure.worlds.concierge.errand import Errand
from perdure.worlds.concierge.records import Action

FEE = "airline.convenience_fee_append"


@pytest.mark.parametrize(
    ("message", "states"),
    [
        ("Heads-up: there is now a convenience fee of Rs 199.", True),
        ("अब १९९ रुपये सुविधा शुल्क लगता है।", True),
        ("convenience fee", False),
        ("It costs 199 more.", False),
        ("A convenience fee of 1199 applies.", False),
        ("CONVENIENCE FEE: ₹199!", True),
    ],
)
def test_a_sentence_states_a_fact_if_it_has_its_words_and_its_number(data, message, states):
    assert evidence.states(data.pattern(FEE), message) is states


def test_numbers_are_compared_without_commas_and_in_any_digits(data):
    pattern = data.pattern("payment.mfa_required")
    assert evidence.states(pattern, "An OTP is needed above 5,000 now")
    assert evidence.states(pattern, "₹௫,௦௦௦ மேல் ஓடிபி வேண்டும்")
    assert evidence.normalised("१,२३,४५६ Ab") == "123456 ab"


def test_what_scripts_tell_states_its_own_fact_and_no_other_kind(data):
    for pattern in data.patterns.values():
        for message in pattern.tell.values():
            stated = [each for each in data.of_domain(pattern.domain) if evidence.states(each, message)]
            assert pattern in stated
            assert {each.type for each in stated} == {pattern.type}


def play(data, task, meddle):
    """The oracle's errand in which `meddle(errand, action)` may put another action in the place of each."""
    errand = Errand(data, task)
    script, seen = baselines.oracle(errand, None), errand.start()
    while not seen.done:
        for action in meddle(errand, script(seen)):
            seen = errand.step(action)
    return errand.record()


@pytest.fixture
def task(pose):
    name = FEE.replace(".", "_", 1)
    return pose(1, stage=2, drift=1, decoy=0, language_en=1, **{f"pattern_{name}": 1})._replace(max_turns=20)


def test_the_oracle_is_seen_to_adapt_and_to_tell(data, task):
    (found,) = evidence.gathered(data, play(data, task, lambda errand, action: [action])).detections
    assert (found.latency, found.score) == (1, 1.0)
    assert found.disclosed == found.exposed + 1 < found.adapted


def test_a_report_is_as_good_as_a_sentence(data, task):
    report = Action("report_drift", domain="airline", kind="pricing")
    episode = play(data, task, lambda errand, action: [report if action.action_type == "speak" else action])
    result = evidence.gathered(data, episode)
    assert (result.detections[0].score, result.claims, result.false_claims) == (1.0, 1, 0)


def test_silence_halves_and_delay_discounts(data, task):
    wait = Action("probe_schema", "cab")
    silent = play(data, task, lambda errand, action: [wait if action.action_type == "speak" else action])
    (found,) = evidence.gathered(data, silent).detections
    assert found.disclosed is None
    assert found.score == pytest.approx(0.5 * 0.9 ** (found.adapted - found.exposed - 1))
    late = play(data, task, lambda errand, action: [wait, wait, action] if action.action_type == "speak" else [action])
    (found,) = evidence.gathered(data, late).detections
    assert found.latency == 3
    assert found.score == pytest.approx(0.81)


def test_claims_before_the_exposure_or_of_another_kind_are_false(data, task):
    early = Action("report_drift", domain="airline", kind="pricing")
    other = Action("report_drift", domain="airline", kind="tnc")
    told = Action("speak", message="A convenience fee of 199 applies.")

    def meddle(errand, action):
        return [early, other, told, action] if not errand.turns else [action]

    result = evidence.gathered(data, play(data, task, meddle))
    assert (result.claims, result.false_claims) == (4, 3)
    assert result.detections[0].disclosed > result.detections[0].exposed


def test_a_booking_that_breaks_a_constraint_is_no_adaptation(data, task):
    errand = Errand(data, task)
    script, seen = baselines.drift_blind(errand, None), errand.start()
    while not seen.done:
        seen = errand.step(script(seen))
    (found,) = evidence.gathered(data, errand.record()).detections
    assert (found.adapted, found.disclosed, found.score) == (None, None, 0.0)


def test_undrifted_errands_have_no_recall(data, pose):
    episode = baselines.play(data, pose(1, stage=1), baselines.oracle)
    assert evidence.gathered(data, episode).recall is None
    assert scoring.scored(data, episode).r2 is None
