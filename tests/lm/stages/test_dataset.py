"""Examples: filters, tokens, what is held out, the data card."""

import hashlib
import json

import pytest

from perdure.core.errors import DataError
from perdure.lm.stages import dataset, trajectories
from perdure.lm.stages.sections import FilterConfig
from perdure.lm.stages.trajectories import Record
from perdure.lm.trajectory import Trajectory


@pytest.fixture(scope="module")
def policy(letters):
    return letters.policy(context=64)


def said(question="q", answer="a", **known):
    return Record([{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **known)


def made(policy, records, kept=None, holdout=0.0):
    return dataset.examples(records, policy, kept or FilterConfig(), source={"kind": "file"}, holdout=holdout, seed=0)


def test_filters_keep_what_passes_and_count_the_rest(policy):
    records = [
        said(reward=1.0, verified=True),
        said(reward=0.5, verified=True),
        said(reward=1.0),
        said(),
        said("q" * 99),
    ]
    records[4].reward, records[4].verified = 1.0, True
    found = made(policy, records, FilterConfig(min_reward=0.9, verified=True, max_tokens=60))
    assert found.card["counts"] == {
        "read": 5, "kept": 1, "encoded_anew": 1, "train": 1, "held_out": 0, "held_out_prompts_also_trained_on": 0,
        "dropped": {"min_reward": 2, "verified": 1, "max_tokens": 1},
    }  # fmt: skip
    assert found.train == [trajectories.encoded(records[0], policy.chat)]


def test_known_tokens_are_used_only_under_their_own_tokenizer(policy):
    own = Trajectory(ids=[1, 2], mask=[False, True], logprobs=[0.0, -1.0])
    mine = said(trajectory=own, tokenizer=trajectories.fingerprint(policy.tokenizer))
    foreign = said(trajectory=own, tokenizer="another")
    first, second = made(policy, [mine, foreign]).train
    assert first is own
    assert second == trajectories.encoded(foreign, policy.chat)


def test_what_is_held_out_is_a_share_and_no_more_is_lost(policy):
    records = [said(str(number)) for number in range(40)]
    found = made(policy, records, holdout=0.25)
    assert (len(found.train), len(found.held_out)) == (30, 10)
    prompts = sorted(policy.chat.decode(row.ids) for row in [*found.train, *found.held_out])
    assert prompts == sorted(policy.chat.decode(row.ids) for row in made(policy, records).train)
    assert found.card["counts"]["held_out_prompts_also_trained_on"] == 0
    assert made(policy, [said()] * 10, holdout=0.2).card["counts"]["held_out_prompts_also_trained_on"] == 2


def test_the_card_says_what_was_trained_on(policy):
    records = [said(answer="ab", reward=1.0, regime="r"), said(reward=0.0)]
    card = made(policy, records).card
    rows = [trajectories.encoded(record, policy.chat) for record in records]
    text = "".join(json.dumps([row.ids, row.mask], separators=(",", ":")) for row in rows)
    assert card["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert card["tokens"] == {"all": sum(map(len, rows)), "trained": 5, "longest": len(rows[0])}
    assert card["reward"] == {"least": 0.0, "mean": 0.5, "most": 1.0}
    assert card["regimes"] == {"r": 1, "unknown": 1}


@pytest.mark.parametrize(
    ("records", "kept", "said_of_it"),
    [
        ([], {}, "holds no example"),
        (
            [said(reward=0.1)],
            {"min_reward": 1.0},
            "none of 1 examples passes the filter (min_reward: 1.0): 1 by min_reward",
        ),
        ([said("q" * 99, place="f.jsonl:7")], {}, "f.jsonl:7 has 120 tokens, the model's context is 64"),
        ([said("q" * 99, place="f.jsonl:7")], {"max_tokens": 500}, "filter.max_tokens: 64"),
    ],
)
def test_data_that_cannot_be_used_is_refused(policy, records, kept, said_of_it):
    with pytest.raises(DataError) as caught:
        made(policy, records, FilterConfig(**kept))
    assert said_of_it in str(caught.value)


def test_tokens_that_cannot_be_trained_are_named(policy):
    print_ = trajectories.fingerprint(policy.tokenizer)
    silent = said(trajectory=Trajectory([1, 2], [False] * 2, [0.0] * 2), tokenizer=print_, place="f.jsonl:3")
    with pytest.raises(DataError, match=r"f.jsonl:3 has no trainable token"):
        made(policy, [silent])
    foreign = said(trajectory=Trajectory([1, 999], [False, True], [0.0] * 2), tokenizer=print_, place="f.jsonl:4")
    with pytest.raises(DataError, match=r"f.jsonl:4 has the id 999"):
        made(policy, [foreign])
    with pytest.raises(DataError, match="all 1 examples are held out"):
        made(policy, [said()], holdout=0.5)
