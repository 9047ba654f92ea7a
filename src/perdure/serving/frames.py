"""Messages of a websocket before OpenEnv reads them: what is no JSON object is answered, and the episode goes on."""

import json
from collections.abc import Callable
from typing import Any

from starlette.types import Message, Receive, Send

from perdure.core import jsontext

Tell = Callable[[str], dict[str, Any]]
"""What is wrong with a message -> the answer."""


def openenv(problem: str) -> dict[str, Any]:
    """An error as OpenEnv's protocol has it."""
    return {"type": "error", "data": {"message": problem, "code": "INVALID_JSON"}}


def json_rpc(problem: str) -> dict[str, Any]:
    """An error as JSON-RPC has it."""
    return {"jsonrpc": "2.0", "error": {"code": -32700, "message": problem}, "id": None}


class Frames:
    """The messages of one connection: JSON objects are passed on, others answered by `tell`, and all are counted."""

    def __init__(self, receive: Receive, send: Send, tell: Tell):
        self._receive, self._send, self._tell = receive, send, tell
        self.count = 0

    async def receive(self) -> Message:
        """The next message that OpenEnv can read, or the end of the connection."""
        while True:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                return message
            self.count += 1
            problem = _problem(message.get("text"))
            if not problem:
                return message
            await self._send({"type": "websocket.send", "text": json.dumps(self._tell(problem))})


def _problem(text: str | None) -> str:
    """Why a message cannot be read; "" where it can."""
    if text is None:
        return "Invalid JSON: a message is text, not bytes"
    try:
        value = jsontext.exchanged(text)
    except ValueError as error:
        return f"Invalid JSON: {str(error)[:200]}"
    return "" if isinstance(value, dict) else "Invalid JSON: a message is an object"
