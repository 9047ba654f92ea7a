"""When an answer stops because of its text: stop strings and complete JSON objects, followed token by token."""

from typing import Any

from perdure.core import jsontext
from perdure.lm.sampling import Sampling
from perdure.lm.tokens import byte_characters
from perdure.lm.trajectory import Stop

_OPENING, _QUOTE, _BACKSLASH = b'{"\\'
_CLOSES = dict(zip(b"}]", b"{[", strict=True))


class Pieces:
    """The bytes that each token of a tokenizer adds to a text; special tokens add none.

    Byte-level vocabularies are read token by token, each once. For others the text is decoded anew at every
    token, which is right for any decoder and slower.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._byte = {character: byte for byte, character in enumerate(byte_characters())}
        self._known: dict[int, bytes] = {}
        self._added = {index: str(token) for index, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
        self.by_token = _is_byte_level(tokenizer)

    def piece(self, token: int) -> bytes:
        """The bytes of one token of a byte-level vocabulary."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._read(token)
        return found

    def text(self, ids: list[int]) -> bytes:
        """The text of `ids` in UTF-8, decoded by the tokenizer itself, up to a character that is not finished yet.

        Such a one shows as a replacement at the end, and is another one with the next token.
        """
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.rstrip("\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")

    def _read(self, token: int) -> bytes:
        if token in self._special:
            return b""
        if token in self._added:
            return self._added[token].encode("utf-8")
        text = self._tokenizer.convert_ids_to_tokens(token)
        return b"" if text is None else bytes(self._byte[character] for character in text)


class Watch:
    """The text of one growing answer, and whether it has come to a stop."""

    def __init__(self, pieces: Pieces, sampling: Sampling):
        self._pieces = pieces
        self._stops = [text.encode("utf-8") for text in sampling.stop]
        self._json = JsonWatch() if sampling.stop_json else None
        self._text = bytearray()
        self._ids: list[int] = []

    def add(self, token: int) -> Stop | None:
        """Append a token; the stop it brings about, if any."""
        if self._pieces.by_token:
            new = self._pieces.piece(token)
        else:
            self._ids.append(token)
            new = self._pieces.text(self._ids)[len(self._text) :]
        start = len(self._text)
        self._text += new
        if any(self._text.find(text, max(0, start - len(text) + 1)) >= 0 for text in self._stops):
            return Stop.STRING
        return Stop.JSON if self._json is not None and self._json.add(new) else None


class JsonWatch:
    """Tells the moment at which `core.jsontext.first_object` finds an object in a growing text, in linear time.

    Its search is followed byte by byte: the outermost brackets from an opening brace on, their limits, and the
    verdict of the parser once they close.
    """

    def __init__(self) -> None:
        self._object = bytearray()
        """What began with the present opening brace; empty outside."""
        self._open: list[int] = []
        self._in_string = self._escaped = False
        self._characters = self._searched = 0

    def add(self, new: bytes) -> bool:
        """Append bytes of UTF-8; whether an acceptable object is complete with one of them."""
        for byte in new:
            self._searched += byte & 0xC0 != 0x80
            if self._searched > jsontext.SEARCHED:
                return False
            if (self._object or byte == _OPENING) and self._closes(byte):
                return True
        return False

    def _closes(self, byte: int) -> bool:
        """Append a byte to the object; whether it is complete and acceptable with it."""
        self._characters += byte & 0xC0 != 0x80
        if self._characters > jsontext.MOST_BYTES:
            self._begin()
            return byte == _OPENING and self._closes(byte)
        self._object.append(byte)
        if self._in_string:
            self._in_string = self._escaped or byte != _QUOTE
            self._escaped = byte == _BACKSLASH and not self._escaped
        elif byte == _QUOTE:
            self._in_string = True
        elif byte in _CLOSES.values():
            self._open.append(byte)
            if len(self._open) > jsontext.MOST_DEPTH:
                self._begin()
        elif byte in _CLOSES:
            if self._open.pop() != _CLOSES[byte]:
                self._begin()
            elif not self._open:
                text = self._object.decode("utf-8", "replace")
                self._begin()
                return jsontext.first_object(text) is not None
        return False

    def _begin(self) -> None:
        """Look for the next opening brace."""
        self._object.clear()
        self._open.clear()
        self._in_string = self._escaped = False
        self._characters = 0


def watch(pieces: Pieces, sampling: Sampling) -> Watch | None:
    """What follows the text of an answer; None where `sampling` stops for no text, which then costs nothing."""
    return Watch(pieces, sampling) if sampling.stop or sampling.stop_json else None


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the decoder maps the characters of tokens to bytes and does nothing else."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return type(decoder).__name__ == "ByteLevel"
