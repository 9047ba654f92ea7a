"""How many steps a second `perdure serve concierge` carries, and whether every one of them is right.

Each session is a websocket that plays episode after episode from its own tasks. Every observation, reward and end is
compared with the same episode played in this process beforehand; one difference ends the run. Latency is what a client
waits for an answer; the client shares the machine with the server.

    .venv/bin/python benchmarks/serve_load.py --sessions 64 --seconds 120
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from websockets.asyncio.client import connect

from perdure.worlds.concierge.records import MAX_TURNS
from perdure.worlds.concierge.world import Concierge

TASKS = 8
"""Episodes that a session plays in turn."""
CLUMSY = (
    "Let me see.",
    '{"say": "One moment, please."}',
    '{"probe": "airline"}',
    '{"tool": "airline.search", "args": {"from": "BLR", "to": "DEL", "date": "2026-05-01"}}',
    '{"tool": "airline.fly", "args": {}}',
    '{"report": "airline", "kind": "pricing"}',
    '{"submit": 0.1}',
)
"""What half of the sessions say: some of it is no action, some of it misconduct."""


class Turn(NamedTuple):
    """What was said, and what the world answered."""

    said: str
    told: str
    reward: float
    over: bool


class Transcript(NamedTuple):
    """An episode as it was played in this process."""

    reset: dict[str, int]
    opening: str
    turns: list[Turn]


class Measured(NamedTuple):
    """What the sessions waited for, in seconds."""

    steps: list[float]
    resets: list[float]


def transcript(world: Concierge, seed: int, stage: int, clumsy: bool) -> Transcript:
    """An episode of a lane's first task: the oracle's, or a clumsy one."""
    world.set_regime({"stage": stage})
    opening, _ = world.reset(seed=seed)
    turns, over, lines = [], False, iter(CLUMSY)
    while not over:
        said = next(lines) if clumsy else world.expert()
        told, reward, over, _, _ = world.step(said)
        turns.append(Turn(said, told, reward, over))
    return Transcript({"seed": seed, "stage": stage}, opening, turns)


def transcripts(sessions: int, tasks: int = TASKS) -> list[list[Transcript]]:
    """The episodes of each session, over all stages; every second session is clumsy."""
    world, stages = Concierge(), len(MAX_TURNS)
    return [
        [transcript(world, tasks * number + i, 1 + i % stages, clumsy=number % 2 == 1) for i in range(tasks)]
        for number in range(sessions)
    ]


async def drive(url: str, played: Sequence[Sequence[Transcript]], go_on: Callable[[int], bool]) -> Measured:
    """Play the episodes of every session at once, again and again while `go_on(episodes so far)` of the session."""
    measured = Measured([], [])
    await asyncio.gather(*(_session(url, own, go_on, measured) for own in played))
    return measured


async def _session(url: str, own: Sequence[Transcript], go_on: Callable[[int], bool], measured: Measured) -> None:
    async with connect(url.replace("http", "ws", 1) + "/ws", compression=None) as socket:

        async def asked(kind: str, data: Any, waited: list[float]) -> dict[str, Any]:
            began = time.perf_counter()
            await socket.send(json.dumps({"type": kind, "data": data}))
            answer = await socket.recv()
            waited.append(time.perf_counter() - began)
            return json.loads(answer)["data"]

        for number, episode in enumerate(itertools.cycle(own)):
            if not go_on(number):
                return
            opening = await asked("reset", episode.reset, measured.resets)
            _same(opening["observation"]["text"], episode.opening, episode)
            for turn in episode.turns:
                seen = await asked("step", {"text": turn.said}, measured.steps)
                found = (seen["observation"]["text"], seen["reward"], seen["done"])
                _same(found, (turn.told, turn.reward, turn.over), episode)


def _same(found: Any, expected: Any, episode: Transcript) -> None:
    if found != expected:
        raise AssertionError(f"{episode.reset}: the server gave {found!r}, this process {expected!r}")


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server of its own on a free port; its address."""
    command = [sys.executable, "-m", "perdure", "serve", "concierge", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            yield f"http://127.0.0.1:{json.loads(server.stderr.readline())['port']}"
        finally:
            server.terminate()
            server.communicate()


def at(values: Sequence[float], share: float) -> float:
    """The value that a share of the values does not exceed, in milliseconds."""
    return 1000 * sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def main() -> None:
    """Serve, drive, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--url", help="a server that runs already; one is started if unset")
    options = parser.parse_args()
    played = transcripts(options.sessions)
    gc.freeze()
    with contextlib.nullcontext(options.url) if options.url else serving() as url:
        began = time.perf_counter()
        measured = asyncio.run(drive(url, played, lambda _: time.perf_counter() - began < options.seconds))
        seconds = time.perf_counter() - began
    print(f"{options.sessions} sessions, {seconds:.1f} s, {len(measured.resets)} episodes, all as played here")
    print(f"{len(measured.steps) / seconds:.0f} steps/s, {len(measured.resets) / seconds:.0f} resets/s")
    for name, values in measured._asdict().items():
        told = ", ".join(f"p{100 * share:g} {at(values, share):.1f} ms" for share in (0.5, 0.9, 0.99, 1))
        print(f"{name}: {told}")


if __name__ == "__main__":
    main()
