import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, PerdureError, RunFailed
from perdure.harness.collector import RolloutCollector
from perdure.worlds.adapters.gymnasium import make
from perdure.worlds.adapters.trl_environment import ToolWorld

ROWS = [{"prompt": "Guess a number.", "secret": 7}, {"prompt": [{"role": "user", "content": "Guess."}], "secret": 3}]


class Guessing:
    """A game in the form that TRL asks of an environment class."""

    limit = 3

    def reset(self, secret: int, **others: Any) -> str | None:
        self.secret, self.count, self.reward = secret, 0, 0.0
        return f"You have {self.limit} guesses." if secret == 7 else None

    def guess(self, number: int, aloud: bool = False) -> str:
        """Compare a number with the secret one.

        Args:
            number: The guess.
        """
        self.count += 1
        if self.count > self.limit:
            raise ValueError("no guesses left")
        if number == 13:
            raise OSError("the game is broken")
        self.reward = float(number == self.secret)
        return "right" if number == self.secret else "low" if number < self.secret else "high"

    def scores(self) -> dict[str, int]:
        """Tell the count."""
        return {"count": self.count}

    def get_reward(self) -> float | None:
        return self.reward if self.count else None

    def _private(self) -> None:
        """No tool."""


def world(index=0, **kwargs):
    made = ToolWorld(Guessing, ROWS, **kwargs)
    made.reset(options={"task": {"index": index}})
    return made


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


def test_a_prompt_has_the_row_what_reset_adds_and_the_tools():
    seen, _ = ToolWorld(Guessing, ROWS[:1]).reset(seed=0)
    lines = seen.splitlines()
    assert lines[:3] == ["Guess a number.", "You have 3 guesses.", "Tools:"]
    assert lines[3] == "- guess(number: int, aloud: bool = False): Compare a number with the secret one."
    assert lines[4] == "- scores(): Tell the count."
    assert len(lines) == 6
    assert ToolWorld(Guessing, ROWS[1:], describe=False).reset(seed=0)[0] == "Guess."


def test_calls_are_carried_out_and_an_answer_without_one_ends_it():
    env = world()
    assert env.step(call("guess", number=9))[:4] == ("high", 0.0, False, False)
    assert env.step('<tool_call>{"name": "guess", "arguments": {"number": 7}}</tool_call>')[:4] == (
        "right",
        0.0,
        False,
        False,
    )
    assert env.step('{"name": "scores"}')[:2] == ('{"count": 2}', 0.0)
    said, reward, terminated, truncated, info = env.step("It is 7.")
    assert (said, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["reward_components"] == {"environment": 1.0}
    with pytest.raises(PerdureError, match="call reset"):
        env.step("more")


def test_the_last_turn_ends_it_and_pays():
    env = world(turns=2)
    assert env.step(call("guess", number=1))[1:3] == (0.0, False)
    assert env.step(call("guess", number=7))[:3] == ("right", 1.0, True)


def test_no_reward_is_missing_not_nothing():
    assert math.isnan(world().step("I pass.")[1])


def test_an_object_that_names_no_tool_is_an_answer():
    env = world()
    env.step(call("guess", number=7))
    assert env.step({"answer": 7})[1:3] == (1.0, True)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (call("steal"), "There is no such tool; there are: guess, scores."),
        (call("reset", secret=1), "There is no such tool"),
        (call("get_reward"), "There is no such tool"),
        (call("_private"), "There is no such tool"),
        (call("__init__"), "There is no such tool"),
        (call("guess"), "The arguments do not fit; call - guess(number: int"),
        (call("guess", number=1, other=2), "The arguments do not fit"),
        (call("guess", number="many"), "The argument number has a wrong type"),
        (call("guess", number=[1]), "The argument number has a wrong type"),
        ({"name": "guess", "arguments": [1]}, 'The "arguments" must be a JSON object.'),
        ({"name": "guess", "arguments": None}, 'The "arguments" must be a JSON object.'),
    ],
)
def test_calls_that_do_not_fit_are_told_and_cost(action, told):
    env = world(invalid_cost=0.25)
    said, reward, terminated, _, info = env.step(action)
    assert said.startswith(told)
    assert (reward, terminated, info["action_valid"]) == (-0.25, False, False)
    assert env.environment.count == 0


def test_arguments_may_be_written_as_text_and_are_read_as_annotated():
    env = world()
    assert env.step({"name": "guess", "arguments": '{"number": "7"}'})[0] == "right"


def test_a_refusal_is_told_and_other_exceptions_fail():
    env = world()
    for _ in range(3):
        env.step(call("guess", number=1))
    said, reward, *_, info = env.step(call("guess", number=1))
    assert (said, reward, info["action_valid"]) == ("Error: no guesses left", 0.0, True)
    with pytest.raises(OSError, match="broken"):
        world().step(call("guess", number=13))
    assert world(refusals=(OSError,)).step(call("guess", number=13))[0] == "Error: the game is broken"


def test_a_broken_environment_fails_the_run_with_its_place():
    policy = type("Says", (), {"act": lambda self, observation: call("guess", number=13)})()
    collector = RolloutCollector(ToolWorld(Guessing, ROWS), policy, 4, seed=0)
    with pytest.raises(RunFailed, match=r"step 0, environment 0 .* raised OSError: the game is broken"):
        collector.collect(1)


def test_reward_functions_stand_beside_or_in_place_of_get_reward():
    def counted(environments, completions, secret):
        assert secret == [7]
        return [float(environments[0].count) + (completions[0] == "done")]

    env = world(rewards=[counted])
    env.step(call("guess", number=7))
    _, reward, *_, info = env.step("done")
    assert reward == 3
    assert info["reward_components"] == {"counted": 2.0, "environment": 1.0}

    class Bare:
        def reset(self, **row):
            return [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]

        def look(self):
            """Look."""

    bare = ToolWorld(Bare, [{"prompt": "?"}], rewards=[lambda completions: [0.5]])
    assert bare.reset(seed=0)[0].startswith("?\nHello\nthere\nTools:\n- look(): Look.")
    assert bare.step(call("look"))[:2] == ("", 0.0)
    assert bare.step("done")[1] == 0.5
    with pytest.raises(ConfigError, match=r"Bare has no get_reward\(\), and rewards is empty"):
        ToolWorld(Bare, [{"prompt": "?"}])


def test_one_instance_is_reused_and_seeds_choose_its_rows():
    env = ToolWorld(Guessing, ROWS)
    instance = env.environment
    secrets = [(env.reset(seed=2) if n == 0 else env.reset()) and instance.secret for n in range(30)]
    assert env.environment is instance
    assert set(secrets) == {3, 7}
    env.set_regime({"secret": 3})
    assert {env.reset() and instance.secret for _ in range(20)} == {3}
    other = ToolWorld(Guessing, ROWS)
    assert [
        (other.reset(seed=2) if n == 0 else other.reset()) and other.environment.secret for n in range(30)
    ] == secrets


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["name", "arguments", "number"]), inner),
    max_leaves=6,
)


@given(ANY | st.fixed_dictionaries({"name": st.sampled_from(["guess", "scores", "x"]), "arguments": ANY}))
def test_no_answer_breaks_the_world(action):
    if (
        isinstance(action, dict)
        and isinstance(action.get("arguments"), dict)
        and action["arguments"].get("number") == 13
    ):
        return
    said, reward, _, truncated, _ = world(invalid_cost=0.1).step(action)
    assert isinstance(said, str)
    assert math.isnan(reward) or -0.1 <= reward <= 1
    assert not truncated


def test_it_is_built_from_a_document(tmp_path, monkeypatch):
    (tmp_path / "game.py").write_text(
        "class Game:\n    def reset(self, **row):\n        self.won = 0.0\n\n"
        "    def win(self) -> str:\n        self.won = 1.0\n        return 'won'\n\n"
        "    def get_reward(self):\n        return self.won\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = make(
        "perdure.worlds.adapters.trl_environment:ToolWorld", {"environment": "game:Game", "rows": [{"prompt": "Win."}]}
    )
    env.reset(seed=0)
    assert env.step(call("win"))[0] == "won"
    assert env.step("bye")[1] == 1
    with pytest.raises(ConfigError, match="turns is 0"):
        ToolWorld(Guessing, ROWS, turns=0)
