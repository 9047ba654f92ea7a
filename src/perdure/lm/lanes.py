"""The conversations of a policy, one a copy of the environment, and the random numbers of each."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perdure.core.errors import DataError
from perdure.lm.conversation import EVALUATION, Conversation, Reader, Recorded
from perdure.lm.speaker import Heard
from perdure.lm.trajectory import Sampled


class Lanes:
    """Open conversations by lane; greedy evaluations have one too, which is neither handed over nor saved.

    Every draw depends on the seed, the lane, and how many turns it has answered: on nothing else.
    """

    def __init__(self, seed: int):
        self.seed(seed)
        self._open: dict[int, Conversation] = {}

    def __contains__(self, lane: int) -> bool:
        return lane in self._open

    def __getitem__(self, lane: int) -> Conversation:
        return self._open[lane]

    def seed(self, seed: int) -> None:
        """Begin the random numbers anew."""
        self._seed, self._drawn = seed, dict[int, int]()

    def hear(self, lane: int, observation: Any, reader: Reader, version: int) -> Heard:
        """Tell a lane's conversation what the environment says."""
        conversation = self._open.setdefault(lane, Conversation(lane))
        begin = conversation.hear(observation, reader, version)
        assert conversation.trajectory is not None, "hearing opens a trajectory"
        return Heard(lane, conversation.trajectory.ids, begin)

    def say(self, lane: int, sampled: Sampled, text: str, context_turns: int) -> None:
        """Note what the model answered."""
        self._open[lane].say(sampled, text, context_turns)

    def uniforms(self, lane: int, count: int) -> np.ndarray:
        """`count` numbers in [0, 1) for a lane's next answer."""
        turn = self._drawn.get(lane, 0)
        self._drawn[lane] = turn + 1
        bits = np.random.Philox(key=np.array([self._seed, lane], np.uint64), counter=[0, 0, turn, 0])
        return np.random.Generator(bits).random(count)

    def forget(self, lane: int) -> None:
        """Drop a conversation and what was said in it."""
        self._open.pop(lane, None)

    def take(self) -> list[Recorded]:
        """What was said since the last call, lane by lane, oldest first."""
        lanes = sorted(lane for lane in self._open if lane != EVALUATION)
        return [recorded for lane in lanes for recorded in self._open[lane].take()]

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as JSON values."""
        lanes = {str(lane): each.state() for lane, each in self._open.items() if lane != EVALUATION}
        return {"seed": self._seed, "drawn": {str(lane): n for lane, n in self._drawn.items()}, "lanes": lanes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave; DataError for anything else."""
        if not {"seed", "drawn", "lanes"} <= state.keys():
            raise DataError(f"a policy's state has {sorted(state)}; it needs seed, drawn and lanes")
        self._seed = state["seed"]
        self._drawn = {int(lane): count for lane, count in state["drawn"].items()}
        self._open = {int(lane): Conversation(int(lane)) for lane in state["lanes"]}
        for lane, kept in state["lanes"].items():
            self._open[int(lane)].load(kept)
