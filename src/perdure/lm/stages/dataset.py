"""Examples to train on: read or played, filtered, as tokens, split; and the card that says what became of them."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.core.errors import DataError
from perdure.lm.stages import trajectories
from perdure.lm.stages.sections import FilterConfig
from perdure.lm.stages.trajectories import Record
from perdure.lm.trajectory import Trajectory


class Examples(NamedTuple):
    """The rows of a supervised stage."""

    train: list[Trajectory]
    held_out: list[Trajectory]
    card: dict[str, Any]
    """What data.json says."""


def examples(
    records: Sequence[Record],
    policy: Any,
    kept: FilterConfig,
    *,
    source: Mapping[str, Any],
    holdout: float,
    seed: int,
) -> Examples:
    """The records that pass, as tokens of the policy's own tokenizer, a share of them held out.

    DataError where nothing passes, nothing is left to train on, an example has no trainable token, or one is longer
    than the model's context.
    """
    dropped: dict[str, int] = dict.fromkeys(("min_reward", "verified", "max_tokens"), 0)
    passed, rows, encoded = list[Record](), list[Trajectory](), 0
    own = trajectories.fingerprint(policy.tokenizer)
    for record in records:
        reason = _refusal(record, kept)
        if reason is None:
            known = record.trajectory is not None and record.tokenizer == own
            tokens = record.trajectory if known else trajectories.encoded(record, policy.chat)
            assert tokens is not None
            _check(record, tokens, policy, kept)
            if kept.max_tokens is None or len(tokens) <= kept.max_tokens:
                passed.append(record)
                rows.append(tokens)
                encoded += not known
                continue
            reason = "max_tokens"
        dropped[reason] += 1
    counts = {"read": len(records), "kept": len(rows), "encoded_anew": encoded, "dropped": dropped}
    if not rows:
        raise DataError(_nothing_left(counts, kept))
    held = held_out_rows(len(rows), holdout, seed)
    train = [row for number, row in enumerate(rows) if number not in held]
    held_out = [rows[number] for number in sorted(held)]
    if not train:
        raise DataError(f"all {len(rows)} examples are held out; give more of them, or a lower holdout")
    return Examples(train, held_out, _card(source, kept, counts, passed, rows, train, held_out))


def _refusal(record: Record, kept: FilterConfig) -> str | None:
    """The key of the filter that a record does not pass; what is not known passes none."""
    if kept.min_reward is not None and (record.reward is None or record.reward < kept.min_reward):
        return "min_reward"
    return "verified" if kept.verified and not record.verified else None


def _check(record: Record, tokens: Trajectory, policy: Any, kept: FilterConfig) -> None:
    if not any(tokens.mask):
        raise DataError(f"{record.place} has no trainable token; its mask is 0 throughout, so leave it out or mend it")
    vocabulary = policy.model.get_input_embeddings().weight.shape[0]
    if max(tokens.ids) >= vocabulary:
        raise DataError(f"{record.place} has the id {max(tokens.ids)}, the model embeds {vocabulary}; it is another's")
    if len(tokens) > policy.context and (kept.max_tokens is None or len(tokens) <= kept.max_tokens):
        raise DataError(
            f"{record.place} has {len(tokens)} tokens, the model's context is {policy.context}; leave such examples "
            f"out with filter.max_tokens: {policy.context}, or use a model with a longer context"
        )


def _nothing_left(counts: Mapping[str, Any], kept: FilterConfig) -> str:
    if not counts["read"]:
        return "the data holds no example; give a file with lines, or episodes"
    reasons = ", ".join(f"{count} by {name}" for name, count in counts["dropped"].items() if count)
    limits = ", ".join(f"{name}: {value}" for name, value in kept.model_dump().items() if value)
    return f"none of {counts['read']} examples passes the filter ({limits}): {reasons}; lower it, or give other data"


def held_out_rows(count: int, share: float, seed: int) -> set[int]:
    """Which rows judge: the share rounded, at least one where it is above 0."""
    wanted = max(1, round(count * share)) if share else 0
    drawn = np.random.Generator(np.random.Philox(key=[seed, 1])).permutation(count)
    return set(drawn[:wanted].tolist())


def _card(
    source: Mapping[str, Any],
    kept: FilterConfig,
    counts: Mapping[str, Any],
    passed: Sequence[Record],
    rows: Sequence[Trajectory],
    train: Sequence[Trajectory],
    held_out: Sequence[Trajectory],
) -> dict[str, Any]:
    known = {_prompt(row) for row in train}
    rewards = [record.reward for record in passed if record.reward is not None]
    content = hashlib.sha256()
    for row in rows:
        content.update(json.dumps([row.ids, row.mask], separators=(",", ":")).encode())
    return {
        "source": dict(source),
        "filter": kept.model_dump(mode="json"),
        "counts": {
            **counts,
            "train": len(train),
            "held_out": len(held_out),
            "held_out_prompts_also_trained_on": sum(_prompt(row) in known for row in held_out),
        },
        "tokens": {
            "all": sum(map(len, rows)),
            "trained": sum(sum(row.mask) for row in rows),
            "longest": max(map(len, rows)),
        },
        "reward": {"least": min(rewards), "mean": float(np.mean(rewards)), "most": max(rewards)} if rewards else None,
        "regimes": dict(sorted(Counter(record.regime or "unknown" for record in passed).items())),
        "sha256": content.hexdigest(),
    }


def _prompt(row: Trajectory) -> tuple[int, ...]:
    return tuple(row.ids[: row.mask.index(True)])
