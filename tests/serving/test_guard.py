"""What stands before every request: tokens, sizes, headers, and a log that tells nothing of what was said."""

import json

import pytest

pytest.importorskip("openenv")
from perdure.core.errors import ConfigError
from perdure.serving import tasks
from perdure.serving.guard import MOST_BODY, OPEN, Tokens

TOKEN, ADMIN = "t" * 32, "a" * 40
SAY = {"action": {"action_type": "speak", "message": "a secret of the agent"}}


@pytest.mark.parametrize("token", [None, "", "x" * 32, TOKEN[:-1], TOKEN + "t", TOKEN.upper()])
@pytest.mark.parametrize("session", [None, "one"])
def test_wrong_tokens_open_nothing(rest, token, session):
    server = rest(TOKEN)
    asked = [("POST", "/reset"), ("POST", "/step"), ("GET", "/state"), ("POST", "/close"), ("GET", "/concierge/splits")]
    for method, path in [*asked, ("GET", "/nowhere")]:
        answer = server.ask(method, path, session=session, token=token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
    assert server.ask("POST", "/reset", {}, "one", TOKEN).status_code == 200


@pytest.mark.parametrize("path", OPEN)
def test_what_is_open_stays_open(rest, path):
    assert rest(TOKEN).ask("GET", path).status_code == 200


def test_either_token_opens_and_bearer_is_written_as_one_likes(rest):
    server = rest(TOKEN, ADMIN)
    assert server.ask("GET", "/concierge/splits", token=ADMIN).status_code == 200
    for given, status in ((f"bearer {TOKEN}", 200), (f"BEARER  {TOKEN} ", 200), (f"Basic {TOKEN}", 401), (TOKEN, 401)):
        assert server.ask("GET", "/concierge/splits", authorization=given).status_code == status


def test_an_administrators_token_alone_shuts_nobody_out(rest):
    server = rest(None, ADMIN)
    server.ask("POST", "/reset", {}, "one")
    assert "task" not in server.ask("GET", "/state", session="one").json()["state"]
    assert "task" in server.ask("GET", "/state", session="one", token=ADMIN).json()["state"]


def test_json_rpc_tells_its_errors_in_its_own_way(rest):
    answer = rest(TOKEN).ask("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"})
    assert answer.status_code == 200
    assert answer.json()["error"]["data"] == {"code": "unauthorized"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert "does not support MCP" in rest().ask("POST", "/mcp", call).json()["error"]["message"]


@pytest.mark.parametrize(
    ("user", "admin"),
    [("short", None), ("", None), (None, "a" * 31), (TOKEN, TOKEN), ("ü" * 32, None), ("\n" * 32, None)],
)
def test_tokens_that_are_refused(user, admin):
    with pytest.raises(ConfigError, match="at random"):
        Tokens(user, admin)


@pytest.mark.parametrize("path", ["/step", "/mcp", "/concierge/tasks", "/nowhere"])
@pytest.mark.parametrize("stated", [True, False])
def test_bodies_have_a_limit(rest, path, stated):
    async def parts():
        for _ in range(MOST_BODY // 2**16):
            yield b" " * 2**16
        yield b" "

    answer = rest().ask("POST", path, b" " * (MOST_BODY + 1) if stated else parts(), "one")
    if path == "/mcp":
        assert answer.json()["error"]["data"] == {"code": "payload_too_large"}
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


def test_a_body_of_the_limit_passes(rest):
    server = rest()
    server.ask("POST", "/reset", {}, "one")
    body = json.dumps({"action": {"text": "hm"}}).encode().ljust(MOST_BODY)
    assert server.ask("POST", "/step", body, "one").status_code == 200


def test_a_stated_length_is_believed_before_anything_is_read(rest):
    import asyncio

    server, sent = rest(), []

    async def never():
        raise AssertionError("the body was read")

    async def send(message):
        sent.append(message)

    headers = [(b"content-length", str(MOST_BODY + 1).encode()), (b"x-session-id", b"one")]
    scope = {"type": "http", "method": "POST", "path": "/step", "headers": headers}
    asyncio.run(server.application(scope, never, send))
    assert sent[0]["status"] == 413


def test_every_answer_has_its_name_and_is_not_stored(rest):
    server = rest(TOKEN)
    for method, path in (("GET", "/health"), ("GET", "/"), ("POST", "/reset"), ("GET", "/docs"), ("GET", "/nowhere")):
        answer = server.ask(method, path)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-request-id"] == server.logs[-1]["request_id"]


def test_the_log_tells_what_happened_and_not_what_was_said(rest):
    server = rest(TOKEN)
    server.ask("POST", "/reset", {"seed": 0}, "my-session", TOKEN)
    server.ask("POST", "/step", SAY, "my-session", TOKEN)
    server.ask("POST", "/step", b'{"action": {"text": "a secret', "my-session", TOKEN)
    server.ask("POST", f"/nowhere?token={TOKEN}")
    assert [record["status"] for record in server.logs] == [200, 200, 400, 401]
    assert server.logs[0].keys() == {"event", "method", "path", "status", "milliseconds", "request_id", "session"}
    assert server.logs[0]["session"] == server.logs[1]["session"]
    text = json.dumps(server.logs)
    assert not any(hidden in text for hidden in ("secret", "my-session", TOKEN))


def test_what_openenvs_routes_find_wrong_keeps_their_status(rest):
    server = rest()
    answer = server.ask("POST", "/step", {"action": {"fly": 1}}, content_type="application/json")
    assert (answer.status_code, answer.json().keys()) == (422, {"detail"})
    answer = server.ask("POST", "/reset", {"sede": 1}, content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_json")


def test_the_task_api(rest):
    server = rest()

    def asked(path, body=None):
        return server.ask("GET" if body is None else "POST", path, body, content_type="application/json")

    assert asked("/list_environments").json() == ["concierge"]
    assert [each["name"] for each in asked("/concierge/splits").json()] == ["train", "validation", "probe"]
    assert asked("/concierge/num_tasks", {"split": "probe"}).json() == {"num_tasks": 600}
    assert len(asked("/concierge/tasks", {"split": "train"}).json()["tasks"]) == 1000
    found = asked("/concierge/task", {"split": "validation", "index": 60}).json()["task"]
    assert found == tasks.task("validation", 60)._asdict()
    assert asked("/concierge/task_range", {"split": "probe", "start": 598}).json()["tasks"][-1]["index"] == 599
    assert asked("/concierge/task", {"split": "validation", "index": 150}).status_code == 400
    assert asked("/concierge/tasks", {"split": "exam"}).json()["error"]["code"] == "bad_json"
