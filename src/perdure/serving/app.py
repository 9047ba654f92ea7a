"""The server put together: OpenEnv's routes, the REST sessions, and the guard before both."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Mapping

import uvicorn
from fastapi import FastAPI
from fastapi.exception_handlers import http_exception_handler
from openenv.core.env_server import ConcurrencyConfig, HTTPEnvServer
from openenv.core.env_server.types import State
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.core.component import component
from perdure.core.errors import ConfigError, PerdureError
from perdure.serving import environment, facade, guard, sessions
from perdure.serving.environment import ConciergeEnvironment
from perdure.serving.facade import Facade
from perdure.serving.guard import Guard, Log, Tokens
from perdure.serving.messages import ConciergeAction, ConciergeObservation, ConciergeOpening
from perdure.serving.refusals import OF_ROUTES, refused
from perdure.serving.sessions import Sessions

GRACE_SECONDS = 5
"""How long requests under way may take to end once the server is asked to stop."""


@component
class Served:
    """What is served, and to how many."""

    params: Mapping[str, float] | None = None
    """A regime's numbers, for what a reset leaves out."""
    protocol: str = "json"
    terse: bool = False
    max_sessions: int = sessions.MOST_SESSIONS
    """Sessions of each kind, websockets and REST, at most."""
    idle_seconds: float = sessions.IDLE_SECONDS

    def __post_init__(self):
        if self.max_sessions < 1:
            raise ConfigError(f"max_sessions is {self.max_sessions}; give at least 1")
        if not self.idle_seconds > 0:
            raise ConfigError(f"idle_seconds is {self.idle_seconds}; give a positive number")


def concierge(served: Served, tokens: Tokens, log: Log) -> ASGIApp:
    """The concierge world's server as an ASGI application."""
    factory = functools.partial(ConciergeEnvironment, served.params, served.protocol, served.terse)
    factory().close()  # Whatever is wrong with the parameters is wrong before the first client comes.
    store = Sessions(factory, time.monotonic, served.max_sessions, served.idle_seconds)
    routes = _routes(factory, served, store)
    own = Facade(store, tokens.is_admin)
    return Guard(_divided(own, routes), tokens, time.monotonic, log)


def server(application: ASGIApp) -> uvicorn.Server:
    """A server that is ready to run, on sockets that it is given, in this process alone: sessions live in it."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="websockets-sansio",
            ws_max_size=guard.MOST_BODY,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )


def _routes(factory: functools.partial[ConciergeEnvironment], served: Served, store: Sessions) -> FastAPI:
    """OpenEnv's routes, which sweep the store of REST sessions beside their own."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_sweep(store))
        for start in app.router.on_startup:  # OpenEnv's own sweeping of its sessions.
            await start()
        yield
        for stop in app.router.on_shutdown:
            await stop()
        sweeping.cancel()

    app = FastAPI(title="perdure concierge", version="1.0.0", description=facade.LANDING, lifespan=lifespan)
    server = HTTPEnvServer(
        factory,
        ConciergeAction,
        ConciergeObservation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=served.max_sessions, session_timeout=served.idle_seconds
        ),
        env_name=environment.NAME,
        state_cls=State,
        reset_observation_cls=ConciergeOpening,
    )
    server.register_routes(app)
    for kind in (HTTPException, PerdureError, ValidationError, Exception):
        app.add_exception_handler(kind, _refused)
    return app


def _divided(own: Facade, routes: ASGIApp) -> ASGIApp:
    """Requests of the facade to the facade, all others to OpenEnv."""

    async def divided(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and own.takes(scope):
            await own(scope, receive, send)
        else:
            await routes(scope, receive, send)

    return divided


async def _refused(request: Request, error: Exception) -> Response:
    """An error from within OpenEnv's routes, told as the guard tells those of the facade; their own 422 stays."""
    if isinstance(error, HTTPException) and error.status_code not in OF_ROUTES:
        return await http_exception_handler(request, error)
    refusal = refused(error)
    body = refusal.envelope(request.state.request_id)
    return Response(body, refusal.status, refusal.headers(), media_type="application/json")


async def _sweep(store: Sessions) -> None:
    while True:
        await asyncio.sleep(sessions.SWEEP_SECONDS)
        store.sweep()
