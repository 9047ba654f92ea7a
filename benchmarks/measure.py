"""One measurement: a timed section with our own and everybody else's CPU, and one JSON line a process.

Every section records `cpu` (seconds this process and its finished children computed) and `others` (cores that
other processes kept busy meanwhile), so that a disturbed section can be told from a slow one.
"""

import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

QUIET = 0.15
"""Cores of other processes above which a section counts as disturbed."""


class Section(NamedTuple):
    """What one timed section cost, in seconds and cores."""

    wall: float
    cpu: float
    others: float


def timed(work: Callable[[], Any]) -> tuple[Section, Any]:
    """Run `work` once; returns its cost and its result."""
    busy, own, start = _busy_seconds(), _own_seconds(), time.perf_counter()
    result = work()
    wall = time.perf_counter() - start
    cpu = _own_seconds() - own
    others = max(0.0, _busy_seconds() - busy - cpu) / max(wall, 1e-9)
    return Section(wall, cpu, others), result


def wait_for_quiet(limit: float) -> float:
    """Sleep until other processes leave the cores alone or `limit` seconds have passed; returns their cores."""
    start = time.perf_counter()
    while True:
        section, _ = timed(lambda: time.sleep(0.5))
        if section.others < QUIET or time.perf_counter() - start > limit:
            return section.others


TRIES = int(os.environ.get("BENCHMARK_TRIES", "3"))
"""How often a disturbed section is measured at most."""


def repeated(work: Callable[[int], Any], times: int, patience: float, tries: int = TRIES) -> tuple[list[Section], Any]:
    """Time `work(index)` `times` times, each again (up to `tries`) while others disturb it; keeps the quietest try."""
    sections, result = [], None
    for index in range(times):
        best = None
        for _ in range(tries):
            wait_for_quiet(patience)
            section, result = timed(lambda index=index: work(index))
            if best is None or section.others < best.others:
                best = section
            if best.others < QUIET:
                break
        sections.append(best)
    return sections, result


def compiled(
    program: Callable[..., Any], arguments: Callable[[int], tuple], times: int, patience: float
) -> tuple[dict, Any]:
    """Trace, compile and run a JAX function; the same executable serves every run, on new arguments each."""
    import jax

    wait_for_quiet(patience)
    tracing, lowered = timed(lambda: jax.jit(program).lower(*arguments(0)))
    compiling, executable = timed(lowered.compile)
    prepared = [jax.block_until_ready(arguments(index)) for index in range(times)]
    sections, result = repeated(lambda index: jax.block_until_ready(executable(*prepared[index])), times, patience)
    return {"build": tracing.wall + compiling.wall, "trace": tracing.wall, **runs(sections)}, result


def runs(sections: list[Section]) -> dict[str, Any]:
    """The fields that describe repeated sections: each one's cost, and the medians."""
    return {
        "wall": [round(section.wall, 4) for section in sections],
        "cpu": [round(section.cpu, 3) for section in sections],
        "others": [round(section.others, 2) for section in sections],
        "median_wall": statistics.median(section.wall for section in sections),
        "median_cpu": statistics.median(section.cpu for section in sections),
    }


def peak_megabytes() -> float:
    """The most memory this process has held at once, in MB (2**20 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def record(values: Mapping[str, Any], results: Path) -> None:
    """Append one measurement to the results file and print it."""
    line = json.dumps({**values, "time": round(time.time(), 1)})
    with results.open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def _busy_seconds() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _wait, interrupts, soft_interrupts, _stolen = fields
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
