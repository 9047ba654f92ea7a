"""trajectories.jsonl: one conversation a line, with what was said, its tokens, and what came of it.

messages      [{role, content}...], an assistant's answers among them
ids, mask, logprobs, turns [{start, end, stop, reward}...], tokenizer, version, terminated, truncated
              the tokens as they were sampled; may be missing, and are then made of the messages
reward, verified, regime {id, origin, params}, seed, observations
              what is known of the episode; all may be missing but the messages

Ids are taken as they stand only under the tokenizer whose print the line carries.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from perdure.core import jsontext
from perdure.core.errors import DataError
from perdure.harness.directory import write_atomic
from perdure.lm.trajectory import Sampled, Stop, Trajectory, Turn

MOST_IDS = 10**7
"""The largest id that is believed."""
ROLLOUTS = "rollouts.jsonl"
"""The file of a stage that holds its policy's episodes."""
TOKENS = ("ids", "mask", "logprobs", "turns")


@dataclass
class Record:
    """One conversation of a file or of an episode."""

    messages: list[dict[str, str]]
    trajectory: Trajectory | None = None
    """Its tokens, where they are known."""
    reward: float | None = None
    """The sum of its rewards."""
    verified: bool | None = None
    """Whether the world's verifier passed it."""
    regime: str | None = None
    origin: str | None = None
    """The regime that its regime repeats."""
    params: dict[str, float] | None = None
    seed: int = 0
    """The stream of episodes it belongs to."""
    tokenizer: str | None = None
    """The print of the tokenizer that its ids are of."""
    observations: list[Any] = field(default_factory=list[Any])
    """What the world showed before each answer, as JSON values."""
    place: str = "an example"
    """Where it came from, for messages."""


def fingerprint(tokenizer: Any) -> str:
    """Sixteen hex digits of a tokenizer's vocabulary: ids mean the same where they agree."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()), separators=(",", ":"))
    return hashlib.sha256(vocabulary.encode()).hexdigest()[:16]


def write(path: Path, records: Iterable[Record]) -> None:
    """Write the file whole or not at all; DataError for a number that is not finite."""
    try:
        lines = [json.dumps(_plain(record), allow_nan=False, separators=(",", ":")) + "\n" for record in records]
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: a trajectory cannot be written as JSON ({error})") from None
    write_atomic(path, "".join(lines).encode("utf-8", "surrogatepass"))


def read(path: Path, warnings: list[str] | None = None) -> list[Record]:
    """The records of a file; a torn last line is left out, and `warnings` told of it.

    DataError naming file, line and key for any other line that is no trajectory, and for a file that cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give a trajectories.jsonl") from None
    *whole, tail = content.split(b"\n")
    found = [_record(line, f"{path}:{number}") for number, line in enumerate(whole, 1) if line.strip()]
    if tail.strip():
        try:
            value = _value(tail)
        except ValueError:
            if warnings is not None:
                warnings.append(f"{path}: the last line is torn and left out")
        else:
            found.append(_checked(value, f"{path}:{len(whole) + 1}"))
    return found


def kept(path: Path, make: Callable[[], Sequence[Record]]) -> list[Record]:
    """The records of a file, which is made first where it is not there; a resume so sees what was seen before it."""
    if not path.is_file():
        write(path, make())
    return read(path)


def encoded(record: Record, chat: Any) -> Trajectory:
    """The tokens of a record's messages, every assistant's answer a turn that ends with the end-of-turn token.

    DataError where nobody answers, or where after the first answer two messages in a row are not the assistant's.
    """
    made = Trajectory(terminated=True)
    waiting: list[dict[str, str]] = []
    for number, message in enumerate(record.messages):
        if message["role"] != "assistant":
            waiting.append(message)
            continue
        if not made.turns:
            made.observe(chat.prompt(waiting))
        elif len(waiting) == 1:
            made.observe(chat.following(waiting[0]["content"], ended=True, role=waiting[0]["role"]))
        else:
            raise DataError(
                f"{record.place}: {len(waiting)} messages stand before the answer messages[{number}]; "
                "between two answers there is one, so join or add them"
            )
        waiting = []
        answer(made, chat, message["content"])
    if not made.turns:
        raise DataError(f'{record.place}: no message is the assistant\'s; give its answer the role "assistant"')
    made.turns[-1].reward = record.reward or 0.0
    return made


def answer(made: Trajectory, chat: Any, text: str) -> Turn:
    """Append a text as the model's answer, its end-of-turn token after it."""
    ids = [*chat.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"], chat.eos_id]
    return made.answer(Sampled(ids, [0.0] * len(ids), Stop.END))


def _plain(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {"messages": record.messages}
    tokens = record.trajectory
    if tokens is not None:
        row |= {"ids": tokens.ids, "mask": [int(each) for each in tokens.mask], "logprobs": tokens.logprobs}
        row["turns"] = [
            {"start": turn.start, "end": turn.end, "stop": str(turn.stop), "reward": turn.reward}
            for turn in tokens.turns
        ]
        row |= {"tokenizer": record.tokenizer, "version": tokens.version}
        row |= {"terminated": tokens.terminated, "truncated": tokens.truncated}
    regime = {"id": record.regime, "origin": record.origin, "params": record.params}
    row |= {"reward": record.reward, "verified": record.verified, "seed": record.seed}
    row |= {"regime": None if record.regime is None else regime}
    return row | ({"observations": record.observations} if record.observations else {})


def _value(line: bytes) -> Any:
    """Strict JSON of a line; ValueError (UnicodeDecodeError among them) for anything else."""
    return jsontext.loads(line.decode("utf-8"))


def _record(line: bytes, place: str) -> Record:
    try:
        value = _value(line)
    except ValueError as error:
        reason = str(error).splitlines()[0][:120]
        raise DataError(f"{place} is no JSON object ({reason}); write one object a line, in UTF-8") from None
    return _checked(value, place)


def _checked(value: Any, place: str) -> Record:
    if not isinstance(value, dict):
        raise DataError(f"{place} is no JSON object; write one object a line")
    row = cast("dict[str, Any]", value)
    regime = _optional(row, "regime", _is_regime, 'an object with "id"', place) or {}
    reward = _optional(row, "reward", _is_number, "a number", place)
    return Record(
        messages=_messages(row, place),
        trajectory=_tokens(row, place) if "ids" in row else None,
        reward=None if reward is None else float(reward),
        verified=_optional(row, "verified", lambda each: isinstance(each, bool), "true or false", place),
        regime=regime.get("id"),
        origin=regime.get("origin") or regime.get("id"),
        params=regime.get("params"),
        seed=_optional(row, "seed", _is_natural, "a whole number from 0 up", place) or 0,
        tokenizer=_optional(row, "tokenizer", lambda each: isinstance(each, str), "text", place),
        observations=_optional(row, "observations", lambda each: isinstance(each, list), "a list", place) or [],
        place=place,
    )


def _messages(row: Mapping[str, Any], place: str) -> list[dict[str, str]]:
    given = row.get("messages")
    if not isinstance(given, list) or not given:
        raise DataError(f"{place} has no messages; give a list of {{role, content}}")
    found: list[dict[str, str]] = []
    for number, message in enumerate(cast("list[Any]", given)):
        told = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
        role, content = told.get("role"), told.get("content")
        if not isinstance(role, str) or not role or not isinstance(content, str):
            raise DataError(f'{place}: messages[{number}] is no message; give "role" and "content", both text')
        found.append({"role": role, "content": content})
    return found


def _tokens(row: Mapping[str, Any], place: str) -> Trajectory:
    lists = [row.get(name) for name in TOKENS]
    for name, each in zip(TOKENS, lists, strict=True):
        if not isinstance(each, list) or (name != "turns" and len(cast("list[Any]", each)) != len(row["ids"])):
            raise DataError(f"{place}: {name} is no list that fits ids; give ids, mask, logprobs and turns, or none")
    ids, mask, logprobs, turns = cast("list[list[Any]]", lists)
    if not all(_is_natural(each) and each <= MOST_IDS for each in ids):
        raise DataError(f"{place}: ids holds what is no token id; give whole numbers from 0 up")
    if not all(isinstance(each, (bool, int)) and each in (0, 1) for each in mask) or mask[:1] == [1]:
        raise DataError(f"{place}: mask holds 0 and 1, a 0 for the first token, which nothing precedes")
    if not all(map(_is_number, logprobs)):
        raise DataError(f"{place}: logprobs holds what is no finite number; give one number a token")
    return Trajectory(
        ids=ids,
        mask=[bool(each) for each in mask],
        logprobs=[float(each) for each in logprobs],
        turns=list(_turns(turns, len(ids), place)),
        terminated=bool(row.get("terminated", True)),
        truncated=bool(row.get("truncated", False)),
        version=_optional(row, "version", _is_natural, "a whole number from 0 up", place) or 0,
    )


def _turns(rows: Sequence[Any], length: int, place: str) -> Iterator[Turn]:
    end = 0
    for number, row in enumerate(rows):
        told = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
        start, stop, reward = told.get("start", -1), told.get("stop", "end"), told.get("reward", 0.0)
        fits = _is_natural(start) and _is_natural(told.get("end")) and end <= start < told["end"] <= length
        if not fits or stop not in tuple(Stop) or not _is_number(reward):
            raise DataError(
                f"{place}: turns[{number}] is no turn; give start and end within ids, in order, stop (one of "
                f"{', '.join(Stop)}) and reward"
            )
        end = told["end"]
        yield Turn(start, end, Stop(stop), float(reward))


def _optional(row: Mapping[str, Any], key: str, fits: Any, what: str, place: str) -> Any:
    value = row.get(key)
    if value is not None and not fits(value):
        raise DataError(f"{place}: {key} must be {what}")
    return value


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63


def _is_regime(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    told = cast("dict[str, Any]", value)
    origin, params = told.get("origin"), told.get("params")
    return (
        isinstance(told.get("id"), str)
        and (origin is None or isinstance(origin, str))
        and (params is None or (isinstance(params, dict) and all(map(_is_number, cast("Any", params).values()))))
    )
