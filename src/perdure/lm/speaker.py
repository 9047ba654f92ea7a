"""Keeps a sampler's cache alive while conversations go on, and opens it anew when one of them begins."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.lm.trajectory import Sampled


class Heard(NamedTuple):
    """A conversation whose turn it is to be answered."""

    lane: int
    ids: Sequence[int]
    """All its tokens: the trajectory's own list, to which the answer is appended later."""
    begin: int
    """Where those that are new since the last answer begin; 0 for a conversation that has just begun."""


class Speaker:
    """Answers in several conversations at once, from the cached keys and values of earlier turns.

    All lanes speak in one batch. When one of them begins a new conversation, the session is opened anew
    with all that were said: one prefill costs less than answering in several batches ever after.
    """

    def __init__(self, sampler: Any):
        self._sampler = sampler
        self._session: Any = None
        self._rows: dict[int, int] = {}
        self._known: dict[int, int] = {}

    def forget(self) -> None:
        """Drop the cache: the weights, or the conversations, are others now."""
        self._session, self._rows, self._known = None, {}, {}

    def answer(self, heard: Sequence[Heard], sampling: Any, uniforms: np.ndarray) -> list[Sampled]:
        """One answer a conversation; `uniforms` [conversations, max_new_tokens] in [0, 1)."""
        if self._session is None or any(self._known.get(each.lane) != each.begin for each in heard):
            self._session = self._sampler.open([list(each.ids) for each in heard])
            self._rows = {each.lane: row for row, each in enumerate(heard)}
        else:
            for each in heard:
                self._session.append(self._rows[each.lane], list(each.ids[each.begin :]))
        answers = self._session.generate([self._rows[each.lane] for each in heard], sampling, uniforms)
        # A lane that was silent keeps what is cached of it only while the session lives.
        self._known = {lane: known for lane, known in self._known.items() if lane in self._rows}
        for each, sampled in zip(heard, answers, strict=True):
            self._known[each.lane] = len(each.ids) + len(sampled.ids)
        return answers
