"""ChatML turn by turn: every piece is encoded alone, so that a longer conversation only appends ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core.errors import ConfigError
from perdure.lm import tokens


class ChatTemplate:
    """How messages become ids, for one tokenizer: `<|im_start|>role`, newline, text, `<|im_end|>`, newline.

    Markers in the text of a message are encoded as plain text, so that no observation can end a turn. A tokenizer
    that lacks the two markers gets them as plain text as well; an answer then ends with its end-of-sequence token.

        chat = ChatTemplate(byte_tokenizer())
        ids = chat.prompt([{"role": "user", "content": "Two plus two?"}])
        ids += answer + chat.following("And four plus four?", ended=True)
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.eos_id = tokens.end_of_turn(tokenizer)
        pad = tokenizer.pad_token_id
        self.pad_id = self.eos_id if pad is None else int(pad)
        self._start = self._marker(tokens.START)
        self._end = self._marker(tokens.END)
        self._newline = self._encode("\n")
        self._headers: dict[str, list[int]] = {}

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of `messages` (each with `role` and `content`) and the header of the assistant's next turn."""
        ids: list[int] = []
        for index, message in enumerate(messages):
            ids += self._turn(*_checked(message, index))
        return ids + self._header("assistant")

    def following(self, text: str, *, ended: bool, role: str = "user") -> list[int]:
        """What is appended to a sampled answer: the rest of its turn, the turn `text` of `role`, a new header.

        `ended`: the answer closed with `eos_id`, which is then not appended again.
        """
        closing = [] if ended else self._end
        return closing + self._newline + self._turn(role, text) + self._header("assistant")

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens; bytes that are no UTF-8 become U+FFFD."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _turn(self, role: str, text: str) -> list[int]:
        return self._header(role) + self._encode(text) + self._end + self._newline

    def _header(self, role: str) -> list[int]:
        if role not in self._headers:
            self._headers[role] = self._start + self._encode(role) + self._newline
        return self._headers[role]

    def _marker(self, text: str) -> list[int]:
        found = tokens.single_token(self.tokenizer, text)
        return self._encode(text) if found is None else [found]

    def _encode(self, text: str) -> list[int]:
        # Lone surrogates, which JSON can bring in, have no UTF-8.
        text = text.encode("utf-8", "replace").decode("utf-8")
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def check_fits(tokenizer: Any, model: Any) -> None:
    """ConfigError where `tokenizer` has ids that `model` has no embedding for."""
    largest = max(tokenizer.get_vocab().values())
    rows = model.get_input_embeddings().weight.shape[0]
    if largest >= rows:
        raise ConfigError(
            f"the tokenizer has ids up to {largest}, the model embeds {rows} tokens; load both from one folder, "
            f"or call model.resize_token_embeddings({largest + 1})"
        )


def check_prompts(prompts: Sequence[Sequence[int]], copies: int, context: int) -> None:
    """ConfigError for prompts that no session of a model with `context` tokens can begin with."""
    if copies < 1:
        raise ConfigError(f"copies is {copies}; a prompt has at least one row")
    for index, prompt in enumerate(prompts):
        if not 0 < len(prompt) < context:
            raise ConfigError(
                f"prompts[{index}] has {len(prompt)} tokens; it needs at least 1 and fewer than the model's context "
                f"of {context}: shorten it, or take a model with a longer context"
            )


def _checked(message: Mapping[str, str], index: int) -> tuple[str, str]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str) or not role:
        raise ConfigError(
            f"messages[{index}] has role {role!r} and content of type {type(content).__name__}; both must be text"
        )
    return role, content
