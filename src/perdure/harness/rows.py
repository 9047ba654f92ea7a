"""Reads the rows of a trace, Parquet parts or JSON lines of anybody's making, into arrays.

JSON lines go through pyarrow first, which is fast but says little; a file it refuses is read again
line by line, which either succeeds (a trace that writes 0 for false, say) or names the bad line.
"""

# JSON and pyarrow, which has no stubs, carry no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perdure.core.errors import DataError

REQUIRED = ("seed", "step", "reward", "terminated", "truncated")
FACTS: tuple[str, ...] = ("run_id", "algorithm_id", "task")


class Labels(NamedTuple):
    """A column of text with few distinct values: names[codes[i]] is the value of row i."""

    codes: np.ndarray
    names: list[str]


class Rows(NamedTuple):
    """All rows of a trace, in file order; text that is missing reads as the empty string."""

    seed: np.ndarray
    step: np.ndarray
    lane: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    boundary: np.ndarray
    regime: Labels
    origin: Labels
    facts: dict[str, Labels]
    """run_id, algorithm_id and task where rows carry them (JSON lines)."""


def read_parts(folder: Path, warnings: list[str]) -> Rows:
    """The rows of steps/part-*.parquet. A last part that cannot be read is left out with a warning."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [*REQUIRED, "lane", "boundary", "regime", "origin"]
    paths = sorted(folder.glob("part-*.parquet"))
    tables = []
    for number, path in enumerate(paths):
        if path.name != f"part-{number:06d}.parquet":
            raise DataError(f"{folder} lacks part-{number:06d}.parquet; restore it, or move the later parts away")
        try:
            with pq.ParquetFile(path) as part:
                lacking = [name for name in REQUIRED if name not in part.schema_arrow.names]
                if lacking:
                    raise DataError(f"{path} lacks the column {lacking[0]!r}; a trace needs {', '.join(REQUIRED)}")
                tables.append(part.read(columns=columns))
        except (pa.ArrowException, OSError) as error:
            if number < len(paths) - 1:
                raise DataError(f"{path} cannot be read ({_short(error)}); restore it or start a new run") from None
            warnings.append(f"{path} cannot be read ({_short(error)}); its rows are left out")
    if not tables:
        return _empty()
    return _from_table(pa.concat_tables(tables).unify_dictionaries(), folder)


def read_jsonl(path: Path, warnings: list[str]) -> Rows:
    """The rows of a JSON-lines trace. A torn last line is left out with a warning.

    Raises DataError naming file and line for a row in the middle that is not an object, lacks a
    required key, or has a value of a wrong type or a reward that is not finite.
    """
    import pyarrow as pa
    from pyarrow import json as arrow_json

    content = without_torn_tail(path, warnings)
    if not content.strip():
        return _empty()
    options = arrow_json.ParseOptions(explicit_schema=_schema(), unexpected_field_behavior="ignore")
    reading = arrow_json.ReadOptions(block_size=max(1 << 22, min(len(content), 1 << 24)))
    try:
        table = arrow_json.read_json(pa.BufferReader(content), reading, options)
        regime = table["regime"].combine_chunks()
        table = table.append_column("boundary", regime.field("boundary"))
        table = table.append_column("origin", regime.field("origin"))
        table = table.set_column(table.schema.get_field_index("regime"), "regime", regime.field("id"))
        if all(table[name].null_count == 0 for name in REQUIRED) and np.isfinite(table["reward"].to_numpy()).all():
            return _from_table(table, path)
    except pa.ArrowInvalid:
        pass  # the slow reader either copes or names the line
    return _slowly(content, path)


def of_seed(path: Path, seed: int) -> Iterator[dict[str, Any]]:
    """The rows of one seed as objects, one at a time, in file order."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = _object(line, path, number)
            if row.get("seed") == seed:
                yield row


def without_torn_tail(path: Path, warnings: list[str]) -> bytes:
    """The whole lines of a file of JSON lines; a last line that no newline ends counts if it is JSON."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    tail = content[end:]
    if not tail.strip() or _parses(tail):
        return content
    if end == 0 and not tail.lstrip().startswith(b"{"):
        raise DataError(f"{path} holds no JSON lines (compressed, perhaps, or of another format); convert it")
    warnings.append(f"{path}: the last line is torn and left out")
    return content[:end]


def read_lines(path: Path, warnings: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """(line number, object) of a file of JSON lines; an absent file reads as an empty one."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(without_torn_tail(path, warnings).split(b"\n"), 1):
        if line.strip():
            found.append((number, _object(line, path, number)))
    return found


def _schema() -> Any:
    import pyarrow as pa

    regime = pa.struct([("id", pa.string()), ("origin", pa.string()), ("boundary", pa.bool_())])
    kinds = {"seed": pa.int64(), "step": pa.int64(), "lane": pa.int64(), "reward": pa.float64(), "regime": regime}
    kinds |= {"terminated": pa.bool_(), "truncated": pa.bool_(), **dict.fromkeys(FACTS, pa.string())}
    return pa.schema(list(kinds.items()))


def _from_table(table: Any, place: Path) -> Rows:
    def array(name: str, kind: type, default: Any) -> np.ndarray:
        if name not in table.column_names:
            return np.full(table.num_rows, default, kind)
        column = table[name]
        if column.null_count:
            column = column.fill_null(default)
        return column.to_numpy().astype(kind, copy=False)

    reward = array("reward", np.float64, np.nan)
    if not np.isfinite(reward).all():
        row = int(np.flatnonzero(~np.isfinite(reward))[0])
        raise DataError(
            f"{place}: row {row} (step {table['step'][row]}) has the reward {reward[row]}; a trace holds finite rewards"
        )
    return Rows(
        seed=array("seed", np.int64, 0),
        step=array("step", np.int64, 0),
        lane=array("lane", np.int64, 0),
        reward=reward,
        terminated=array("terminated", np.bool_, False),
        truncated=array("truncated", np.bool_, False),
        boundary=array("boundary", np.bool_, False),
        regime=_labels(table, "regime"),
        origin=_labels(table, "origin"),
        facts={name: _labels(table, name) for name in FACTS if name in table.column_names},
    )


def _labels(table: Any, name: str) -> Labels:
    import pyarrow as pa

    if name not in table.column_names:
        return Labels(np.zeros(table.num_rows, np.int32), [""])
    column = table[name].combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.fill_null("").dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    return Labels(column.indices.fill_null(0).to_numpy(zero_copy_only=False), column.dictionary.to_pylist())


def _empty() -> Rows:
    none = np.zeros(0)
    whole, flags, labels = none.astype(np.int64), none.astype(bool), Labels(none.astype(np.int32), [])
    return Rows(whole, whole, whole, none, flags, flags, flags, labels, labels, {})


def _slowly(content: bytes, path: Path) -> Rows:
    rows = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            rows.append(_row(_object(line, path, number), path, number))
    columns = list(zip(*rows, strict=True))
    seed, step, lane, reward, terminated, truncated, boundary = (np.array(column) for column in columns[:7])
    regime, origin, *facts = (_coded(column) for column in columns[7:])
    known: dict[str, Labels] = dict(zip(FACTS, facts, strict=True))
    return Rows(seed, step, lane, reward, terminated, truncated, boundary, regime, origin, known)


def _row(row: dict[str, Any], path: Path, number: int) -> tuple[Any, ...]:
    for name in REQUIRED:
        if row.get(name) is None:
            raise DataError(f"{path}:{number} lacks {name!r}; a trace needs {', '.join(REQUIRED)}")

    def whole(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or abs(value) >= 2**63:
            raise DataError(f"{path}:{number} has the {name} {value!r}; it must be a whole number")
        return int(value)

    def flag(name: str, value: Any) -> bool:
        if value not in (0, 1):
            raise DataError(f"{path}:{number} has {name} = {value!r}; it must be true or false")
        return bool(value)

    reward = row["reward"]
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise DataError(f"{path}:{number} has the reward {reward!r}; it must be a finite number")
    regime = row.get("regime")
    regime = {"id": regime} if isinstance(regime, str) else (regime or {})
    if not isinstance(regime, dict):
        raise DataError(f"{path}:{number} has the regime {regime!r}; it must be a name, or an object with an id")
    identity = str(regime.get("id") or "")
    return (
        whole("seed", row["seed"]),
        whole("step", row["step"]),
        whole("lane", row.get("lane") or 0),
        float(reward),
        flag("terminated", row["terminated"]),
        flag("truncated", row["truncated"]),
        flag("boundary", regime.get("boundary") or False),
        identity,
        str(regime.get("origin") or ""),
        *(str(row.get(name) or "") for name in FACTS),
    )


def _coded(values: tuple[str, ...]) -> Labels:
    names = {name: code for code, name in enumerate(dict.fromkeys(values))}
    return Labels(np.array([names[value] for value in values], np.int32), list(names))


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        remedy = "repair or remove the line" if number > 1 else "each line must be one JSON object, so convert the file"
        raise DataError(f"{path}:{number} is not JSON ({_short(error)}); {remedy}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}:{number} is a {type(value).__name__}, not an object; repair or remove the line")
    return value


def _parses(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
