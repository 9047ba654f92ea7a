"""The proof that a task is worth posing: the oracle solves it, and who is blind to its drifts does not."""

from perdure.worlds.concierge import scoring, scripts
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.errand import Errand, Task
from perdure.worlds.concierge.records import Action, Episode, Observation

FULL_MARKS = 1 - 1e-9
MOST_UTTERANCE = 280
"""Characters of an utterance at most."""


def solution(catalogue: Catalogue, task: Task) -> tuple[Action, ...] | None:
    """What the oracle does, or None where it fails, a drift stays hidden, or blindness goes unpunished."""
    errand = Errand(catalogue, task)
    script, seen = scripts.Script(errand), errand.start()
    blind: tuple[Errand, scripts.Script] | None = None
    while not seen.done:
        if blind is None and errand.exposed:
            # Until a drift shows itself, both do the same: what follows is all that need be played twice.
            other = errand.branch()
            blind, last = (other, script.blinded(other)), seen
        seen = errand.step(script.act(seen))
    episode = errand.record()
    if not episode.success or set(episode.exposed) != set(task.drifts) or len(task.goal.utterance) > MOST_UTTERANCE:
        return None
    if blind is not None and _finished(*blind, last).success:
        return None
    solved = episode._replace(oracle_turns=len(episode.turns))
    if scoring.scored(catalogue, solved).reward < FULL_MARKS:
        return None
    return tuple(turn.action for turn in episode.turns if turn.action is not None)


def played(catalogue: Catalogue, task: Task, adapts: bool = True) -> Episode:
    """The record of a task played by the oracle, or by the drift-blind script."""
    errand = Errand(catalogue, task)
    return _finished(errand, scripts.Script(errand, adapts), errand.start())


def _finished(errand: Errand, script: scripts.Script, seen: Observation) -> Episode:
    while not seen.done:
        seen = errand.step(script.act(seen))
    return errand.record()
