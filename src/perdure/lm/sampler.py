"""Answers of a language model to several conversations at once: ids in, ids and log-probabilities out.

A session holds the conversations and their caches over all their turns: only what is new is computed.
Randomness is the caller's: one uniform number a row and token, so that an answer depends neither on the other
rows nor on the order of calls. Shapes: B rows, T tokens, V vocabulary.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from perdure.core.errors import ConfigError, Refused, RunFailed
from perdure.lm import chat, decoder, fused, generic, stopping, tokens, vllm
from perdure.lm.sampling import Sampling, draw
from perdure.lm.trajectory import Sampled, Stop

BACKENDS = ("auto", "fast", "transformers", "vllm")


class Session(Protocol):
    """Open conversations, numbered from 0."""

    def generate(self, rows: Sequence[int], sampling: Sampling, uniforms: np.ndarray) -> list[Sampled]:
        """Sample an answer of each of `rows`; `uniforms` [len(rows), max_new_tokens] in [0, 1), one a token.

        The answer is appended to its row. A row whose context is full already answers with no token and
        Stop.CONTEXT. RunFailed where a logit is NaN, and after the sampler's `refresh`.
        """
        ...

    def append(self, row: int, ids: Sequence[int]) -> None:
        """Append tokens of the environment; they are computed with the row's next answer."""
        ...

    def length(self, row: int) -> int:
        """Tokens of the row: prompt, answers and what was appended."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows and free their memory; the numbers of the rows stay as they are."""
        ...


class Sampler(Protocol):
    """A model ready to answer."""

    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Session:
        """Begin conversations: row r has prompt r // copies, which is computed once for all its copies.

        ConfigError for an empty prompt, and for one that leaves no room in the model's context.
        """
        ...

    def refresh(self) -> None:
        """Take over the model's present weights. Sessions opened before refuse to go on."""
        ...


class Cache(Protocol):
    """Keys and values of rows, and the forward pass over them: what a backend provides."""

    def arrange(self, rows: Sequence[int]) -> list[int]:
        """Make `rows` the running ones; returns them in the order that all following calls use."""
        ...

    def feed(self, ids: Sequence[Sequence[int]], room: int) -> torch.Tensor:
        """Append at least one token to each running row: logits_BV after the last; `room` more will follow."""
        ...

    def step(self, ids_B: torch.Tensor) -> torch.Tensor:
        """Append one token to each running row: logits_BV after it."""
        ...

    def retire(self, position: int) -> None:
        """Run on without the running row at `position`; the last one takes its position."""
        ...

    def repeat(self, copies: int) -> None:
        """Replace each row r by `copies` equal ones, numbered from r * copies."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Free the memory of all other rows."""
        ...


class Engine(Protocol):
    """A model that can be run over caches."""

    context: int
    device: torch.device

    def cache(self, rows: int) -> Cache:
        """An empty cache."""
        ...

    def refresh(self) -> None:
        """Take over the model's present weights."""
        ...


def sampler(model: Any, tokenizer: Any, *, backend: str = "auto", dtype: torch.dtype | None = None) -> Sampler:
    """The sampler of a causal `transformers` model (peft adapters included).

    "fast" is the built-in decoder (lm.decoder), which refuses models it does not know, naming the field;
    "transformers" runs any model through its own module; "auto" takes the first where it can. `dtype` is the
    precision of the decoder's copy of the weights, by default the model's own; bfloat16 halves the time of
    wide models and moves log-probabilities by some 0.03.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend is {backend!r}; known: {', '.join(BACKENDS)}")
    chat.check_fits(tokenizer, model)
    if backend == "vllm":
        return vllm.VllmSampler(model, tokenizer, dtype=dtype)
    reason = fused.unsupported(model)
    if backend == "fast" and reason:
        raise Refused(f"the fast sampler cannot run this model: {reason}; use backend: transformers")
    if backend == "transformers" or reason:
        if dtype is not None:
            raise Refused(
                f"dtype {dtype} is an option of the fast sampler"
                + (f", which cannot run this model: {reason}" if reason else "")
                + "; convert the model itself, or leave dtype out"
            )
        return CachedSampler(generic.Engine(model), tokenizer)
    return CachedSampler(decoder.Engine(model, dtype), tokenizer)


class CachedSampler:
    """A Sampler over an engine with caches."""

    def __init__(self, engine: Engine, tokenizer: Any):
        self.engine = engine
        self.end = tokens.end_of_turn(tokenizer)
        self.pieces = stopping.Pieces(tokenizer)
        self.version = 0

    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Session:
        """See Sampler."""
        chat.check_prompts(prompts, copies, self.engine.context)
        return CachedSession(self, prompts, copies)

    def refresh(self) -> None:
        """See Sampler."""
        self.version += 1
        self.engine.refresh()


class CachedSession:
    """A Session over a cache: every row is what is cached and what is pending, the last sampled token included."""

    def __init__(self, owner: CachedSampler, prompts: Sequence[Sequence[int]], copies: int):
        self._owner, self._version = owner, owner.version
        self._lengths = {row: len(prompts[row // copies]) for row in range(len(prompts) * copies)}
        self._cache = owner.engine.cache(len(prompts))
        if copies > 1:
            self._prefill(prompts)
            self._cache.repeat(copies)
        first = -1 if copies > 1 else 0
        self._pending = {row: [int(token) for token in prompts[row // copies][first:]] for row in self._lengths}

    def generate(self, rows: Sequence[int], sampling: Sampling, uniforms: np.ndarray) -> list[Sampled]:
        """See Session."""
        self._known(rows)
        uniforms = _checked(uniforms, rows, sampling)
        answers = {row: self._answer(row, sampling) for row in rows}
        started = [row for row in rows if answers[row].room]
        if started:
            with torch.inference_mode():
                order = self._cache.arrange(started)
                place = {row: index for index, row in enumerate(rows)}
                uniforms_TB = np.ascontiguousarray(uniforms[[place[row] for row in order]].T)
                self._sample([answers[row] for row in order], sampling, uniforms_TB)
        return [Sampled(answers[row].ids, answers[row].logprobs, answers[row].stop) for row in rows]

    def append(self, row: int, ids: Sequence[int]) -> None:
        """See Session."""
        self._known([row])
        self._pending[row] += map(int, ids)
        self._lengths[row] += len(ids)

    def length(self, row: int) -> int:
        """See Session."""
        self._known([row])
        return self._lengths[row]

    def keep(self, rows: Sequence[int]) -> None:
        """See Session."""
        self._known(rows)
        self._cache.keep(rows)
        self._lengths = {row: self._lengths[row] for row in rows}
        self._pending = {row: self._pending[row] for row in rows}

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compute all of each prompt but its last token, which each copy feeds for itself as it begins to answer."""
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) > 1]
        if rows:
            with torch.inference_mode():
                order = self._cache.arrange(rows)
                self._cache.feed([prompts[row][:-1] for row in order], 1)

    def _sample(self, running: list["_Answer"], sampling: Sampling, uniforms: np.ndarray) -> None:
        """Let each of `running`, which is in the cache's order, speak until it stops; `uniforms` is [T, B]."""
        version, self._version = self._version, -1  # Should this fail, the cache is of no use any more.
        uniforms_TB = torch.as_tensor(uniforms, device=self._owner.engine.device)
        logits_BV = self._cache.feed([self._pending[each.row] for each in running], max(each.room for each in running))
        for step in itertools.count():
            ids_B, logprobs_B = draw(logits_BV, uniforms_TB[step], sampling)
            drawn = zip(running, ids_B.tolist(), logprobs_B.tolist(), strict=True)
            stopped = [position for position, (each, *token) in enumerate(drawn) if each.add(*token)]
            if stopped:
                left = self._retire(running, stopped)
                if not left:
                    break
                going_on = torch.as_tensor(left, device=ids_B.device)
                ids_B, uniforms_TB = ids_B[going_on], uniforms_TB[:, going_on]
            logits_BV = self._cache.step(ids_B)
        self._version = version

    def _retire(self, running: list["_Answer"], stopped: Sequence[int]) -> list[int]:
        """Take the stopped ones out of `running` and the cache; returns where each that is left stood before."""
        left = list(range(len(running)))
        for position in reversed(stopped):
            answer = running[position]
            self._pending[answer.row] = answer.ids[-1:]
            self._lengths[answer.row] += len(answer.ids)
            self._cache.retire(position)
            running[position], left[position] = running[-1], left[-1]
            running.pop()
            left.pop()
        return left

    def _answer(self, row: int, sampling: Sampling) -> "_Answer":
        left = self._owner.engine.context - self._lengths[row]
        room = max(0, min(left, sampling.max_new_tokens))
        watch = stopping.watch(self._owner.pieces, sampling)
        return _Answer(row, room, self._owner.end, Stop.CONTEXT if left <= room else Stop.LENGTH, watch)

    def _known(self, rows: Sequence[int]) -> None:
        """Refuse a session that is out of date, and rows that it does not have."""
        if self._version != self._owner.version:
            raise RunFailed(
                "the session was opened before the sampler's weights changed, or has failed; open a new session"
            )
        strange = [row for row in rows if row not in self._lengths]
        if strange or len(set(rows)) < len(rows):
            raise RunFailed(
                f"rows {list(rows)}: each must be one of the session's and stand there once; "
                f"it has {len(self._lengths)} rows" + (f", not {strange[0]}" if strange else "")
            )


class _Answer:
    """One row's answer as it grows."""

    def __init__(self, row: int, room: int, end: int, limit: Stop, watch: stopping.Watch | None):
        self.row, self.room = row, room
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.stop = limit
        self._end, self._watch = end, watch

    def add(self, token: int, logprob: float) -> bool:
        """Append a token; whether the answer stops with it."""
        if logprob != logprob:
            raise RunFailed(
                f"row {self.row}: the model's logits are NaN or infinite after {len(self.ids)} sampled tokens; "
                "its weights have diverged: lower the learning rate, or return to an earlier checkpoint"
            )
        self.ids.append(token)
        self.logprobs.append(logprob)
        found = Stop.END if token == self._end else None if self._watch is None else self._watch.add(token)
        if found is not None:
            self.stop = found
        return found is not None or len(self.ids) == self.room


def _checked(uniforms: np.ndarray, rows: Sequence[int], sampling: Sampling) -> np.ndarray:
    """`uniforms` in double precision; RunFailed where they are not one number in [0, 1) a row and token."""
    uniforms = np.asarray(uniforms, np.float64)
    wanted = (len(rows), sampling.max_new_tokens)
    if uniforms.shape != wanted or not ((uniforms >= 0) & (uniforms < 1)).all():
        raise RunFailed(f"uniforms of shape {uniforms.shape}; they must be {wanted} numbers in [0, 1), a row a row")
    return uniforms
