"""REST sessions: their bodies, and each code of an error with its status, as docs/serving.md lists them."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("openenv")
from perdure.serving import refusals
from perdure.serving.environment import ConciergeEnvironment
from perdure.serving.facade import Facade
from perdure.serving.refusals import Refusal
from perdure.serving.sessions import Sessions
from perdure.worlds.concierge.world import Concierge

TOKEN, ADMIN = "t" * 32, "a" * 40
SUBMIT = {"action": {"action_type": "submit", "confidence": 0.25}}
PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def code(response, status):
    """The code of a refusal, which came in its envelope, with its status and its name, and nothing of a trace."""
    assert response.status_code == status == refusals.STATUSES[response.json()["error"]["code"]]
    error = response.json()["error"]
    assert error.keys() == {"code", "message", "request_id"}
    assert error["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    assert ("retry-after" in response.headers) == (status == 429)
    return error["code"]


def test_an_errand_by_rest_is_the_errand_of_this_process(rest):
    server, world = rest(), Concierge({"stage": 2, "language_hi": 1.0})
    text, _ = world.reset(seed=4)
    config = {"curriculum_stage": 2, "language_weights": {"hi": 1.0}, "audio_boundary_enabled": False}
    opened = server.ask("POST", "/reset", {"seed": 4, "config": config, "episode_id": "mine"}, "one").json()
    assert opened.keys() == {"observation", "episode_id", "max_turns"}
    assert (opened["observation"]["text"], opened["episode_id"], opened["max_turns"]) == (text, "mine", 12)
    assert opened["observation"]["tools"] == world.tools()
    over, turn = False, 0
    while not over:
        said = world.expert()
        text, reward, over, _, info = world.step(said)
        turn += 1
        found = server.ask("POST", "/step", {"action": {"text": said}}, "one").json()
        left = 12 - turn
        assert found["observation"] == {"text": text, "turn": turn, "budget_remaining": left}
        assert (found["reward"], found["done"]) == (reward if over else None, over)
    assert found["info"]["success"] is info["success"] is True
    assert found["info"]["reward_components"].keys() == info["reward_components"].keys()
    public = {"episode_id": "mine", "step_count": turn}
    assert server.ask("GET", "/state", session="one").json() == {"state": public, "turn": turn}
    assert server.ask("POST", "/close", session="one").json() == {"closed": True, "final_state": public}
    assert code(server.ask("POST", "/close", session="one"), 404) == "session_not_found"


def test_a_reset_without_a_seed_says_which_it_drew(rest):
    server = rest()
    first = server.ask("POST", "/reset", session="one").json()["observation"]
    again = server.ask("POST", "/reset", {"seed": first["metadata"]["seed"]}, "two").json()["observation"]
    assert first == again


def test_a_task_of_a_split_has_its_own_stage_for_one_episode(rest):
    server = rest()
    opened = server.ask("POST", "/reset", {"split": "validation", "index": 149}, "one").json()
    assert (opened["max_turns"], opened["observation"]["metadata"]["task"]) == (16, "validation-149")
    assert server.ask("POST", "/reset", {"seed": 0}, "one").json()["max_turns"] == 8


@pytest.mark.parametrize("name", [None, "", "a b", "ü", "a" * 65, "../x"])
def test_ids_are_needed_and_have_a_shape(rest, name):
    server = rest()
    given = None if name is None else name.encode("latin-1")
    assert code(server.ask("POST", "/close", {}, given), 400) == "missing_session_id"
    if name is not None:
        assert code(server.ask("POST", "/reset", {}, given), 400) == "missing_session_id"


def test_without_an_id_resets_and_steps_are_openenvs_and_keep_nothing(rest):
    server = rest()
    opened = server.ask("POST", "/reset", {"seed": 1, "stage": 3}, content_type="application/json").json()
    assert (opened["reward"], opened["done"], opened["observation"]["budget_remaining"]) == (None, False, 16)
    assert server.ask("GET", "/state").json() == {"episode_id": None, "step_count": 0}
    stepped = server.ask("POST", "/step", SUBMIT, content_type="application/json")
    assert code(stepped, 400) == "missing_session_id"
    assert "X-Session-Id" in stepped.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1]",
        b'{"seed": NaN}',
        b'{"seed": 1, "seed": 2}',
        b"\xff",
        b"[" * 100_000,
        {"seed": -1},
        {"seed": True},
        {"seed": "1"},
        {"sede": 1},
        {"stage": 4},
        {"split": "train"},
        {"split": "exam", "index": 0},
        {"split": "train", "index": 0, "stage": 2},
        {"language_weights": {"en": 0.5}},
        {"language_weights": {"en": 0.5, "fr": 0.5}},
        {"config": {"curriculum_stage": 4}},
        {"config": None},
        {"config": {"scheduler": "x"}},
        {"config": {"curriculum_stage": 1}, "stage": 2},
    ],
)
def test_resets_that_cannot_be_read_take_no_session(rest, body):
    server = rest(max_sessions=1)
    assert code(server.ask("POST", "/reset", body, "one"), 400) == "bad_json"
    assert server.ask("POST", "/reset", {}, "two").status_code == 200


def test_a_task_that_a_split_does_not_have_takes_no_session(rest):
    server = rest(max_sessions=1)
    assert code(server.ask("POST", "/reset", {"split": "probe", "index": 600}, "one"), 400) == "bad_json"
    assert server.ask("POST", "/reset", {}, "two").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"action": 3},
        {"action": "submit"},
        {"action": {}},
        {"action": {"action_type": "submit", "confidence": 2}},
        {"action": {"action_type": "submit", "confidence": "0.5"}},
        {"action": {"action_type": "fly"}},
        {"action": {"text": "hi", "action_type": "abort"}},
        {"action": {"text": "hi", "message": "hi"}},
        {"action": {"text": "x" * 65_537}},
        {"action": {"action_type": "abort", "wings": 2}},
        {"action": {"text": "hi"}, "more": 1},
    ],
)
def test_actions_without_the_schema_cost_nothing(rest, body):
    server = rest()
    server.ask("POST", "/reset", {"seed": 0}, "one")
    assert code(server.ask("POST", "/step", body, "one"), 400) == "invalid_action"
    assert server.ask("GET", "/state", session="one").json()["turn"] == 0


def test_what_has_the_schema_and_is_no_action_costs_the_turn(rest):
    server = rest()
    server.ask("POST", "/reset", {"seed": 0}, "one")
    for turn, action in enumerate(
        [{"text": "hm"}, {"action_type": "speak"}, {"action_type": "abort", "kind": "tnc"}], 1
    ):
        found = server.ask("POST", "/step", {"action": action}, "one").json()
        assert (found["observation"]["turn"], found["info"]["action_valid"]) == (turn, False)
    assert (found["done"], found["info"]["ended"]) == (True, "ANTI_HACK")
    assert code(server.ask("POST", "/step", SUBMIT, "one"), 400) == "invalid_action"


def test_a_step_that_is_sent_again_is_taken_once(rest):
    server = rest()
    server.ask("POST", "/reset", {"seed": 0}, "one")
    say = {"action": {"action_type": "speak", "message": "Hello."}}
    first = server.ask("POST", "/step", say, "one", idempotency_key="k1")
    again = server.ask("POST", "/step", say, "one", idempotency_key="k1")
    assert first.json() == again.json()
    assert server.ask("GET", "/state", session="one").json()["turn"] == 1
    assert code(server.ask("POST", "/step", SUBMIT, "one", idempotency_key="k1"), 400) == "invalid_action"
    assert code(server.ask("POST", "/step", say, "one", idempotency_key="k 1"), 400) == "invalid_action"
    server.ask("POST", "/step", SUBMIT, "one", idempotency_key="k2")
    assert server.ask("POST", "/step", SUBMIT, "one", idempotency_key="k2").json()["done"]
    server.ask("POST", "/reset", {"seed": 0}, "one")
    assert not server.ask("POST", "/step", say, "one", idempotency_key="k2").json()["done"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/step"), ("GET", "/state"), ("POST", "/close")])
def test_unknown_and_expired_sessions_are_told_apart(rest, method, path):
    body = SUBMIT if path == "/step" else None
    assert code(rest().ask(method, path, body, "one"), 404) == "session_not_found"
    server = rest(idle_seconds=1e-9)
    server.ask("POST", "/reset", {}, "one")
    assert code(server.ask(method, path, body, "one"), 404) == "session_expired"
    assert server.ask("POST", "/reset", {}, "one").status_code == 200


def test_a_flood_of_sessions_meets_the_cap_and_takes_nobodys_away(rest):
    server = rest(max_sessions=3)
    answers = [server.ask("POST", "/reset", {"seed": 0}, f"s{number}") for number in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 3
    assert code(answers[3], 429) == "max_sessions"
    assert answers[3].headers["retry-after"] == "30"
    assert all(server.ask("GET", "/state", session=f"s{number}").status_code == 200 for number in range(3))
    server.ask("POST", "/close", session="s1")
    assert server.ask("POST", "/reset", {}, "s5").status_code == 200


class Slow(ConciergeEnvironment):
    """Waits in `begin` until it is let go on."""

    entered, go_on = threading.Event(), threading.Event()

    def begin(self, asked):
        self.entered.set()
        assert self.go_on.wait(60)
        return super().begin(asked)


def test_nothing_else_is_done_while_a_session_is_reset(rest, monkeypatch):
    from perdure.serving import app

    monkeypatch.setattr(app, "ConciergeEnvironment", Slow)
    server = rest()

    async def everything():
        first = asyncio.create_task(server.later("POST", "/reset", {"seed": 0}, "one"))
        await asyncio.to_thread(Slow.entered.wait, 60)
        calls = [("POST", "/reset", {}), ("POST", "/step", SUBMIT), ("GET", "/state", None), ("POST", "/close", None)]
        refused = [await server.later(*call, "one") for call in calls]
        health = await server.later("GET", "/healthz")
        Slow.go_on.set()
        return refused, health, await first

    refused, health, first = asyncio.run(everything())
    assert [code(answer, 409) for answer in refused] == ["reset_in_progress"] * 4
    assert health.text == "ok"
    assert first.status_code == 200


def test_steps_at_once_are_taken_one_after_the_other(rest):
    server = rest()
    server.ask("POST", "/reset", {"seed": 0}, "one")
    say = {"action": {"action_type": "speak", "message": "Hello."}}

    async def together():
        return await asyncio.gather(*(server.later("POST", "/step", say, "one") for _ in range(7)))

    turns = [answer.json()["observation"]["turn"] for answer in asyncio.run(together())]
    assert sorted(turns) == [1, 2, 3, 4, 5, 6, 7]


def test_a_step_that_waited_is_not_taken_by_the_session_that_came_after():
    store = Sessions(ConciergeEnvironment, lambda: 0.0)
    facade = Facade(store, lambda scope: False)
    body = json.dumps(SUBMIT).encode()
    scope = {"type": "http", "method": "POST", "path": "/step", "headers": [(b"x-session-id", b"one")]}

    async def receive():
        return {"type": "http.request", "body": body}

    async def everything():
        old = store.opened("one")
        old.environment.reset(seed=0)
        async with old.lock:
            waiting = asyncio.create_task(facade(scope, receive, None))
            for _ in range(50):  # Turns of the loop, more than the step needs to come to the lock.
                await asyncio.sleep(0)
            store.close("one")
            store.opened("one").environment.reset(seed=1)
        with pytest.raises(Refusal) as caught:
            await waiting
        assert caught.value.code == "session_not_found"
        assert store.found("one").environment.state.step_count == 0

    asyncio.run(everything())


@pytest.mark.parametrize(("error", "expected"), [(OSError("disk"), "io_error"), (KeyError("x"), "internal_error")])
@pytest.mark.parametrize("session", ["one", None])
def test_what_the_server_does_wrong_is_told_without_a_trace_and_logged(rest, monkeypatch, error, expected, session):
    def fails(self, asked):
        raise error

    monkeypatch.setattr(ConciergeEnvironment, "begin", fails)
    server = rest()
    answer = server.ask("POST", "/reset", {}, session, content_type="application/json")
    assert code(answer, 500) == expected
    assert str(error) not in answer.text
    assert server.logs[-1]["error"] == f"{type(error).__name__}: {error}"
    assert server.logs[-1]["at"].startswith(__file__)
    assert server.logs[-1]["request_id"] == answer.headers["x-request-id"]


def test_speech_is_not_to_be_had(rest):
    answer = rest().ask("POST", "/reset", {"config": {"audio_boundary_enabled": True}}, "one")
    assert code(answer, 503) == "model_not_ready"


def test_hidden_state_is_the_administrators(rest):
    server = rest(TOKEN, ADMIN)
    server.ask("POST", "/reset", {"seed": 4, "stage": 2}, "one", TOKEN)
    public = server.ask("GET", "/state", session="one", token=TOKEN).json()["state"]
    assert public.keys() == {"episode_id", "step_count"}
    everything = server.ask("GET", "/state", session="one", token=ADMIN).json()["state"]
    world = Concierge({"stage": 2})
    world.reset(seed=4)
    assert everything["task"]["drifts"] == list(world.task.drifts)
    assert everything["task"]["goal"]["utterance"] == world.task.goal.utterance
    assert everything["world"]["said"] == []
    assert server.ask("POST", "/close", session="one", token=TOKEN).json()["final_state"] == public


def test_the_page_lists_every_code_with_its_status():
    for name, status in refusals.STATUSES.items():
        assert f"| {status} | `{name}` |" in PAGE


@pytest.mark.parametrize(
    ("method", "path", "status", "name"),
    [
        ("GET", "/reset", 405, "method_not_allowed"),
        ("PUT", "/step", 405, "method_not_allowed"),
        ("GET", "/nope", 404, "not_found"),
        ("POST", "/nope/task", 404, "not_found"),
        ("POST", "/concierge/task", 400, "bad_json"),
    ],
)
def test_paths_and_methods_that_there_are_not(rest, method, path, status, name):
    body = {"split": "probe", "index": 600} if method == "POST" else None
    assert code(rest().ask(method, path, body, content_type="application/json"), status) == name


@pytest.mark.parametrize("path", ["/reset", "/step"])
@pytest.mark.parametrize("session", ["one", None])
def test_half_a_surrogate_pair_is_no_json(rest, path, session):
    server = rest()
    server.ask("POST", "/reset", {"seed": 4}, "one")
    body = rb'{"episode_id": "\ud800", "action": {"text": "\ud800"}}'
    headers = {"content-type": "application/json"}
    assert code(server.ask("POST", path, body, session, **headers), 400) == "bad_json"


def test_what_a_message_within_a_text_holds_can_be_shown(rest):
    server = rest(admin=ADMIN)
    server.ask("POST", "/reset", {"seed": 4}, "one")
    said = {"action": {"text": r'{"say": "\ud800"}'}}
    assert server.ask("POST", "/step", said, "one").status_code == 200
    assert server.ask("GET", "/state", session="one", token=ADMIN).json()["turn"] == 1
    assert server.ask("POST", "/close", session="one", token=ADMIN).json()["closed"]
