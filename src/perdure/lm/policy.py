"""LanguagePolicy: a causal language model, with a critic, as a policy over text or JSON observations.

Tokens in, tokens out: what was sampled is kept as ids with the sampler's log-probabilities, and trained on
as such. Observations are text or JSON values; actions are the answer's JSON object, or its words.
"""

# A model and a tokenizer are any of transformers'.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from perdure.core.errors import ConfigError, DataError
from perdure.lm import chat, loading, parsing, preset
from perdure.lm.conversation import EVALUATION, Reader, Recorded
from perdure.lm.hooks import Hooks
from perdure.lm.lanes import Lanes
from perdure.lm.prompts import PromptBuilder
from perdure.lm.sampler import sampler
from perdure.lm.sampling import Sampling
from perdure.lm.speaker import Heard, Speaker
from perdure.lm.value_head import FILES, ValueHead

WORD_MARKS = ("\u0120", "\u2581", "\u010a", " ")
"""What vocabularies put before a token that begins a word or a line."""


class Final(NamedTuple):
    """What the model says after the last token of each row."""

    logits_BV: Tensor
    values_B: Tensor


class LanguagePolicy:
    """A model and its tokenizer as a policy; nothing is downloaded, the model may be random.

    `conversation` "append" (corrected) keeps one growing trajectory an episode, "fresh" (reference) gives every
    turn a prompt of its own. Where the context is full a new prompt is rendered from the last `context_turns`
    exchanges. `value_init` is "zeros" (corrected) or "default" (reference); `preset` chooses where both are
    None. `seed` and the number of turns a lane has answered determine every draw, so that neither batching nor
    the number of lanes changes an answer; `seed` also draws the value head. With `parse_actions` false an action
    is the answer's text. `capture_effective_rank` has `act_with_info` report the effective rank of the last hidden
    states [tokens, width]. Raises ConfigError for a tokenizer that does not fit the model and for unknown options.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        capture_effective_rank: bool = False,
        *,
        sampling: Sampling | None = None,
        prompts: PromptBuilder | None = None,
        preset: str = "corrected",
        conversation: str | None = None,
        value_init: str | None = None,
        parse_actions: bool = True,
        backend: str = "auto",
        dtype: Any = None,
        seed: int = 0,
    ):
        chosen = _options(preset, conversation, value_init)
        chat.check_fits(tokenizer, model)
        self.model, self.tokenizer, self.preset = model, tokenizer, preset
        self.capture_effective_rank, self.parse_actions = capture_effective_rank, parse_actions
        self.sampling = sampling or Sampling()
        self.prompts = prompts or PromptBuilder()
        self.conversation = chosen["conversation"]
        self.chat = chat.ChatTemplate(tokenizer)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.value_head = ValueHead(model.config.hidden_size, chosen["value_init"]).to(model.device)
        self.loaded_value_head = False
        """Whether the value head's weights came from a file."""
        self.without_value_head: str | None = None
        """The folder that was loaded and has no value head, where nobody asked for a new one."""
        self.recipe: dict[str, Any] | None = None
        """How the base model was built, where no folder holds it."""
        self.version = 0
        """How many updates the weights have seen."""
        self.effective_rank: float | None = None
        """Of the last answer's hidden states, where it is captured."""
        self.sampler = sampler(model, tokenizer, backend=backend, dtype=dtype)
        self.hooks: tuple[Hooks, ...] = ()
        self._speaker, self._judge = Speaker(self.sampler), Speaker(self.sampler)
        self._lanes = Lanes(seed)
        self._own_prefix = self.prompts.prefix_provider
        model.eval()

    @property
    def context(self) -> int:
        """Tokens that the model can see at once."""
        return int(self.model.config.max_position_embeddings)

    @property
    def reader(self) -> Reader:
        """How observations become tokens."""
        room = max(1, min(self.sampling.max_new_tokens, self.context // 4))
        return Reader(self.chat, self.prompts, self.context, room, self.conversation == "append")

    @functools.cached_property
    def json_open_ids(self) -> frozenset[int]:
        """Ids of the vocabulary whose text begins with "{", a word's mark aside."""
        vocabulary: Mapping[str, int] = self.tokenizer.get_vocab()
        return frozenset(number for text, number in vocabulary.items() if _unmarked(text).startswith("{"))

    @property
    def marks(self) -> dict[str, Any]:
        """What `action_token_start` needs to know of the vocabulary."""
        vocabulary: Mapping[str, int] = self.tokenizer.get_vocab()
        opening, closing = vocabulary.get("<think>"), vocabulary.get("</think>")
        return {"json_open_ids": self.json_open_ids, "think_open_id": opening, "think_close_id": closing}

    def seed(self, seed: int) -> None:
        """Begin the random numbers anew."""
        self._lanes.seed(seed)

    def attach(self, hooks: Sequence[Hooks]) -> None:
        """Have `hooks` see what happens and open the prompts with their prefixes, after the policy's own."""
        self.hooks = tuple(hooks)
        self.prompts = dataclasses.replace(self.prompts, prefix_provider=self._prefix)

    def act(self, observation: Any) -> Any:
        """Answer one observation of lane 0, and record the tokens."""
        return self.act_batch([observation])[0]

    def act_with_info(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """`act`, and the log-probability of the answer (its tokens' sum), with the effective rank if captured."""
        action = self.act(observation)
        trajectory = self._lanes[0].trajectory
        assert trajectory is not None, "an answer leaves its trajectory open"
        turn = trajectory.turns[-1]
        thought: dict[str, Any] = {"logprob": float(sum(trajectory.logprobs[turn.start : turn.end]))}
        if self.capture_effective_rank:
            thought["effective_rank"] = self.effective_rank
        return action, thought

    def act_batch(self, observations: Sequence[Any]) -> list[Any]:
        """Answer one observation of each of the first lanes in one batch, and record the tokens."""
        heard = [self._hear(lane, observation) for lane, observation in enumerate(observations)]
        uniforms = np.stack([self._lanes.uniforms(each.lane, self.sampling.max_new_tokens) for each in heard])
        answers = self._speaker.answer(heard, self.sampling, uniforms)
        texts = [self.chat.decode(sampled.ids) for sampled in answers]
        for each, sampled, text in zip(heard, answers, texts, strict=True):
            self._lanes.say(each.lane, sampled, text, self.prompts.context_turns)
        if self.capture_effective_rank:
            self.effective_rank = self._rank(heard[0].ids)
        return [self._action(text) for text in texts]

    def act_greedy(self, observation: Any) -> Any:
        """The likeliest answer, in a conversation of its own that `begin_episode()` begins; records nothing."""
        heard = self._hear(EVALUATION, observation)
        greedy = dataclasses.replace(self.sampling, greedy=True)
        sampled = self._judge.answer([heard], greedy, np.zeros((1, greedy.max_new_tokens)))[0]
        text = self.chat.decode(sampled.ids)
        self._lanes.say(EVALUATION, sampled, text, self.prompts.context_turns)
        return self._action(text)

    @staticmethod
    def parse(text: str) -> dict[str, Any] | str:
        """The first JSON object inside `text`, else the text as it is; never raises."""
        return parsing.parse(text)

    def begin_episode(self, lane: int = EVALUATION) -> None:
        """Begin a new conversation: of the greedy evaluation, or of a training lane."""
        if lane == EVALUATION:
            self._lanes.forget(lane)
            self._judge.forget()
        elif lane in self._lanes:
            self._lanes[lane].begin()
        for hook in self.hooks:
            hook.begin_episode(lane)

    def record(self, transition: Any) -> None:
        """What a step made of the last answer of its lane; the collector calls this after each step.

        An episode's end closes the conversation. Whoever steps environments without the collector calls it too.
        """
        lane, ended = transition.lane, transition.terminated or transition.truncated
        if lane in self._lanes:
            self._lanes[lane].settle(transition.step, transition.reward, transition.terminated, transition.truncated)
        for hook in self.hooks:
            hook.observe(transition.next_observation, transition.reward, transition.info, lane, ended=ended)

    def take_generated(self) -> list[Recorded]:
        """What was said since the last call, lane by lane, oldest first; forgets it."""
        return self._lanes.take()

    def tail(self, recorded: Recorded, observation: Any) -> list[int]:
        """All ids of the state that `observation` makes of a recorded conversation: those whose value follows it."""
        reader, lane = self.reader, recorded.lane
        following = reader.following(recorded, observation, lane) if reader.append else None
        if following is not None:
            return [*recorded.ids, *following]
        earlier = self._lanes[lane].earlier if lane in self._lanes else ()
        return reader.opening(observation, earlier, lane)

    def refresh(self) -> None:
        """Tell the sampler that the weights have changed."""
        self.version += 1
        self._renew()

    def forward(self, ids: Any) -> Final:
        """Logits and value after the last token of one sequence [T], or of rows of equal length [B, T]."""
        ids_BT = torch.as_tensor(ids, dtype=torch.long, device=self.model.device)
        ids_BT = ids_BT[None] if ids_BT.ndim == 1 else ids_BT
        output = self.model(input_ids=ids_BT, output_hidden_states=True, use_cache=False, logits_to_keep=1)
        return Final(output.logits[:, -1], self.value_head(output.hidden_states[-1][:, -1]))

    def save(self, folder: str | Path) -> None:
        """Write the model (an adapter where there is one), the tokenizer and v_head.safetensors."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        with loading.quietly():
            self.model.save_pretrained(place)
            self.tokenizer.save_pretrained(place)
        self.value_head.save(place)
        if self.recipe is not None and hasattr(self.model, "peft_config"):
            loading.write_recipe(self.recipe, place)

    def load_value_head(self, path: str | Path) -> bool:
        """Take up the value head of a folder; False, and no change, where it has none."""
        found = self.value_head.read(Path(path))
        self.loaded_value_head = self.loaded_value_head or found
        return found

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, value_head: str = "required", **options: Any) -> "LanguagePolicy":
        """The policy that a folder holds: full weights, or an adapter whose config names the base model.

        `options` are the constructor's. DataError where it has no value head, unless `value_head` is "fresh".
        """
        if value_head not in ("required", "fresh"):
            raise ConfigError(f"value_head is {value_head!r}; it must be 'required' or 'fresh'")
        loaded = loading.load(path)
        policy = cls(loaded.model, loaded.tokenizer, **options)
        policy.recipe = loaded.recipe
        if not policy.load_value_head(path) and value_head == "required":
            raise DataError(
                f"{path} has no value head ({', '.join(FILES)}); train one, or begin with a new one (value_head: fresh)"
            )
        return policy

    def state_dict(self) -> dict[str, Any]:
        """Everything but weights that changes: random numbers, open conversations, the weights' version."""
        return {**self._lanes.state_dict(), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave; DataError for anything else."""
        self._lanes.load_state_dict(state)
        self.version = state["version"]
        self._renew()

    def _renew(self) -> None:
        self.sampler.refresh()
        self._speaker.forget()
        self._judge.forget()

    def _hear(self, lane: int, observation: Any) -> Heard:
        for hook in self.hooks:
            hook.see(observation, lane)
        return self._lanes.hear(lane, observation, self.reader, self.version)

    def _prefix(self, lane: int) -> str:
        own = self._own_prefix(lane) if self._own_prefix is not None else ""
        return "\n".join(text for text in (own, *(hook.prefix(lane) for hook in self.hooks)) if text)

    def _action(self, text: str) -> Any:
        return self.parse(text) if self.parse_actions else text

    def _rank(self, ids: Sequence[int]) -> float | None:
        from perdure.metrics.plasticity import effective_rank_entropy

        with torch.no_grad():
            ids_BT = torch.tensor([list(ids)], device=self.model.device)
            output = self.model(input_ids=ids_BT, output_hidden_states=True, use_cache=False, logits_to_keep=1)
        return effective_rank_entropy(output.hidden_states[-1][0].float().cpu().numpy())


def _options(name: str, conversation: str | None, value_init: str | None) -> dict[str, Any]:
    chosen = preset.resolve(name, preset.POLICY, {"conversation": conversation, "value_init": value_init})
    if chosen["conversation"] not in ("append", "fresh"):
        raise ConfigError(f"conversation is {chosen['conversation']!r}; it must be 'append' or 'fresh'")
    return chosen


def _unmarked(text: str) -> str:
    for mark in WORD_MARKS:
        text = text.removeprefix(mark)
    return text
