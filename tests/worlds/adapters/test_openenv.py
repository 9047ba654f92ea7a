import sys
from types import SimpleNamespace

import pytest

from perdure.core.capabilities import describe_run
from perdure.core.errors import ConfigError, MissingExtra, PerdureError, RunFailed
from perdure.harness.collector import RolloutCollector
from perdure.worlds.adapters.openenv import OpenEnvWorld


class Model:
    """An observation as typed clients give it."""

    def __init__(self, **fields):
        self.fields = fields

    def model_dump(self):
        return self.fields


class Client:
    """A session in this process: counts to `length`, and refuses what has no number."""

    def __init__(self, length=3, cut=False, observe=dict):
        self.length, self.cut, self.observe = length, cut, observe
        self.resets, self.steps, self.closed = [], [], False

    def reset(self, **kwargs):
        self.resets.append(kwargs)
        self.count = 0
        return SimpleNamespace(observation=self.observe(told="begin"), reward=None, done=False)

    def step(self, action):
        if not isinstance(action.get("number"), int):
            raise RuntimeError("Server error: number is required (code: VALIDATION_ERROR)")
        if action["number"] < 0:
            raise RuntimeError("Server error: it broke (code: EXECUTION_ERROR)")
        self.steps.append(action)
        self.count += 1
        done = self.count >= self.length
        metadata = {"truncated": True} if self.cut and done else {}
        observation = self.observe(told=f"said {action['number']}", metadata=metadata)
        return SimpleNamespace(observation=observation, reward=None if self.count == 1 else 0.5, done=done)

    def state(self):
        return Model(step_count=self.count)

    def close(self):
        self.closed = True


def world(client=None, **kwargs):
    made = OpenEnvWorld(client=client or Client(), observation_field="told", **kwargs)
    made.reset(seed=0)
    return made


@pytest.mark.parametrize("observe", [dict, Model])
def test_an_episode_to_its_end(observe):
    client = Client(observe=observe)
    env = OpenEnvWorld(client=client, observation_field="told")
    assert env.reset(seed=0) == ("begin", {})
    assert env.step({"number": 4}) == ("said 4", 0.0, False, False, {"action_valid": True})
    assert env.step('I say {"number": 5}.')[:4] == ("said 5", 0.5, False, False)
    assert env.step({"number": 6})[:4] == ("said 6", 0.5, True, False)
    assert client.steps == [{"number": 4}, {"number": 5}, {"number": 6}]
    with pytest.raises(PerdureError, match="call reset"):
        env.step({"number": 7})
    assert env.state() == {"step_count": 3}
    assert describe_run(env) == {"openenv": "Client"}
    env.close()
    assert client.closed


@pytest.mark.parametrize("observe", [dict, Model])
def test_done_is_a_truncation_where_the_metadata_says_so(observe):
    env = world(Client(length=1, cut=True, observe=observe))
    assert env.step({"number": 1})[2:4] == (False, True)


def test_metadata_of_the_result_counts_too():
    class Marked(Client):
        def step(self, action):
            return SimpleNamespace(observation="cut", reward=1, done=True, metadata={"truncated": True})

    env = OpenEnvWorld(client=Marked())
    env.reset(seed=0)
    assert env.step({"number": 1})[:4] == ("cut", 1.0, False, True)


def test_a_limit_of_turns_truncates():
    env = world(Client(length=9), turns=2)
    assert [env.step({"number": 1})[2:4] for _ in range(2)] == [(False, False), (False, True)]
    env = world(Client(length=9), turns=2)
    assert [env.step("no")[2:4] for _ in range(2)] == [(False, False), (False, True)]


@pytest.mark.parametrize("action", ["no", "{", {"number": "4"}, {"word": 1}, None, 3, {"number": float("nan")}])
def test_what_the_server_would_refuse_costs_and_changes_nothing(action):
    client = Client()
    env = world(client, invalid_cost=0.3)
    assert env.step(action) == ("begin", -0.3, False, False, {"action_valid": False})
    assert client.steps == []
    assert env.step({"number": 4})[0] == "said 4"


def test_a_failing_server_fails_the_run_with_its_place():
    policy = type("Says", (), {"act": lambda self, observation: {"number": -1}})()
    collector = RolloutCollector(OpenEnvWorld(client=Client()), policy, 4, seed=0)
    with pytest.raises(RunFailed, match=r"step 0, environment 0 .* raised RuntimeError: Server error: it broke"):
        collector.collect(1)


def test_text_goes_into_the_field_that_is_named():
    class Echo(Client):
        def step(self, action):
            return SimpleNamespace(observation={"all": action}, reward=1, done=False)

    env = OpenEnvWorld(client=Echo(), action_field="message")
    env.reset(seed=0)
    assert env.step('say {"x": 1}')[0] == '{"all": {"message": "say {\\"x\\": 1}"}}'
    assert env.step({"message": "hi", "loud": True})[0] == '{"all": {"message": "hi", "loud": true}}'


def test_resets_hand_out_seeds_of_the_lane_and_the_task():
    one, other = Client(), Client()
    first, second = OpenEnvWorld(client=one), OpenEnvWorld(client=other)
    for env in (first, second):
        env.reset(seed=5)
        env.reset()
        env.reset(options={"task": {"level": 2}})
        env.reset(options={"task": {"seed": 1}})
    assert one.resets == other.resets
    assert len({kwargs["seed"] for kwargs in one.resets}) == 4
    assert one.resets[2]["level"] == 2
    assert one.resets[3]["seed"] == 1
    with pytest.raises(ConfigError, match="the task is 3"):
        first.reset(options={"task": 3})


def test_a_field_that_is_not_there_is_named():
    env = OpenEnvWorld(client=Client(), observation_field="text")
    with pytest.raises(RunFailed, match="has no 'text', but told"):
        env.reset(seed=0)


def test_asynchronous_clients_are_made_synchronous():
    class Later:
        async def reset(self, **kwargs):
            raise AssertionError("never awaited")

        def sync(self):
            return Client()

    class Never:
        async def reset(self, **kwargs):
            raise AssertionError("never awaited")

    assert OpenEnvWorld(client=Later()).reset(seed=0)[0] == '{"told": "begin"}'
    with pytest.raises(ConfigError, match=r"Never is asynchronous and has no sync\(\)"):
        OpenEnvWorld(client=Never())


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv.core", None)
    with pytest.raises(MissingExtra, match=r"openenv is not installed.*perdure\[openenv\]"):
        OpenEnvWorld(base_url="http://localhost:8000")


def test_a_server_is_reached_through_the_generic_client(monkeypatch):
    asked = []

    class GenericEnvClient:
        def __init__(self, base_url):
            asked.append(base_url)

        def sync(self):
            return Client()

    monkeypatch.setitem(sys.modules, "openenv", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "openenv.core", SimpleNamespace(GenericEnvClient=GenericEnvClient))
    env = OpenEnvWorld(base_url="http://localhost:8000")
    assert env.reset(seed=0)[0] == '{"told": "begin"}'
    assert asked == ["http://localhost:8000"]
    assert describe_run(env) == {"openenv": "http://localhost:8000"}


def test_a_client_by_name(tmp_path, monkeypatch):
    (tmp_path / "session.py").write_text(
        "from types import SimpleNamespace\n\n"
        "def connect():\n"
        "    return SimpleNamespace(reset=lambda **_: SimpleNamespace(observation='hello', reward=None, done=False))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert OpenEnvWorld(client="session:connect").reset(seed=0)[0] == "hello"


@pytest.mark.parametrize("kwargs", [{}, {"base_url": "http://x", "client": Client()}])
def test_one_way_to_the_server_is_given(kwargs):
    with pytest.raises(ConfigError, match="base_url or client, and not both"):
        OpenEnvWorld(**kwargs)
    with pytest.raises(ConfigError, match="turns is 0"):
        OpenEnvWorld(client=Client(), turns=0)
