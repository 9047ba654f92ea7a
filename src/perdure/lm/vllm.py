"""The sampler interface over vLLM, for large models on a GPU (extra `vllm`).

vLLM draws its random numbers itself, one seed an answer. The seed is taken from the answer's first uniform
number, so a run stays repeatable on one machine; its answers differ from those of the built-in decoder.
"""

import copy
import gc
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from perdure.core.errors import ConfigError, MissingExtra, RunFailed
from perdure.lm import chat, generic, tokens
from perdure.lm.sampling import Sampling
from perdure.lm.trajectory import Sampled, Stop


class VllmSampler:
    """A Sampler whose engine is loaded from a folder of the model's present weights, anew at each refresh."""

    def __init__(self, model: Any, tokenizer: Any, dtype: torch.dtype | None = None):
        try:
            import vllm
        except ImportError:
            raise MissingExtra("vllm", "vllm") from None
        self._vllm, self._model, self._tokenizer, self._dtype = vllm, model, tokenizer, dtype
        self.end = tokens.end_of_turn(tokenizer)
        self.context = generic.context_length(model)
        self.version = 0
        self.engine: Any = None
        self._load()

    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> "VllmSession":
        """See lm.sampler.Sampler; equal beginnings are shared by vLLM's prefix cache."""
        chat.check_prompts(prompts, copies, self.context)
        return VllmSession(self, [list(prompt) for prompt in prompts for _ in range(copies)])

    def refresh(self) -> None:
        """Take over the model's present weights."""
        self.version += 1
        self.engine = None
        gc.collect()
        self._load()

    def _load(self) -> None:
        folder = tempfile.mkdtemp(prefix="perdure-vllm-")
        try:
            adapted = hasattr(self._model, "merge_and_unload")
            # Of a copy: merging takes the adapters out of the model that is trained.
            merged = copy.deepcopy(self._model).merge_and_unload() if adapted else self._model
            merged.save_pretrained(folder)
            self._tokenizer.save_pretrained(folder)
            self.engine = self._vllm.LLM(
                folder,
                dtype=str(self._dtype or self._model.dtype).removeprefix("torch."),
                enable_prefix_caching=True,
                logprobs_mode="processed_logprobs",
            )
        finally:
            shutil.rmtree(folder)


class VllmSession:
    """A Session that hands the whole row to vLLM at each answer."""

    def __init__(self, owner: VllmSampler, rows: Sequence[list[int]]):
        self._owner, self._version = owner, owner.version
        self._rows = dict(enumerate(rows))

    def generate(self, rows: Sequence[int], sampling: Sampling, uniforms: np.ndarray) -> list[Sampled]:
        """See lm.sampler.Session."""
        self._check()
        room = {row: min(sampling.max_new_tokens, self._owner.context - self.length(row)) for row in rows}
        started = [(index, row) for index, row in enumerate(rows) if room[row] > 0]
        outputs = self._owner.engine.generate(
            [{"prompt_token_ids": self._rows[row]} for _, row in started],
            [self._parameters(sampling, room[row], float(uniforms[index, 0])) for index, row in started],
            use_tqdm=False,
        )
        answers = {row: Sampled([], [], Stop.CONTEXT) for row in rows}
        for (_, row), output in zip(started, outputs, strict=True):
            full = self.length(row) + len(output.outputs[0].token_ids) >= self._owner.context
            answers[row] = self._sampled(output.outputs[0], full)
            self._rows[row] += answers[row].ids
        return [answers[row] for row in rows]

    def append(self, row: int, ids: Sequence[int]) -> None:
        """See lm.sampler.Session."""
        self._check()
        self._rows[row] += ids

    def length(self, row: int) -> int:
        """See lm.sampler.Session."""
        return len(self._rows[row])

    def keep(self, rows: Sequence[int]) -> None:
        """See lm.sampler.Session."""
        self._rows = {row: self._rows[row] for row in rows}

    def _check(self) -> None:
        if self._version != self._owner.version:
            raise RunFailed("the session was opened before the sampler's weights changed; open a new session")

    def _parameters(self, sampling: Sampling, room: int, uniform: float) -> Any:
        if sampling.stop_json:
            raise ConfigError("stop_json is true; vLLM cannot stop at a complete object: use stop, or another backend")
        return self._owner._vllm.SamplingParams(
            temperature=0.0 if sampling.greedy else sampling.temperature,
            top_k=sampling.top_k or -1,
            top_p=sampling.top_p,
            max_tokens=room,
            stop=list(sampling.stop),
            include_stop_str_in_output=True,
            stop_token_ids=[self._owner.end],
            seed=int(uniform * 2**31),
            logprobs=0,
        )

    def _sampled(self, output: Any, full: bool) -> Sampled:
        ids = list(output.token_ids)
        logprobs = [found[token].logprob for token, found in zip(ids, output.logprobs, strict=True)]
        if ids and ids[-1] == self._owner.end:
            stop = Stop.END
        elif output.finish_reason == "stop":
            stop = Stop.STRING
        else:
            stop = Stop.CONTEXT if full else Stop.LENGTH
        return Sampled(ids, logprobs, stop)
