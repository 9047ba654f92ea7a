"""Speed of the concierge world: steps and whole errands a second, by stage and profile, in process CPU time.

    OMP_NUM_THREADS=1 python concierge.py --times 7

*Steps* are turns of scripted oracles on records, with resets and the oracle's own thinking left out of the clock.
*Errands* are whole ones as text, with resets (each proves its task), the oracle's answers parsed, and the score.
Medians of repetitions on seeds that no other repetition has; one Markdown table.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from perdure.worlds.concierge import catalogue, settings, tasks
from perdure.worlds.concierge.errand import Errand
from perdure.worlds.concierge.world import PROFILES, Concierge

STAGES = (1, 2, 3)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--errands", type=int, default=150)
    arguments = parser.parse_args()
    print("| stage | profile | steps/CPU-s | range | errands/CPU-s | range |\n|---|---|---|---|---|---|")
    for stage in STAGES:
        rates = repeated(lambda first, s=stage: steps(s, first, arguments.errands), arguments)
        for profile in PROFILES:
            whole = repeated(lambda first, s=stage, p=profile: errands(s, p, first, arguments.errands), arguments)
            print(f"| {stage} | {profile} | {told(rates)} | {told(whole)} |", flush=True)


def repeated(measure: Callable[[int], float], arguments: argparse.Namespace) -> list[float]:
    """Rates of repetitions, after one to warm up."""
    return [measure(number * arguments.errands) for number in range(arguments.times + 1)][1:]


def steps(stage: int, first: int, count: int) -> float:
    """Turns a second of `Errand.step` alone; the oracle's actions stand in the tasks."""
    data = catalogue.default()
    chosen = settings.settings(data, {"stage": stage})
    posed = [tasks.generated(data, first + number, chosen) for number in range(count)]
    going = [Errand(data, task) for task in posed]
    start = time.process_time()
    for errand, task in zip(going, posed, strict=True):
        for action in task.oracle:
            errand.step(action)
    return sum(task.oracle_turns for task in posed) / (time.process_time() - start)


def errands(stage: int, profile: str, first: int, count: int) -> float:
    """Errands a second of the world as trainers use it."""
    world = Concierge({"stage": stage}, profile=profile)
    tasks.generated.cache_clear()
    start = time.process_time()
    world.reset(seed=first)
    for number in range(count):
        if number:
            world.reset()
        over = False
        while not over:
            over = world.step(world.expert())[2]
    return count / (time.process_time() - start)


def told(rates: list[float]) -> str:
    """The median of rates and their range as two cells."""
    return f"{statistics.median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f}"


if __name__ == "__main__":
    main()
