"""A tokenizer that needs no file: a token a byte, and the three markers of a conversation."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError, DataError

PAD = "<|pad|>"
START = "<|im_start|>"
END = "<|im_end|>"
LEAST = 260
"""Tokens that a learned vocabulary has at least: those of `byte_tokenizer` and one merge."""
PIECES = r"[0-3]\d|\d| ?\p{Lu}{2,}(?=\p{Ll})| ?[\p{L}\p{M}_]+(?:\.[\p{L}\p{M}_]+)*| ?[^\s\p{L}\p{M}\p{N}_]+|\s+"
"""What a learned vocabulary may have as a token: a day, an hour or half a year (00 to 39), else one digit, so that
dates are short and amounts need not be seen whole to be written; the capitals that an id begins with (TOKmo is TOK and
mo: a model that has said TOK finds what followed it before); a word, or a name in full (`payment.get_token`,
`pickup_time_ist`), with the blank before it; signs; blanks."""


def byte_tokenizer() -> Any:
    """A fresh `transformers.PreTrainedTokenizerFast`: ids 0 to 255 are bytes, then `<|pad|> <|im_start|> <|im_end|>`.

    Any text is encoded without loss and without a single merge; the end-of-sequence token is `<|im_end|>`, which
    differs from the padding. It is saved and loaded like any other tokenizer.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([PAD, START, END])
    return _dressed(backend)


def train_tokenizer(texts: Iterable[str], size: int, file: Path) -> None:
    """Train a byte-level byte-pair vocabulary (Sennrich et al. 2016, arXiv 1508.07909) of `size` tokens; write it.

    Markers and padding are those of `byte_tokenizer`. No merge crosses what PIECES cuts. ConfigError where `size`
    leaves no room for a merge (below LEAST).
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if size < LEAST:
        raise ConfigError(f"a vocabulary of {size} tokens has no room beside bytes and markers; give {LEAST} or more")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=byte_characters(), special_tokens=[PAD, START, END], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    scratch = file.with_name(f".{file.name}.part")
    backend.save(str(scratch))
    scratch.replace(file)


def load_tokenizer(file: Path) -> Any:
    """The tokenizer of a file that `train_tokenizer` wrote, or of another in its format with the same markers.

    DataError for a file that is none.
    """
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises bare exceptions.
        raise DataError(f"{file} is no tokenizer ({error}); name a tokenizer.json") from None
    missing = [marker for marker in (PAD, START, END) if backend.token_to_id(marker) is None]
    if missing:
        raise DataError(f"{file} has no token {', '.join(missing)}; add them to its vocabulary")
    return _dressed(backend)


def _dressed(backend: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (those of GPT-2 and its heirs).

    Printable Latin-1 bytes stand for themselves; the others, in order, for the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def single_token(tokenizer: Any, text: str) -> int | None:
    """The id whose whole text is `text`, or None where the vocabulary has no such token."""
    found = tokenizer.get_vocab().get(text)
    return None if found is None else int(found)


def end_of_turn(tokenizer: Any) -> int:
    """The id with which an answer ends: `<|im_end|>` where the vocabulary has it, else the end-of-sequence token.

    ConfigError where there is neither: nothing could then tell that an answer is over.
    """
    found = single_token(tokenizer, END)
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        raise ConfigError(
            f"tokenizer {type(tokenizer).__name__} has neither {END} nor an end-of-sequence token; set its eos_token"
        )
    return int(found)
