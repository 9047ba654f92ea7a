"""The environment class: tools as the catalogue has them, an errand from row to reward, the closed errand."""

import inspect
import json

import pytest

pytest.importorskip("trl", reason="the extra trl is not installed")

from transformers.utils import get_json_schema

from perdure.core.errors import ConfigError
from perdure.integrations.trl import DriftCallToolEnv
from perdure.worlds.concierge.world import Concierge

OWN = ["abort", "ask_user", "probe_schema", "report_drift", "say", "submit"]


def row(seed=1_000_000, **options):
    return {"episode_seed": seed, "stage": 1, "language_weights": {"en": 1.0}, **options}


def opened(seed=1_000_000, **options):
    """An environment at the beginning of an errand; rows say what its world says."""
    environment = DriftCallToolEnv(**options)
    world = Concierge({"stage": 1, "language_en": 1.0})
    world.reset(options={"task": {"seed": seed}})
    said = [{"role": "user", "content": world.task.goal.utterance}]
    environment.reset(**row(seed, prompt=said))
    return environment


def played(environment):
    """Let the oracle do the errand through the methods."""
    while not environment.closed:
        call = json.loads(environment.world.expert())
        seen = getattr(environment, call["name"])(**call["arguments"])
    return seen


def tool_names():
    members = inspect.getmembers(DriftCallToolEnv, predicate=inspect.isfunction)
    return [name for name, _ in members if not name.startswith("_") and name not in ("reset", "get_reward")]


def test_there_are_the_sixteen_tools_of_the_vendors_and_six_more():
    vendors = [name for name in tool_names() if name not in OWN]
    assert len(vendors) == 16
    assert sorted([*vendors, *OWN]) == tool_names()


@pytest.mark.parametrize("name", tool_names())
def test_a_method_is_described_as_the_world_describes_the_tool(name):
    described = get_json_schema(getattr(DriftCallToolEnv(), name))["function"]
    world = Concierge(protocol="native")
    world.reset(options={"task": {"seed": 1_000_000}})
    published = next(each["function"] for each in world.tools() if each["function"]["name"] == name)
    assert described["description"] == published["description"]
    renamed = {"from": "from_"}
    theirs, ours = published["parameters"], described["parameters"]
    assert [renamed.get(each, each) for each in theirs["required"]] == ours.get("required", [])
    assert {renamed.get(each, each) for each in theirs["properties"]} == set(ours["properties"])
    for argument, told in theirs["properties"].items():
        made = ours["properties"][renamed.get(argument, argument)]
        assert made["type"] == told["type"]
        assert made.get("enum") == told.get("enum")
        assert made["description"]


def test_the_oracle_earns_everything_through_the_methods():
    environment = opened()
    assert "errand is over" in played(environment)
    assert environment.get_reward() == 1.0
    outcome = environment.outcome
    assert (outcome.success, outcome.ended, outcome.fault) == (True, "SUBMIT", None)
    assert outcome.turns == environment.world.task.oracle_turns
    assert outcome.components["r1"] == 1


def test_reset_tells_what_the_prompt_leaves_out():
    told = DriftCallToolEnv().reset(**row(prompt=opened_prompt()))
    assert "Turns: 8." in told
    assert "speaks en" in told


def opened_prompt(seed=1_000_000):
    return [{"role": "user", "content": opened(seed).world.task.goal.utterance}]


def test_arguments_named_by_keywords_of_python_are_meant():
    environment = opened()
    seen = environment.airline_search(from_="BLR", to="HYD", date="2026-05-01", max_price_inr=None)
    assert "airline.search ok" in seen


def test_what_a_call_has_wrong_costs_a_turn():
    environment = opened()
    assert "invalid action" in environment.submit(confidence=7)
    assert "UNKNOWN_FIELD" in environment.airline_search(
        **{"from": "BLR", "to": "HYD", "date": "2026-05-01", "self": 1}
    )
    assert environment.outcome.turns == 3  # The last one is the abort of an errand left open.


def test_an_errand_left_open_counts_as_aborted():
    environment, aborted = opened(), opened()
    aborted.abort()
    assert environment.get_reward() == environment.get_reward() == aborted.get_reward()
    assert environment.outcome.ended == "ABORT"


def test_a_closed_errand_answers_no_tool_and_each_call_costs_up_to_five():
    environment = opened()
    played(environment)
    turns = environment.outcome.turns
    assert environment.say(message="hello") == "The errand is over. Call no further tool."
    assert environment.get_reward() == pytest.approx(0.99)
    for _ in range(9):
        environment.say(message="hello")
    assert environment.get_reward() == pytest.approx(0.95)
    assert environment.outcome.turns == turns


def test_nothing_of_an_errand_is_left_in_the_next():
    environment = opened()
    played(environment)
    environment.say(message="hello")
    environment.reset(**row(1_000_001, prompt=opened_prompt(1_000_001)))
    other = opened(1_000_001)
    assert environment.say(message="Hello.") == other.say(message="Hello.")
    assert environment.get_reward() == other.get_reward()


def test_a_world_that_fails_has_no_reward():
    class Broken(Concierge):
        def step(self, action):
            raise OSError("no disk")

    environment = opened(env_factory=lambda: Broken(protocol="native"))
    assert environment.say(message="hello") == "\nThe errand is over. Call no further tool."
    assert environment.get_reward() is None
    assert environment.outcome.fault == "OSError: no disk"


def test_a_world_that_cannot_begin_has_no_reward():
    class Broken(Concierge):
        def reset(self, **_):
            raise OSError("no disk")

    environment = DriftCallToolEnv(lambda: Broken(protocol="native"))
    assert environment.reset(**row(prompt=opened_prompt())) == ""
    assert environment.get_reward() is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": []}, "a row lacks episode_seed, stage, language_weights"),
        (row(prompt=[{"role": "user", "content": "A pizza, please."}]), "the prompt says 'A pizza, please.'"),
        (row(), "a row lacks prompt; make the data set with"),
        (row(prompt=[], catalogue="0123"), "a row was made for the catalogue 0123"),
        (row(prompt=[], language_weights={"en": 0.4}), "add up to 0.4"),
    ],
)
def test_rows_that_are_not_the_worlds_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        DriftCallToolEnv().reset(**given)
