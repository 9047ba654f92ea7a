"""A tokenizer that needs no file: a token a byte, and the three markers of a conversation."""

from typing import Any

from perdure.core.errors import ConfigError

PAD = "<|pad|>"
START = "<|im_start|>"
END = "<|im_end|>"


def byte_tokenizer() -> Any:
    """A fresh `transformers.PreTrainedTokenizerFast`: ids 0 to 255 are bytes, then `<|pad|> <|im_start|> <|im_end|>`.

    Any text is encoded without loss and without a single merge; the end-of-sequence token is `<|im_end|>`, which
    differs from the padding. It is saved and loaded like any other tokenizer.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([PAD, START, END])
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
