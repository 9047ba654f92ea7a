"""What stands before every request: tokens, the size of bodies, strict JSON, logs, and errors without traces."""

import hashlib
import hmac
import json
import traceback
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.core import errors, jsontext
from perdure.core.errors import ConfigError
from perdure.serving import frames
from perdure.serving.refusals import Refusal, refused

MOST_BODY = 2**20
"""Bytes of a body, and of a websocket's message, at most."""
LEAST_TOKEN = 32
"""Characters of a token at least."""
OPEN = ("/", "/health", "/healthz", "/metadata", "/schema", "/openapi.json", "/docs", "/redoc")
"""Paths that need no token."""
JSON_RPC = "/mcp"
"""The path whose errors are JSON-RPC's."""
Log = Callable[[Mapping[str, Any]], None]


class Tokens:
    """Who may use the server (`user`) and who may see everything (`admin`); None lets everybody, or nobody."""

    def __init__(self, user: str | None = None, admin: str | None = None):
        for name, token in (("token", user), ("admin token", admin)):
            if token is not None and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
                raise ConfigError(f"the {name} must be at least {LEAST_TOKEN} ASCII characters; make one at random")
        if user is not None and user == admin:
            raise ConfigError("the token and the admin token are the same; make another one at random")
        self._user, self._admin = user, admin

    def may_enter(self, scope: Scope) -> bool:
        """Whether a request has a token that lets it in, or needs none."""
        return self._user is None or self._has(scope, self._user) or self.is_admin(scope)

    def is_admin(self, scope: Scope) -> bool:
        """Whether a request may see everything."""
        return self._admin is not None and self._has(scope, self._admin)

    def _has(self, scope: Scope, token: str) -> bool:
        given = _header(scope, b"authorization").partition(b" ")
        return given[0].lower() == b"bearer" and hmac.compare_digest(given[2].strip(), token.encode())


class Guard:
    """An ASGI application before another one; `log` gets a record for each request and connection."""

    def __init__(self, app: ASGIApp, tokens: Tokens, clock: Callable[[], float], log: Log, most: int = MOST_BODY):
        self._app, self._tokens, self._clock, self._log, self._most = app, tokens, clock, log, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        scope.setdefault("state", {})["request_id"] = answer.request_id
        began = self._clock()
        more: dict[str, Any] = {}
        fault: dict[str, Any] = {}
        try:
            if scope["type"] == "http":
                await self._http(scope, receive, answer)
            else:
                more = await self._websocket(scope, receive, answer)
        except Exception as error:  # The last place where an error can become an answer, and a line of the log.
            refusal = refused(error)
            fault = _fault(error) if refusal.status >= 500 else {}
            await answer.refuse(refusal, scope)
        session = _header(scope, b"x-session-id")
        self._log(
            {
                "event": scope["type"],
                "method": scope.get("method", "GET"),
                "path": scope["path"],
                "status": answer.status,
                "milliseconds": round(1000 * (self._clock() - began), 3),
                "request_id": answer.request_id,
                **({"session": hashlib.sha256(session).hexdigest()[:12]} if session else {}),
                **more,
                **fault,
            }
        )

    async def _http(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        if scope["path"] not in OPEN and not self._tokens.may_enter(scope):
            raise _unauthorized()
        body = await _body(scope, receive, self._most)
        if body:
            _check(body)
        await self._app(scope, _replayed(body, receive), answer)

    async def _websocket(self, scope: Scope, receive: Receive, answer: "_Answer") -> dict[str, Any]:
        if not self._tokens.may_enter(scope):
            raise _unauthorized()
        tell = frames.json_rpc if scope["path"] == JSON_RPC else frames.openenv
        read = frames.Frames(receive, answer, tell)
        await self._app(scope, read.receive, answer)
        return {"frames": read.count}


class _Answer:
    """What goes out: never to be stored, under a name of its own, and an error instead where nothing went yet."""

    def __init__(self, send: Send):
        self._send = send
        self.request_id = uuid.uuid4().hex
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            kept = [(name, value) for name, value in message.get("headers", []) if name.lower() != b"cache-control"]
            own = [(b"cache-control", b"no-store"), (b"x-request-id", self.request_id.encode())]
            message = {**message, "headers": [*kept, *own]}
        elif message["type"] == "websocket.accept":
            self.status = 101
        await self._send(message)

    async def refuse(self, refusal: Refusal, scope: Scope) -> None:
        """Answer with an error, if no answer has begun."""
        if self.status is not None:
            return
        if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
            self.status = 403
            await self._send({"type": "websocket.close", "code": 1008})
            return
        status, body = refusal.status, refusal.envelope(self.request_id)
        if scope["path"] == JSON_RPC and scope["type"] == "http":
            # JSON-RPC tells its errors within an answer that is HTTP's 200, as OpenEnv does.
            code = -32700 if refusal.code == "bad_json" else -32000
            error = {"code": code, "message": refusal.message, "data": {"code": refusal.code}}
            status, body = 200, json.dumps({"jsonrpc": "2.0", "error": error, "id": None}).encode()
        prefix = "websocket." if scope["type"] == "websocket" else ""
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers()}
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self({"type": f"{prefix}http.response.start", "status": status, "headers": lines})
        await self({"type": f"{prefix}http.response.body", "body": body})


def _unauthorized() -> Refusal:
    return Refusal("unauthorized", "send the token as Authorization: Bearer ...")


async def _body(scope: Scope, receive: Receive, most: int) -> bytes:
    """The whole body; Refusal payload_too_large as soon as it is known to be longer than `most` bytes."""
    refusal = Refusal("payload_too_large", f"a body has at most {most} bytes")
    stated = _header(scope, b"content-length")
    if stated.isdigit() and int(stated) > most:
        raise refusal
    parts, length, more = [], 0, True
    while more:
        message = await receive()
        part = message.get("body", b"")
        parts.append(part)
        length += len(part)
        more = message.get("more_body", False)
        if length > most:
            raise refusal
    return b"".join(parts)


def _check(body: bytes) -> None:
    """Refuse what is no strict JSON."""
    try:
        jsontext.exchanged(body.decode())
    except ValueError as error:
        raise Refusal("bad_json", f"the body is no JSON: {str(error)[:200]}") from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body that was read, and from then on what comes."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for each, value in scope["headers"] if each == name), b"")


def _fault(error: Exception) -> dict[str, Any]:
    """Where and how the server failed, for its own log."""
    frames = traceback.extract_tb(error.__traceback__)
    return {"error": errors.told(error), "at": f"{frames[-1].filename}:{frames[-1].lineno}"}
