"""perdure serve concierge: what it refuses, and a whole life of a server from its first line to its last."""

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from perdure.cli import serve
from perdure.core.errors import MissingExtra
from perdure.worlds.concierge.world import Concierge

TOKEN = "t" * 32


def asked(url, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def test_from_the_first_line_to_the_last(monkeypatch):
    pytest.importorskip("openenv")
    monkeypatch.setenv("SERVE_TEST_TOKEN", TOKEN)
    monkeypatch.setenv("PYTHONHASHSEED", "12345")
    command = [sys.executable, "-m", "perdure", "serve", "concierge", "--port", "0", "--stage", "2"]
    with subprocess.Popen([*command, "--token-env", "SERVE_TEST_TOKEN"], stderr=subprocess.PIPE, text=True) as server:
        try:
            listening = json.loads(server.stderr.readline())
            url = f"http://127.0.0.1:{listening['port']}"
            assert asked(f"{url}/healthz") == "ok"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                asked(f"{url}/reset", {}, x_session_id="one")
            opened = asked(f"{url}/reset", {"seed": 1}, x_session_id="one", authorization=f"Bearer {TOKEN}")
            text, _ = Concierge({"stage": 2}).reset(seed=1)
            assert json.loads(opened)["observation"]["text"] == text
        finally:
            server.send_signal(signal.SIGTERM)
            rest = [json.loads(line) for line in server.communicate()[1].splitlines()]
    assert server.returncode == 0
    assert [line.get("status") for line in rest] == [200, 401, 200, None]
    assert rest[-1]["event"] == "stopped"
    assert all("time" in line for line in rest)


def test_beyond_this_machine_a_token_is_needed(refusal):
    assert "--token-env NAME, or --public" in refusal("serve", "concierge", "--host", "0.0.0.0")


@pytest.mark.parametrize("option", ["--token-env", "--admin-token-env"])
def test_tokens_that_are_not_there_or_too_short(refusal, monkeypatch, option):
    pytest.importorskip("openenv")
    assert refusal("serve", "concierge", option, "SERVE_TEST").startswith(
        f"{option} SERVE_TEST: the environment has no"
    )
    monkeypatch.setenv("SERVE_TEST", "short")
    assert "at least 32 ASCII characters" in refusal("serve", "concierge", option, "SERVE_TEST")


def test_a_port_that_is_taken(refusal):
    pytest.importorskip("openenv")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal("serve", "concierge", "--port", port)
    assert said.startswith(f"port {port} of 127.0.0.1 cannot be listened on")


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--protocol", "xml"), "protocol is 'xml'"), (("--idle-seconds", "0"), "idle_seconds is 0.0")],
)
def test_what_cannot_be_served(refusal, options, said):
    pytest.importorskip("openenv")
    assert said in refusal("serve", "concierge", *options)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv.core.env_server", None)
    with pytest.raises(MissingExtra, match=r"openenv is not installed.*perdure\[openenv\]"):
        serve.concierge()


def test_the_command_has_help_with_an_example(perdure_command):
    code, out, _ = perdure_command("serve", "concierge", "--help")
    assert code == 0
    assert "perdure serve concierge --port" in out.split("Examples", 1)[1]
