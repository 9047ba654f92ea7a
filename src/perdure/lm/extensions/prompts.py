"""On-policy replay: prompts of earlier updates are answered anew, and good answers are trained on."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.lm.batch import TokenBatch
from perdure.lm.conversation import REPLAYED, Recorded
from perdure.lm.extensions.base import at_least, fresh, named, with_rows
from perdure.lm.hooks import Hooks
from perdure.lm.replay import Reservoir
from perdure.lm.trajectory import Sampled, Stop

Judge = Callable[[str, str], float | None]
"""(prompt, answer) -> the reward, or None where it cannot say."""


@component
class PromptReplay:
    """Old prompts, a uniform sample of the past, are answered by the present policy; rewards at least `least` count.

    The answers join the batch as what they are, on-policy rows, so that nothing has to be corrected. Only answers that
    ended an episode are asked for anew, since nobody is there to go on after others. Without a `judge` an answer has
    the reward that the same answer to the same prompt had when it was last seen; an answer never seen is left out.
    """

    capacity: int = 256
    """Prompts remembered."""
    prompts: int = 8
    """Prompts answered anew at an update."""
    copies: int = 2
    """Answers to each; a group learner compares them with one another."""
    least: float = 0.5
    """The filter: the least reward of an answer, or, for a group learner, of the best answer of its group."""
    judge: str = ""
    """"module:function" of (prompt text, answer text) -> reward or None."""
    seed: int = 0

    def __post_init__(self):
        at_least(self, capacity=1, prompts=1, copies=1)

    def build(self, policy: Any = None) -> "OldPrompts":
        """The part itself."""
        return OldPrompts(self)


class OldPrompts(Hooks):
    """A reservoir of prompts, each with the rewards of the answers it has had."""

    name = "prompt_replay"

    def __init__(self, config: PromptReplay, judge: Judge | None = None):
        self.config = config
        self.past = Reservoir(config.capacity, config.seed)
        """Items are {"prompt": ids, "rewards": {answer: reward}}."""
        self._judge = judge or named(config.judge, "judge")
        self._random = np.random.Generator(np.random.Philox(key=[config.seed, 1]))
        self._found: dict[str, float] = {}

    def batch(self, backend: Any, batch: TokenBatch) -> TokenBatch:
        """Answer old prompts and add what passes the filter; then remember the new ones."""
        grouped = any(row.group >= 0 for row in batch.rows)
        if grouped and self.config.copies < 2:
            raise ConfigError("copies is 1; a group learner compares at least 2 answers of a prompt")
        added: list[Recorded] = []
        answered = self._answered(backend) if len(self.past) else []
        group = max((row.group for row in batch.rows), default=-1)
        for rows in answered:
            if grouped:
                group += 1
                best = max((row.total for row in rows if row.total == row.total), default=-np.inf)
                added += [_grouped(row, group) for row in rows] if best >= self.config.least else []
            else:
                added += [row for row in rows if row.total >= self.config.least]
        total = sum(len(rows) for rows in answered)
        self._found = {"answered": float(total), "passed": len(added) / total if total else 0.0}
        self._remember(backend.policy, batch)
        return with_rows(batch, added)

    def metrics(self) -> Mapping[str, float]:
        """How many old prompts were answered at the last update, and the share of answers that was trained on."""
        return {**self._found, "filled": len(self.past) / self.config.capacity}

    def state(self) -> dict[str, Any]:
        """The reservoir and the random numbers."""
        return {"past": self.past.state(), "random": self._random.bit_generator.state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self.past.load(state["past"])
        self._random.bit_generator.state = state["random"]

    def _answered(self, backend: Any) -> list[list[Recorded]]:
        """For each drawn prompt the rows of its new answers; a reward that nobody knows is NaN."""
        policy, copies = backend.policy, self.config.copies
        drawn = self.past.sample(self.config.prompts)
        session = policy.sampler.open([item["prompt"] for item in drawn], copies)
        rows = list(range(len(drawn) * copies))
        uniforms = self._random.random((len(rows), policy.sampling.max_new_tokens))
        sampled = session.generate(rows, policy.sampling, uniforms)
        return [
            [self._row(policy, item, each) for each in sampled[number * copies : (number + 1) * copies]]
            for number, item in enumerate(drawn)
        ]

    def _row(self, policy: Any, item: Mapping[str, Any], sampled: Sampled) -> Recorded:
        row = Recorded(lane=REPLAYED, version=policy.version, terminated=True)
        row.observe(item["prompt"])
        turn = row.answer(sampled)
        text = policy.chat.decode(sampled.ids)
        if self._judge is not None:
            found = self._judge(policy.chat.decode(item["prompt"]), text)
        else:
            found = item["rewards"].get(text)
        turn.reward = np.nan if found is None else float(found)
        return row

    def _remember(self, policy: Any, batch: TokenBatch) -> None:
        """Offer each new prompt to the reservoir, and note what became of answers to known ones."""
        known = {tuple(item["prompt"]): item["rewards"] for item in self.past.items}
        for row in fresh(batch):
            turn = row.turns[0]
            if not row.terminated or turn.stop is Stop.CONTEXT:
                continue
            prompt, text = row.ids[: turn.start], policy.chat.decode(row.ids[turn.start : turn.end])
            rewards = known.get(tuple(prompt))
            if rewards is not None:
                rewards[text] = turn.reward
                continue
            place = self.past.place()
            if place is not None:
                item = {"prompt": prompt, "rewards": {text: turn.reward}}
                if place < len(self.past):
                    known.pop(tuple(self.past.items[place]["prompt"]), None)
                self.past.put(place, item)
                known[tuple(prompt)] = item["rewards"]


def _grouped(row: Recorded, group: int) -> Recorded:
    row.group = group
    return row
