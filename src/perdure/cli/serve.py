"""Commands that serve worlds: serve concierge."""

import datetime
import gc
import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from perdure.core.errors import ConfigError, MissingExtra, told

LOOPBACK = ("127.0.0.1", "::1", "localhost")

group = typer.Typer(
    help="Serve a world to clients on this machine or elsewhere.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@group.command()
def concierge(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    token_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that holds the clients' bearer token.")
    ] = None,
    admin_token_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The one of the token that may see hidden state.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Listen beyond this machine without a token.")] = False,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions at most, of websockets and of REST each.")] = 100,
    idle_seconds: Annotated[float, typer.Option(help="After so long without a request a session ends.")] = 3600.0,
    stage: Annotated[int, typer.Option(min=1, max=3, help="The stage where a reset names none.")] = 1,
    protocol: Annotated[str, typer.Option(help="How actions are written as text: json or native.")] = "json",
    terse: Annotated[bool, typer.Option("--terse", help="Short texts, for small models.")] = False,
) -> None:
    """Serve the concierge world by OpenEnv's protocol and as REST sessions.

    Websocket sessions are at /ws, REST sessions at /reset, /step, /state and /close with an X-Session-Id.
    The log goes to standard error, a JSON object a line. Ctrl-C or SIGTERM ends it gracefully.

    \b
    Examples:
      perdure serve concierge
      perdure serve concierge --port 7860 --stage 2
      perdure serve concierge --host 0.0.0.0 --token-env CONCIERGE_TOKEN
    """
    if host not in LOOPBACK and token_env is None and not public:
        raise ConfigError(f"host is {host} and there is no token; give --token-env NAME, or --public to serve anybody")
    tokens = (_token(token_env, "--token-env"), _token(admin_token_env, "--admin-token-env"))
    app = _app()
    served = app.Served({"stage": stage}, protocol, terse, max_sessions, idle_seconds)
    server = app.server(app.concierge(served, app.guard.Tokens(*tokens), _log))
    listening = _listening(host, port)
    _log_as_json()
    _log({"event": "listening", "host": host, "port": listening.getsockname()[1]})
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ended)
    gc.freeze()  # What the libraries hold is never garbage; looking through it would stop every session for a while.
    server.run(sockets=[listening])
    _log({"event": "stopped"})


def _app() -> Any:
    try:
        import openenv.core.env_server  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra("openenv", "openenv") from error
    from perdure.serving import app

    return app


def _token(name: str | None, option: str) -> str | None:
    """The token that an environment variable holds; ConfigError where it holds none."""
    if name is None:
        return None
    token = os.environ.get(name, "")
    if not token:
        raise ConfigError(f"{option} {name}: the environment has no such variable, or an empty one; set it")
    return token


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except socket.gaierror as error:
        raise ConfigError(f"--host {host} is no address of this machine ({told(error)}); give another") from None
    except OSError as error:
        raise ConfigError(f"port {port} of {host} cannot be listened on ({told(error)}); give another --port") from None


def _ended(number: int, frame: Any) -> None:
    """Take the signal that uvicorn hands on once it has stopped for it."""


def _log(record: Mapping[str, Any]) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    typer.echo(json.dumps({"time": now, **record}, ensure_ascii=False), err=True)


def _log_as_json() -> None:
    """Have what libraries log become lines of the same log, without their traces."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            line = {"event": "log", "level": record.levelname.lower(), "message": record.getMessage().splitlines()[0]}
            _log(line if error is None else {**line, "error": told(error)})

    logging.getLogger().addHandler(Lines(logging.WARNING))
