"""Servers for the tests: one within the process that REST is sent to, and one on a port for what needs a network."""

import asyncio
import json
import socket
import threading
from types import SimpleNamespace

import pytest


@pytest.fixture
def rest():
    """Make a server in this process: arguments of Served and Tokens -> an object that sends requests to it.

    `ask(method, path, body, session, token, **headers)` gives an httpx response; `logs` are the server's records.
    """
    pytest.importorskip("openenv")
    return _rest


@pytest.fixture(scope="session")
def running():
    """A server on a free port for the whole session: its address, `url` over HTTP and `ws` for websockets."""
    pytest.importorskip("openenv")
    address, stop = _started()
    yield address
    stop()


@pytest.fixture
def started():
    """Start a server of one's own: arguments of Served -> the same as `running`."""
    pytest.importorskip("openenv")
    stops = []

    def start(**served):
        address, stop = _started(**served)
        stops.append(stop)
        return address

    yield start
    for stop in stops:
        stop()


def _rest(user=None, admin=None, **served):
    import httpx

    from perdure.serving import app

    logs = []
    application = app.concierge(app.Served(**served), app.guard.Tokens(user, admin), logs.append)

    async def ask(method, path, body=None, session=None, token=None, **headers):
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given |= {} if session is None else {"x-session-id": session}
        given |= {} if token is None else {"authorization": f"Bearer {token}"}
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, content=content, headers=given)

    def asked(*arguments, **options):
        return asyncio.run(ask(*arguments, **options))

    return SimpleNamespace(ask=asked, later=ask, logs=logs, application=application)


def _started(user=None, admin=None, **served):
    from perdure.serving import app

    logs = []
    server = app.server(app.concierge(app.Served(**served), app.guard.Tokens(user, admin), logs.append))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()

    def stop():
        server.should_exit = True
        thread.join()

    port = listening.getsockname()[1]
    return SimpleNamespace(url=f"http://127.0.0.1:{port}", ws=f"ws://127.0.0.1:{port}", logs=logs), stop
