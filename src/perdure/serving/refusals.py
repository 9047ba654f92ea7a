"""What the server refuses: codes with their statuses, and the envelope in which every error is told."""

import json

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from perdure.core.errors import PerdureError

STATUSES = {
    "missing_session_id": 400,
    "bad_json": 400,
    "invalid_action": 400,
    "unauthorized": 401,
    "not_found": 404,
    "session_not_found": 404,
    "session_expired": 404,
    "method_not_allowed": 405,
    "reset_in_progress": 409,
    "payload_too_large": 413,
    "max_sessions": 429,
    "internal_error": 500,
    "io_error": 500,
    "model_not_ready": 503,
}
"""Code of an error -> HTTP status."""
OF_ROUTES = {400: "bad_json", 404: "not_found", 405: "method_not_allowed"}
"""What OpenEnv's routes answer with a status alone -> its code."""
RETRY_AFTER = 30
"""Seconds after which a client that met max_sessions may ask again."""


class Refusal(PerdureError):
    """A request that is not carried out, with the code that clients can rely on."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return STATUSES[self.code]

    def headers(self) -> dict[str, str]:
        """The headers that go with it."""
        return {"retry-after": str(RETRY_AFTER)} if self.code == "max_sessions" else {}

    def envelope(self, request_id: str) -> bytes:
        """The error as the body of an answer."""
        told = {"code": self.code, "message": self.message, "request_id": request_id}
        return json.dumps({"error": told}, ensure_ascii=False).encode()


class NoEpisode(PerdureError):
    """A step or a look where no episode is under way."""


def refused(error: Exception) -> Refusal:
    """What a client is told of an error: all of it where the client can mend it, else only that the server failed."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, NoEpisode):
        remedy = "OpenEnv's stateless routes keep no episode: send X-Session-Id, or use /ws"
        return Refusal("missing_session_id", f"{error} ({remedy})")
    if isinstance(error, ValidationError):
        return Refusal("bad_json", told(error, "body"))
    if isinstance(error, HTTPException):
        return Refusal(OF_ROUTES[error.status_code], str(error.detail))
    if isinstance(error, PerdureError):
        return Refusal("bad_json", str(error))
    code = "io_error" if isinstance(error, OSError) else "internal_error"
    return Refusal(code, "the server failed; its log has the request_id")


def told(error: ValidationError, place: str) -> str:
    """The first problem of a body: where, and what must be."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join([place, *map(str, problem['loc'])])[:200]}: {problem['msg']}"
