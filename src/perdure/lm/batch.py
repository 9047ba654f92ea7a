"""From a window of environment steps and what a policy recorded to the rows that it is trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.core.errors import RunFailed
from perdure.core.records import RolloutWindow, Transition
from perdure.lm.conversation import REPLAYED, Recorded, part

REMEDY = "call policy.record(transition) after each step, as the collector does, and begin_episode(lane) after a reset"


@dataclass(frozen=True)
class TokenBatch:
    """Answers to train on. The turns of all rows, one after the other, are the samples.

    Rows stand lane by lane, in the order in which they were said; an episode may span several rows of its lane.
    """

    rows: tuple[Recorded, ...]
    episode_lengths: tuple[int, ...] | None = None
    """Turns of each episode, or None where that is not known: then every turn is one of its own."""
    tails: tuple[tuple[int, ...], ...] = ()
    """For each episode the ids of the state after it, whose value is its bootstrap; empty where nothing follows."""

    def __len__(self) -> int:
        return sum(len(row.turns) for row in self.rows)

    @property
    def rewards(self) -> list[float]:
        """One reward a turn; NaN where an episode failed and its turns do not count."""
        return [turn.reward for row in self.rows for turn in row.turns]

    @property
    def tokens(self) -> list[Recorded]:
        """The samples: each turn as a row of its own, what was said before as its context."""
        return [single for row in self.rows for single in per_turn(row)]

    def select(self, rows: Sequence[int]) -> "TokenBatch":
        """The rows at these positions, without their episodes' structure."""
        return TokenBatch(tuple(self.rows[row] for row in rows))

    @property
    def count(self) -> int:
        """Episodes, every turn being one where their lengths are not known."""
        return len(self) if self.episode_lengths is None else len(self.episode_lengths)

    def one_turn_a_row(self) -> "TokenBatch":
        """The same samples, episodes and tails, every sample a row."""
        return replace(self, rows=tuple(self.tokens))


def per_turn(row: Recorded) -> list[Recorded]:
    """A row for each turn, cut at its end."""
    return [row] if len(row.turns) == 1 else [split(part(row, turn.start), turn.end)[0] for turn in row.turns]


def split(row: Recorded, end: int) -> tuple[Recorded, Recorded | None]:
    """The turns that end by token `end`, without any later token, and a row for the others, if there are any."""
    later = [turn for turn in row.turns if turn.start >= end]
    first = Recorded(
        ids=row.ids[:end],
        mask=row.mask[:end],
        logprobs=row.logprobs[:end],
        turns=[turn for turn in row.turns if turn.end <= end],
        terminated=row.terminated and not later,
        truncated=row.truncated and not later,
        version=row.version,
        group=row.group,
        lane=row.lane,
    )
    return first, part(row, end) if later else None


def of_window(
    window: RolloutWindow, recorded: Sequence[Recorded], tail: Callable[[Recorded, Any], Sequence[int]] | None
) -> tuple[TokenBatch, list[Recorded]]:
    """(the batch of a window's steps, what was recorded beyond it).

    `tail(row, observation)` gives the ids of the state after a row; without it nothing is bootstrapped.
    Raises RunFailed where steps and answers do not belong together.
    """
    steps: dict[int, list[Transition]] = {}
    for transition in window.transitions:
        steps.setdefault(transition.lane, []).append(transition)
    rows: list[Recorded] = []
    beyond: list[Recorded] = []
    lengths: list[int] = []
    tails: list[tuple[int, ...]] = []
    for lane in sorted({*steps, *(row.lane for row in recorded)}):
        taken, left = _match(lane, steps.get(lane, []), [row for row in recorded if row.lane == lane])
        rows, beyond = rows + taken, beyond + left
        found = _episodes(steps.get(lane, []), taken, tail)
        lengths, tails = lengths + found[0], tails + found[1]
    return TokenBatch(tuple(rows), tuple(lengths), tuple(tails)), beyond


def _match(
    lane: int, steps: Sequence[Transition], recorded: Sequence[Recorded]
) -> tuple[list[Recorded], list[Recorded]]:
    """Give each turn the reward of its step; the rows of these steps, and the rows that come after them."""
    waiting, taken = list(recorded), list[Recorded]()
    position = 0
    while position < len(steps) and waiting:
        row, room = waiting.pop(0), len(steps) - position
        if len(row.turns) > room:
            row, later = split(row, row.turns[room - 1].end)
            waiting = [later, *waiting] if later is not None else waiting
        for turn, step in zip(row.turns, steps[position:], strict=False):
            if turn.step not in (-1, step.step):
                raise RunFailed(f"lane {lane}: an answer of step {turn.step} met step {step.step}; {REMEDY}")
            turn.reward, turn.step = float(step.reward), step.step
        inner = steps[position : position + len(row.turns) - 1]
        if any(step.terminated or step.truncated for step in inner):
            raise RunFailed(f"lane {lane}, step {inner[0].step} or later: an episode ended in a conversation; {REMEDY}")
        position += len(row.turns)
        taken.append(row)
    if position < len(steps):
        raise RunFailed(
            f"lane {lane}: the window has {len(steps)} steps, the policy recorded {position} answers for them; "
            "every action must come from this policy's act or act_batch"
        )
    return taken, waiting


def _episodes(
    steps: Sequence[Transition], rows: Sequence[Recorded], tail: Callable[[Recorded, Any], Sequence[int]] | None
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Turns of each episode of a lane, and the ids of the state that follows it."""
    lengths, tails, begin = list[int](), list[tuple[int, ...]](), 0
    ends = [row for row in rows for _ in row.turns]
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        if not (step.terminated or step.truncated or last):
            continue
        follows = tail is not None and not step.terminated and step.next_observation is not None
        lengths.append(position + 1 - begin)
        tails.append(tuple(tail(ends[position], step.next_observation)) if follows and tail is not None else ())
        begin = position + 1
    return lengths, tails


def rewarded(row: Recorded, reward: float) -> Recorded:
    """A remembered row of one turn with another reward."""
    return replace(row, lane=REPLAYED, turns=[replace(row.turns[0], reward=reward)])
