"""Named random streams: every random number of a run comes from (seed, stream, index)."""

import hashlib

STREAMS = ("world", "policy", "replay", "exploration", "extensions", "evaluation", "init", "regime", "bootstrap")


def stream(seed: int, name: str, index: int = 0) -> int:
    """A 32-bit seed for stream `name` of run seed `seed`; the same in every process and library.

    `index` tells copies apart (the lane of an environment copy, say). Distinct streams of one
    seed, and the same stream of distinct seeds, are independent for all practical purposes.
    """
    if name not in STREAMS:
        raise ValueError(f"stream {name!r} is not one of {', '.join(STREAMS)}")
    digest = hashlib.sha256(f"perdure/{seed}/{name}/{index}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
