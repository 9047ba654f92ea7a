"""The server on a port: OpenEnv's own validator and graders, websockets and what goes wrong on them, many at once."""

import asyncio
import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("openenv")
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from perdure.serving.environment import ConciergeEnvironment
from perdure.serving.guard import MOST_BODY
from perdure.worlds.adapters.openenv import OpenEnvWorld
from perdure.worlds.concierge.world import Concierge

TOKEN = "t" * 32
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve_load.py"


class Talk:
    """A connection to /ws: messages as objects, and raw ones."""

    def __init__(self, socket):
        self.socket = socket

    def ask(self, kind, data=None):
        return self.raw(json.dumps({"type": kind} | ({} if data is None else {"data": data})))

    def raw(self, message):
        self.socket.send(message)
        return json.loads(self.socket.recv(60))

    def code(self, message):
        """The code of the error that a message gets."""
        answer = self.raw(message) if isinstance(message, (str, bytes)) else self.ask(*message)
        assert answer["type"] == "error"
        assert "Traceback" not in answer["data"]["message"]
        return answer["data"]["code"]


@contextlib.contextmanager
def talk(server, path="/ws", **headers):
    with connect(server.ws + path, additional_headers=headers, max_size=2**24) as socket:
        yield Talk(socket)


@pytest.mark.parametrize("user", [None, TOKEN])
def test_the_official_validator_passes(started, user):
    from openenv.cli._validation import validate_running_environment

    report = validate_running_environment(started(user=user).url, timeout_s=60)
    assert report["summary"]["failed_criteria"] == []
    assert (report["passed"], report["mode"], len(report["criteria"])) == (True, "simulation", 6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # OpenEnv's collector on websockets 17.
def test_the_official_graders_pass_on_a_recorded_episode(running):
    from openenv.validation.graders.runtime import basic
    from openenv.validation.runtime.collector import collect_runtime_evidence
    from openenv.validation.runtime.contracts import RuntimePlan, RuntimeReset

    world, actions, over = Concierge({"stage": 2}), [], False
    world.reset(seed=5)
    while not over:
        actions.append({"text": world.expert()})
        over = world.step(actions[-1]["text"])[2]
    reset = RuntimeReset(episode_id="mine", seed=5, options={"stage": 2})
    plan = RuntimePlan(plan_schema_version="1", reset=reset, actions=actions)
    evidence = collect_runtime_evidence(running.url, plan, episode_timeout_s=60)
    assert evidence.failure_reason is None
    assert len(evidence.exchanges) == 2 + 2 * len(actions)
    manifest = SimpleNamespace(reward=SimpleNamespace(range=(0.0, 1.0)))
    subject = SimpleNamespace(manifest=manifest, runtime_evidence=evidence)
    for grader in (basic.RewardWellFormedGrader(), basic.ObservationSchemaGrader(), basic.StateContractGrader()):
        assert grader.run(subject).evidence == ["observed runtime contract holds"]


def test_the_adapter_of_openenv_servers_plays_what_this_process_plays(running):
    served = OpenEnvWorld(base_url=running.url, action_field="text", observation_field="text")
    world, over = Concierge({"stage": 2}), False
    text, _ = world.reset(seed=6)
    assert served.reset(options={"task": {"seed": 6, "stage": 2}})[0] == text
    assert served.step({"fly": 1}) == (text, -0.1, False, False, {"action_valid": False})
    while not over:
        said = world.expert()
        text, reward, over, _, _ = world.step(said)
        assert served.step(said) == (text, reward, over, False, {"action_valid": True})
    assert served.state()["step_count"] == len(world.get_state()["said"])
    served.close()


def test_the_example_of_the_page_runs(running, capsys):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    code = page.split("```python\n", 1)[1].split("```", 1)[0]
    exec(code.replace("http://127.0.0.1:8000", running.url), {})
    assert capsys.readouterr().out.endswith("0.0 False\n")


def test_many_sessions_at_once_play_what_this_process_plays(running, load_module):
    load = load_module(BENCHMARK)
    played = load.transcripts(sessions=8, tasks=3)
    measured = asyncio.run(load.drive(running.url, played, lambda episodes: episodes < 6))
    assert len(measured.resets) == 48
    assert len(measured.steps) == 2 * sum(len(each.turns) for own in played for each in own)


def test_the_load_test_finds_a_difference(running, load_module):
    load = load_module(BENCHMARK)
    [[episode]] = load.transcripts(sessions=1, tasks=1)
    wrong = episode._replace(turns=[episode.turns[0]._replace(reward=0.5)])
    with pytest.raises(AssertionError, match="'seed': 0"):
        asyncio.run(load.drive(running.url, [[wrong]], lambda episodes: episodes < 1))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "INVALID_JSON"),
        ("{", "INVALID_JSON"),
        (b'{"type": "state"}', "INVALID_JSON"),
        ("[1]", "INVALID_JSON"),
        ("null", "INVALID_JSON"),
        ('{"type": "step", "data": {"confidence": NaN}}', "INVALID_JSON"),
        ('{"type": "state", "type": "reset"}', "INVALID_JSON"),
        (r'{"type": "\ud800"}', "INVALID_JSON"),
        (r'{"type": "reset", "data": {"episode_id": "\udfff"}}', "INVALID_JSON"),
        (r'{"type": "step", "data": {"text": "\uD83D"}}', "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ("{}", "UNKNOWN_TYPE"),
        ('{"type": {"a": 1}}', "UNKNOWN_TYPE"),
        (("fly",), "UNKNOWN_TYPE"),
        (("step",), "VALIDATION_ERROR"),
        (("step", 3), "VALIDATION_ERROR"),
        (("step", {}), "VALIDATION_ERROR"),
        (("step", {"action": {"text": "hm"}}), "VALIDATION_ERROR"),
        (("step", {"text": "hm", "message": "hm"}), "VALIDATION_ERROR"),
        (("step", {"action_type": "submit", "confidence": 2}), "VALIDATION_ERROR"),
        (("reset", {"seed": -1}), "VALIDATION_ERROR"),
        (("reset", {"sede": 1}), "VALIDATION_ERROR"),
        (("reset", {"split": "train"}), "VALIDATION_ERROR"),
        (("reset", {"language_weights": {"en": 0.5}}), "VALIDATION_ERROR"),
        (("reset", {"split": "probe", "index": 600}), "EXECUTION_ERROR"),
    ],
)
def test_malformed_messages_get_their_codes_and_change_nothing(running, message, code):
    world = Concierge()
    world.reset(seed=1)
    with talk(running) as client:
        assert client.code(("step", {"text": "hm"})) == "EXECUTION_ERROR"
        client.ask("reset", {"seed": 1, "episode_id": "mine"})
        assert client.code(message) == code
        assert client.ask("state")["data"] == {"episode_id": "mine", "step_count": 0}
        said = world.expert()
        assert client.ask("step", {"text": said})["data"]["observation"]["text"] == world.step(said)[0]


@pytest.mark.parametrize("message", ["{", b"{}", "[1]", "[" * 100_000, '{"id": 1, "id": 2}', r'{"id": "\ud800"}'])
def test_json_rpc_messages_that_are_none(running, message):
    with talk(running, "/mcp") as client:
        assert client.raw(message)["error"]["code"] == -32700
        assert client.raw('{"jsonrpc": "2.0", "id": 7, "method": "fly"}')["id"] == 7


def test_the_end_is_the_end(running):
    with talk(running) as client:
        client.ask("reset", {"seed": 1})
        ended = client.ask("step", {"action_type": "abort"})["data"]
        assert (ended["done"], ended["metadata"]["ended"]) == (True, "ABORT")
        assert client.code(("step", {"action_type": "abort"})) == "EXECUTION_ERROR"
        assert client.ask("reset", {"seed": 1})["data"]["reward"] is None


def test_a_message_beyond_the_limit_closes_the_connection(running):
    with talk(running) as client:
        client.ask("reset", {"seed": 1})
        with pytest.raises(ConnectionClosed) as caught:
            client.raw("x" * (MOST_BODY + 1))
        assert caught.value.rcvd.code == 1009


def test_a_flood_of_connections_meets_the_cap_and_takes_nobodys_away(started):
    server = started(max_sessions=3)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(talk(server)) for _ in range(3)]
        for client in clients:
            assert client.ask("reset", {"seed": 1})["type"] == "observation"
        for _ in range(4):
            with talk(server) as late:
                told = json.loads(late.socket.recv(60))
                assert (told["type"], told["data"]["code"]) == ("error", "CAPACITY_REACHED")
                with pytest.raises(ConnectionClosed):
                    late.socket.recv(60)
        assert [client.ask("state")["data"]["step_count"] for client in clients] == [0, 0, 0]
        clients[0].socket.close()
        # The place is free once the server has noticed; until then a newcomer is refused.
        while True:
            with talk(server) as late:
                late.socket.send('{"type": "reset"}')
                if json.loads(late.socket.recv(60))["type"] == "observation":
                    break


@pytest.mark.parametrize("given", ["", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}"])
@pytest.mark.parametrize("path", ["/ws", "/mcp"])
def test_a_wrong_token_opens_no_connection(started, given, path):
    server = started(user=TOKEN)
    with pytest.raises(InvalidStatus) as caught, talk(server, path, **({"Authorization": given} if given else {})):
        pass
    assert caught.value.response.status_code == 401
    assert json.loads(caught.value.response.body)["error"]["code"] == "unauthorized"
    with talk(server, Authorization=f"Bearer {TOKEN}") as client:
        assert client.ask("reset", {"seed": 1})["type"] == "observation"


def test_a_session_that_is_nobodys_is_told_so_and_closed(running):
    with talk(running, "/ws?session_id=x") as client:
        assert json.loads(client.socket.recv(60))["data"]["code"] == "SESSION_ERROR"


def test_a_websocket_is_logged_with_its_messages_counted(started):
    server = started()
    with talk(server) as client:
        client.ask("reset", {"seed": 1})
        client.raw("{")
    while not server.logs:
        pass
    record = server.logs[0]
    assert (record["event"], record["path"], record["status"], record["frames"]) == ("websocket", "/ws", 101, 2)


def test_what_fails_in_a_websocket_is_told_without_a_trace(running, monkeypatch):
    def fails(self, action):
        raise KeyError("x")

    with talk(running) as client:
        client.ask("reset", {"seed": 1})
        monkeypatch.setattr(ConciergeEnvironment, "step", fails)
        assert client.ask("step", {"text": "hm"})["data"] == {"message": "'x'", "code": "EXECUTION_ERROR"}
