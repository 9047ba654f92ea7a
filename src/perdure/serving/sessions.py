"""The sessions of the REST facade: who has one, for how long, and how many there may be.

Sessions are found by their whole id and by nothing shorter, so ids that are alike share nothing. Nobody's session is
taken away to make room: who comes when all are taken is told to come back.
"""

import asyncio
import collections
import re
from collections.abc import Callable
from typing import Any

from perdure.serving.refusals import Refusal

MOST_SESSIONS = 100
IDLE_SECONDS = 3600.0
SWEEP_SECONDS = 60.0
MOST_REMEMBERED = 1000
"""Expired ids that are still told apart from unknown ones."""
MOST_REPLIES = 32
"""Answers that a session keeps for steps that are sent again."""
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Session:
    """One client's environment. `lock` lets one request at a time at it."""

    def __init__(self, environment: Any):
        self.environment = environment
        self.lock = asyncio.Lock()
        self.resetting = False
        self.used = 0.0
        self._replies: collections.OrderedDict[str, tuple[bytes, dict[str, Any]]] = collections.OrderedDict()

    def reply(self, key: str, asked: bytes) -> dict[str, Any] | None:
        """The answer that a step with this key was given, or None; Refusal where the key was another step's."""
        if key not in self._replies:
            return None
        before, given = self._replies[key]
        if before != asked:
            raise Refusal("invalid_action", f"Idempotency-Key {key} was sent with another action; take a new key")
        return given

    def remember(self, key: str, asked: bytes, given: dict[str, Any]) -> None:
        """Keep an answer for the case that its step is sent again."""
        self._replies[key] = (asked, given)
        while len(self._replies) > MOST_REPLIES:
            self._replies.popitem(last=False)

    def forget(self) -> None:
        """Drop the answers of an episode that has ended."""
        self._replies.clear()


class Sessions:
    """At most `most` sessions, each dropped once it has been idle for `idle` seconds of `clock`."""

    def __init__(
        self,
        environment: Callable[[], Any],
        clock: Callable[[], float],
        most: int = MOST_SESSIONS,
        idle: float = IDLE_SECONDS,
    ):
        self._environment, self._clock = environment, clock
        self.most, self.idle = most, idle
        self._open: dict[str, Session] = {}
        self._expired: collections.OrderedDict[str, None] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, name: str) -> Session:
        """The session of an id, a new one where it has none; Refusal max_sessions where all are taken."""
        self.sweep()
        if name not in self._open:
            if len(self._open) >= self.most:
                raise Refusal("max_sessions", f"all {self.most} sessions are taken; close one, or try again later")
            self._open[name] = Session(self._environment())
            self._expired.pop(name, None)
        return self._used(self._open[name])

    def found(self, name: str) -> Session:
        """The session of an id; Refusal session_expired or session_not_found where it has none."""
        self.sweep()
        if name in self._open:
            return self._used(self._open[name])
        if name in self._expired:
            raise Refusal("session_expired", f"the session was idle for {self.idle:g} s; POST /reset opens it anew")
        raise Refusal("session_not_found", "there is no such session; POST /reset opens it")

    def close(self, name: str) -> Session | None:
        """Take a session out, if there is one."""
        session = self._open.pop(name, None)
        if session is not None:
            session.environment.close()
        return session

    def sweep(self) -> None:
        """Drop the sessions that were idle for too long. One at work is not idle."""
        last = self._clock() - self.idle
        for name in [name for name, each in self._open.items() if each.used <= last and not each.lock.locked()]:
            self.close(name)
            self._expired[name] = None
        while len(self._expired) > MOST_REMEMBERED:
            self._expired.popitem(last=False)

    def _used(self, session: Session) -> Session:
        session.used = self._clock()
        return session


def named(header: str | None) -> str:
    """A session's id from its header; Refusal for a missing or misshapen one."""
    if header is None or not ID.fullmatch(header):
        raise Refusal("missing_session_id", "send X-Session-Id: 1 to 64 of A-Z, a-z, 0-9, _ and -")
    return header
