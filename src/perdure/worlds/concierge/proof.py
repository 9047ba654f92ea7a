"""The proof that a task is worth posing: the oracle solves it, and who is blind to its drifts does not."""

from perdure.worlds.concierge import scoring, scripts
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.errand import Errand, Task
from perdure.worlds.concierge.records import Episode


def oracle_turns(catalogue: Catalogue, task: Task) -> int | None:
    """Turns the oracle takes, or None where it fails, a drift stays hidden, or blindness goes unpunished."""
    episode = played(catalogue, task)
    if not episode.success or set(episode.exposed) != set(task.drifts):
        return None
    if task.drifts and played(catalogue, task, adapts=False).success:
        return None
    if len(episode.goal.utterance) > MOST_UTTERANCE:
        return None
    solved = episode._replace(oracle_turns=len(episode.turns))
    if scoring.scored(catalogue, solved).reward < FULL_MARKS:
        return None
    return len(episode.turns)


def played(catalogue: Catalogue, task: Task, adapts: bool = True) -> Episode:
    """The record of a task played by the oracle, or by the drift-blind script."""
    errand = Errand(catalogue, task)
    script = scripts.Script(errand, adapts)
    seen = errand.start()
    while not seen.done:
        seen = errand.step(script.act(seen))
    return errand.record()


FULL_MARKS = 1 - 1e-9
MOST_UTTERANCE = 280
"""Characters of an utterance at most."""
