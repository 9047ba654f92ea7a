"""REST sessions: POST /reset, /step and /close and GET /state with an X-Session-Id, beside OpenEnv's routes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from perdure.core import jsontext
from perdure.serving import sessions
from perdure.serving.messages import ConciergeAction, Language, ResetOptions, Share
from perdure.serving.refusals import NoEpisode, Refusal, told
from perdure.serving.sessions import Session, Sessions

HEADER = "x-session-id"
KEY = "idempotency-key"
LANDING = """perdure: the concierge world

WS   /ws                  episodes by OpenEnv's protocol; POST /reset and /step keep nothing from call to call
POST /reset, /step, /close, GET /state with X-Session-Id: episodes by REST
GET  /health, /healthz, /metadata, /schema, /docs, /list_environments, /concierge/splits
"""


class Config(BaseModel):
    """What a reset's `config` may hold."""

    model_config = ConfigDict(extra="forbid", strict=True)

    curriculum_stage: Literal[1, 2, 3] | None = None
    language_weights: dict[Language, Share] | None = None
    audio_boundary_enabled: bool = False


class Answer(JSONResponse):
    """JSON in ASCII, which carries whatever a message within an action held."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class Facade:
    """The routes of the facade as an ASGI application; `is_admin` tells whose requests may see everything."""

    def __init__(self, store: Sessions, is_admin: Callable[[Scope], bool]):
        self._store, self._is_admin = store, is_admin
        self._routes: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("POST", "/reset"): self._reset,
            ("POST", "/step"): self._step,
            ("GET", "/state"): self._state,
            ("POST", "/close"): self._close,
            ("GET", "/healthz"): self._healthz,
            ("GET", "/"): self._landing,
        }

    def takes(self, scope: Scope) -> bool:
        """Whether a request is the facade's: a route that OpenEnv does not have, or one with a session's id."""
        route = (scope["method"], scope["path"])
        if route not in self._routes:
            return False
        own = route[1] in ("/close", "/healthz", "/")
        return own or any(name == HEADER.encode() for name, _ in scope["headers"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that it takes."""
        response = await self._routes[scope["method"], scope["path"]](Request(scope, receive))
        await response(scope, receive, send)

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _landing(self, request: Request) -> Response:
        return PlainTextResponse(LANDING)

    async def _reset(self, request: Request) -> Response:
        name = sessions.named(request.headers.get(HEADER))
        asked = _asked(await _object(request))
        session = self._store.opened(name)
        _refuse_while_resetting(session)
        session.resetting = True
        try:
            async with self._held(name, session):
                # A thread, since drawing a task may take a while; the lock keeps everybody else out.
                opening = await asyncio.to_thread(session.environment.begin, asked)
                session.forget()
        finally:
            session.resetting = False
            if session.environment.state.episode_id is None:  # The first reset failed: nothing is worth a place.
                self._store.close(name)
        return Answer(
            {
                "observation": opening.model_dump(exclude={"reward", "done"}),
                "episode_id": session.environment.state.episode_id,
                "max_turns": opening.metadata["max_turns"],
            }
        )

    async def _step(self, request: Request) -> Response:
        name, session = self._found(request)
        body = await _object(request)
        if set(body) != {"action"} or not isinstance(body["action"], dict):
            raise Refusal("invalid_action", 'the body must be {"action": {...}}')
        try:
            action = ConciergeAction.model_validate(body["action"])
        except ValidationError as error:
            raise Refusal("invalid_action", told(error, "action")) from None
        key = request.headers.get(KEY)
        if key is not None and not sessions.ID.fullmatch(key):
            raise Refusal("invalid_action", "Idempotency-Key must be 1 to 64 of A-Z, a-z, 0-9, _ and -")
        async with self._held(name, session):
            return Answer(_stepped(session, action, key))

    async def _state(self, request: Request) -> Response:
        name, session = self._found(request)
        async with self._held(name, session):
            shown = self._shown(request, session)
            return Answer({"state": shown, "turn": session.environment.state.step_count})

    async def _close(self, request: Request) -> Response:
        name, session = self._found(request)
        async with self._held(name, session):
            shown = self._shown(request, session)
            self._store.close(name)
        return Answer({"closed": True, "final_state": shown})

    def _found(self, request: Request) -> tuple[str, Session]:
        name = sessions.named(request.headers.get(HEADER))
        session = self._store.found(name)
        _refuse_while_resetting(session)
        return name, session

    @contextlib.asynccontextmanager
    async def _held(self, name: str, session: Session) -> AsyncIterator[None]:
        """The session to oneself; Refusal where it was closed while one waited."""
        async with session.lock:
            if self._store.found(name) is not session:
                raise Refusal("session_not_found", "the session was closed; POST /reset opens it")
            yield

    def _shown(self, request: Request, session: Session) -> dict[str, Any]:
        environment = session.environment
        return environment.full_state() if self._is_admin(request.scope) else environment.state.model_dump()


def _refuse_while_resetting(session: Session) -> None:
    if session.resetting:
        raise Refusal("reset_in_progress", "this session is being reset; wait for the answer")


def _stepped(session: Session, action: ConciergeAction, key: str | None) -> dict[str, Any]:
    """What a step gives; a step that is sent again with its key is answered again and not taken."""
    asked = json.dumps(action.model_dump()).encode()
    given = None if key is None else session.reply(key, asked)
    if given is None:
        try:
            seen = session.environment.step(action)
        except NoEpisode:
            raise Refusal("invalid_action", "the episode is over; POST /reset begins the next") from None
        given = {
            "observation": seen.model_dump(exclude={"reward", "done", "metadata"}),
            "reward": seen.reward if seen.done else None,
            "done": seen.done,
            "info": seen.metadata,
        }
        if key is not None:
            session.remember(key, asked, given)
    return given


def _asked(body: dict[str, Any]) -> ResetOptions:
    """A reset's options from its body, in which `config` may set the stage and the languages."""
    try:
        chosen = Config.model_validate(body.pop("config", {}))
        if chosen.audio_boundary_enabled:
            raise Refusal("model_not_ready", "this server has no speech models; leave audio_boundary_enabled out")
        own = {"stage": chosen.curriculum_stage, "language_weights": chosen.language_weights}
        own = {name: value for name, value in own.items() if value is not None}
        if twice := own.keys() & body.keys():
            raise Refusal("bad_json", f"{min(twice)} is given twice, in the body and in its config; give it once")
        return ResetOptions.model_validate({**own, **body})
    except ValidationError as error:
        raise Refusal("bad_json", told(error, "body")) from None


async def _object(request: Request) -> dict[str, Any]:
    """The body as an object, an empty one where there is none."""
    body = await request.body()
    value = jsontext.loads(body.decode()) if body else {}
    if not isinstance(value, dict):
        raise Refusal("bad_json", "the body must be a JSON object")
    return value
