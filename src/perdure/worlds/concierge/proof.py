"""The proof that a task is worth posing: the oracle solves it, and who is blind to its drifts does not."""

from perdure.worlds.concierge import scoring, scripts
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.errand import Errand, Task
from perdure.worlds.concierge.records import Action, Episode, Observation

FULL_MARKS = 1 - 1e-9
MOST_UTTERANCE = 280
"""Characters of an utterance at most."""


def solution(catalogue: Catalogue, task: Task) -> tuple[Action, ...] | str:
    """What the oracle does, or why the task is not worth posing."""
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
    if any(event.pattern_id not in episode.exposed for event in episode.drifts):
        return "a drift shows itself to nobody (give it a notice, or say in `shows` which code or tool reveals it)"
    if not episode.success:
        return f"the oracle fails ({_last(episode)})"
    if set(episode.exposed) != set(task.drifts):
        return "the oracle is done before all drifts came"
    if len(task.goal.utterance) > MOST_UTTERANCE:
        return f"the request is longer than {MOST_UTTERANCE} characters"
    if blind is not None and _finished(*blind, last).success:
        return "who is blind to the drifts succeeds too (they change nothing that decides)"
    solved = episode._replace(oracle_turns=len(episode.turns))
    if scoring.scored(catalogue, solved).reward < FULL_MARKS:
        return "the oracle succeeds without full marks"
    return tuple(turn.action for turn in episode.turns if turn.action is not None)


def _last(episode: Episode) -> str:
    """The last refusal that it met, and how it ended."""
    codes = [turn.result.response.get("error_code") for turn in episode.turns if turn.result is not None]
    met = [code for code in codes if code]
    return f"{f'refused with {met[-1]}, ' if met else ''}ended by {episode.ended}"


def played(catalogue: Catalogue, task: Task, adapts: bool = True) -> Episode:
    """The record of a task played by the oracle, or by the drift-blind script."""
    errand = Errand(catalogue, task)
    return _finished(errand, scripts.Script(errand, adapts), errand.start())


def _finished(errand: Errand, script: scripts.Script, seen: Observation) -> Episode:
    while not seen.done:
        seen = errand.step(script.act(seen))
    return errand.record()
