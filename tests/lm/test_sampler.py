"""Sessions over both backends: the library's numbers, independence of company, stops, refusals."""

import json
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from perdure.core import jsontext  # noqa: E402
from perdure.core.errors import ConfigError, MissingExtra, RunFailed  # noqa: E402
from perdure.lm import forward, generic, stopping  # noqa: E402
from perdure.lm.sampler import CachedSampler, sampler  # noqa: E402
from perdure.lm.sampling import Sampling  # noqa: E402
from perdure.lm.tiny import tiny_model  # noqa: E402
from perdure.lm.tokens import byte_tokenizer  # noqa: E402
from perdure.lm.trajectory import Stop, Trajectory  # noqa: E402

TOKENIZER = byte_tokenizer()
END = 258
BACKENDS = ("fast", "transformers")
PROMPTS = [list(b"one long beginning"), list(b"2"), list(b"three")]


def build(architecture="llama", context=96, **options):
    """A model of which no parameter is at a value that could hide a mistake."""
    model = tiny_model(TOKENIZER, width=32, layers=2, context=context, architecture=architecture, **options)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def saying(text, context=96):
    """A model that says the bytes of `text` in turn, whatever it is told: each position has its own token."""
    tokens = [*text, END]

    class Says(torch.nn.Module):
        """Enough of a causal model for the generic engine."""

        config = transformers.LlamaConfig(vocab_size=259, max_position_embeddings=context)

        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(259, 1)

        def get_input_embeddings(self):
            return self.embedding

        def forward(self, input_ids, attention_mask, past_key_values, use_cache, position_ids, logits_to_keep=0):
            logits = torch.full((*input_ids.shape, 259), -50.0)
            for place in (position_ids == position_ids).nonzero().tolist():
                position = int(position_ids[tuple(place)])
                logits[tuple(place)][tokens[min(position, len(tokens) - 1)]] = 50.0
            kept = slice(-1, None) if isinstance(logits_to_keep, int) else logits_to_keep
            return type("Output", (), {"logits": logits[:, kept]})

    return CachedSampler(generic.Engine(Says()), TOKENIZER)


def uniforms(rows, tokens, seed=0):
    return np.random.default_rng(seed).random((rows, tokens))


def play(session, prompts, copies, turns=3, tokens=6):
    """Several ragged turns with tokens appended between; returns the trajectories."""
    trajectories = [Trajectory() for _ in range(len(prompts) * copies)]
    for row, trajectory in enumerate(trajectories):
        trajectory.observe(prompts[row // copies])
    everyone = range(len(trajectories))
    for turn in range(turns):
        rows = [row for row in reversed(everyone) if turn != 1 or row % 3 != 1]
        numbers = np.stack([uniforms(1, tokens, 100 * turn + row)[0] for row in rows])
        for row, sampled in zip(rows, session.generate(rows, Sampling(max_new_tokens=tokens), numbers), strict=True):
            trajectories[row].answer(sampled)
            if (row + turn) % 2:
                new = list(b"and so on")[: 1 + row]
                session.append(row, new)
                trajectories[row].observe(new)
            assert session.length(row) == len(trajectories[row])
    return trajectories


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("copies", [1, 2])
def test_logprobs_are_the_trainers_over_ragged_turns(backend, architecture, copies):
    model = build(architecture)
    trajectories = play(sampler(model, TOKENIZER, backend=backend).open(PROMPTS, copies), PROMPTS, copies)
    padded = forward.pad(trajectories, 0)
    with torch.no_grad():
        scores = forward.score(model, padded.ids_BT, padded.lengths_B, where_BT=padded.mask_BT)
    assert padded.mask_BT.sum() > 20 * copies
    torch.testing.assert_close(padded.logprobs_BT, scores.logprobs_BT, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_backends_and_copies_give_the_same_answers(architecture):
    model = build(architecture)
    found = [
        [each.ids for each in play(sampler(model, TOKENIZER, backend=backend).open(prompts, copies), prompts, copies)]
        for backend in BACKENDS
        for prompts, copies in ((PROMPTS, 2), ([prompt for prompt in PROMPTS for _ in range(2)], 1))
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert len({tuple(ids) for ids in found[0]}) == 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_alone_answers_as_in_company(backend):
    chosen = sampler(build(), TOKENIZER, backend=backend)
    numbers = uniforms(3, 40)
    together = chosen.open(PROMPTS).generate([0, 1, 2], Sampling(max_new_tokens=40), numbers)
    for row, prompt in enumerate(PROMPTS):
        (alone,) = chosen.open([prompt]).generate([0], Sampling(max_new_tokens=40), numbers[row : row + 1])
        assert alone.ids == together[row].ids
        assert alone.logprobs == pytest.approx(together[row].logprobs, abs=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_greedy_answer_is_the_librarys(backend):
    model = build()
    sampled = sampler(model, TOKENIZER, backend=backend).open(PROMPTS[:1]).generate(
        [0], Sampling(greedy=True, max_new_tokens=12), uniforms(1, 12)
    )[0]  # fmt: skip
    ids = list(PROMPTS[0])
    for token, logprob in zip(sampled.ids, sampled.logprobs, strict=True):
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        assert token == int(logprobs.argmax())
        assert logprob == pytest.approx(float(logprobs[token]), abs=1e-5)
        ids.append(token)


@pytest.mark.parametrize("backend", BACKENDS)
def test_kept_rows_go_on_and_the_others_are_gone(backend):
    chosen = sampler(build(), TOKENIZER, backend=backend)
    whole, part = chosen.open(PROMPTS, 2), chosen.open(PROMPTS, 2)
    first = Sampling(max_new_tokens=4)
    for session in (whole, part):
        session.generate(range(6), first, uniforms(6, 4))
    part.keep([4, 1])
    rows = [1, 4]
    expected, found = (each.generate(rows, first, uniforms(2, 4, 1)) for each in (whole, part))
    assert [each.ids for each in found] == [each.ids for each in expected]
    for call in (lambda: part.length(0), lambda: part.append(2, [1]), lambda: part.keep([3])):
        with pytest.raises(RunFailed, match="it has 2 rows, not"):
            call()


@pytest.mark.parametrize("backend", BACKENDS)
def test_refreshed_weights_are_used_and_old_sessions_refuse(backend):
    model = build()
    chosen = sampler(model, TOKENIZER, backend=backend)
    session = chosen.open(PROMPTS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    chosen.refresh()
    for call in (
        lambda: session.generate([0], Sampling(max_new_tokens=1), uniforms(1, 1)),
        lambda: session.append(0, [1]),
        lambda: session.keep([0]),
    ):
        with pytest.raises(RunFailed, match="open a new session"):
            call()
    (sampled,) = chosen.open(PROMPTS[:1]).generate([0], Sampling(max_new_tokens=1), uniforms(1, 1))
    with torch.no_grad():
        expected = model(torch.tensor(PROMPTS[:1])).logits[0, -1].log_softmax(-1)[sampled.ids[0]]
    assert sampled.logprobs[0] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_context_stops_a_row_and_no_other(backend):
    session = sampler(build(context=20), TOKENIZER, backend=backend).open([[1] * 17, [2] * 5])
    long, short = session.generate([0, 1], Sampling(max_new_tokens=8), np.full((2, 8), 0.4))
    assert (len(long.ids), long.stop, session.length(0)) == (3, Stop.CONTEXT, 20)
    assert (len(short.ids), short.stop) == (8, Stop.LENGTH)
    session.append(0, [3, 3])
    full, short = session.generate([0, 1], Sampling(max_new_tokens=7), np.full((2, 7), 0.4))
    assert full == ([], [], Stop.CONTEXT)
    assert (len(short.ids), short.stop) == (7, Stop.CONTEXT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_prompts_that_cannot_be_answered_are_refused(backend):
    chosen = sampler(build(context=20), TOKENIZER, backend=backend)
    with pytest.raises(ConfigError, match=r"prompts\[1\] has 20 tokens; .* context of 20: shorten it"):
        chosen.open([[1], [1] * 20])
    with pytest.raises(ConfigError, match=r"prompts\[0\] has 0 tokens"):
        chosen.open([[]])
    with pytest.raises(ConfigError, match="copies is 0"):
        chosen.open([[1]], 0)
    assert chosen.open([]).generate([], Sampling(), np.empty((0, 64))) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_that_are_nan_end_the_run_and_the_session(backend):
    model = build("qwen2")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = math.nan
    session = sampler(model, TOKENIZER, backend=backend).open([[1, 2], [3, 7]])
    with pytest.raises(RunFailed, match="row 1: the model's logits are NaN"):
        session.generate([0, 1], Sampling(), uniforms(2, 64))
    with pytest.raises(RunFailed, match="has failed"):
        session.generate([0], Sampling(), uniforms(1, 64))


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        ([0, 0], uniforms(2, 4)),
        ([3], uniforms(1, 4)),
        ([0], uniforms(2, 4)),
        ([0], uniforms(1, 5)),
        ([0], np.ones((1, 4))),
    ],
)
def test_rows_and_numbers_that_do_not_fit_are_refused(rows, numbers):
    session = sampler(build(), TOKENIZER).open(PROMPTS)
    with pytest.raises(RunFailed, match=r"rows|uniforms"):
        session.generate(rows, Sampling(max_new_tokens=4), numbers)
    assert len(session.generate([0], Sampling(max_new_tokens=4), uniforms(1, 4))) == 1


def test_sampling_uses_dropout_only_where_training_does():
    model = build()
    model.config.attention_dropout = 0.9
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    model.train()
    model.model.layers[0].eval()
    (sampled,) = sampler(model, TOKENIZER, backend="transformers").open(PROMPTS[:1]).generate(
        [0], Sampling(max_new_tokens=1), uniforms(1, 1)
    )  # fmt: skip
    assert model.training
    assert [layer.training for layer in model.model.layers] == [False, True]
    with torch.no_grad():
        expected = model.eval()(torch.tensor(PROMPTS[:1])).logits[0, -1].log_softmax(-1)[sampled.ids[0]]
    assert sampled.logprobs[0] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (
            transformers.MistralForCausalLM,
            transformers.MistralConfig(
                vocab_size=259, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, sliding_window=5, max_position_embeddings=96,
            ),
        ),
        (
            transformers.GPT2LMHeadModel,
            transformers.GPT2Config(
                vocab_size=259, n_embd=16, n_layer=2, n_head=2, n_positions=96, bos_token_id=None, eos_token_id=None
            ),
        ),
    ],
    ids=["sliding window", "learned positions"],
)  # fmt: skip
@pytest.mark.parametrize("copies", [1, 2])
def test_models_only_the_library_knows_keep_their_numbers(model_class, config, copies):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    chosen = sampler(model, TOKENIZER)
    assert isinstance(chosen.engine, generic.Engine)
    trajectories = play(chosen.open(PROMPTS, copies), PROMPTS, copies)
    for trajectory in trajectories:
        with torch.no_grad():
            logprobs = model(torch.tensor([trajectory.ids])).logits[0].log_softmax(-1)
        for t in np.flatnonzero(trajectory.mask):
            assert trajectory.logprobs[t] == pytest.approx(float(logprobs[t - 1, trajectory.ids[t]]), abs=1e-5)


def test_vllm_is_asked_for_by_its_extra():
    with pytest.raises(MissingExtra, match=r"perdure\[vllm\]"):
        sampler(build(), TOKENIZER, backend="vllm")
    with pytest.raises(ConfigError, match="backend is 'tgi'; known: auto"):
        sampler(build(), TOKENIZER, backend="tgi")


def answer(text, **options):
    """What a model that says `text` answers under `options`."""
    session = saying(text, context=400).open([[1]])
    options = {"max_new_tokens": 300, **options}
    (sampled,) = session.generate([0], Sampling(**options), uniforms(1, options["max_new_tokens"]))
    return bytes(token for token in sampled.ids if token < 256), sampled


def test_an_answer_ends_with_the_end_of_turn_token_in_it():
    said, sampled = answer(b"yes")
    assert (said, sampled.ids[-1], sampled.stop) == (b"yes", END, Stop.END)
    assert sampled.logprobs == pytest.approx([0.0] * 4, abs=1e-5)
    assert answer(b"yes", max_new_tokens=2)[1].stop == Stop.LENGTH


def test_a_stop_string_ends_the_answer_though_it_spans_tokens():
    assert answer(b"a User b User: c", stop=("User:", "zzz"))[0] == b"a User b User:"
    assert answer("Zoë für €5 und".encode(), stop=("für €",))[0] == "Zoë für €".encode()
    assert answer(b"aab", stop=("ab", "b"))[1].stop == Stop.STRING
    assert answer("é".encode(), stop=("\N{REPLACEMENT CHARACTER}",))[1].stop == Stop.END


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'So: {"a": {"b": "}"}, "c": "\\"}"} and more', b'So: {"a": {"b": "}"}, "c": "\\"}"}'),
        (b'{oops} {"a": [1, {}]} tail', b'{oops} {"a": [1, {}]}'),
        ('{"é": "€}"}}'.encode(), '{"é": "€}"}'.encode()),
        (b'{"a": NaN} {"a": 1, "a": 2} {} ', b'{"a": NaN} {"a": 1, "a": 2} {}'),
    ],
)
def test_an_answer_ends_with_its_first_json_object(text, said):
    found, sampled = answer(text, stop_json=True)
    assert (found, sampled.stop) == (said, Stop.JSON)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([*'{}[]":,\\a1 é€🙂', '{"a":', "{}", '"}', '{"é":1}'])).map("".join),
    st.sampled_from([(8192, 64, 65536), (9, 3, 65536), (9, 1, 65536), (8192, 64, 12)]),
)
def test_json_stops_at_the_first_moment_the_parser_finds_one(text, limits):
    data = text.encode()
    bytes_, depth, searched = limits
    with mock.patch.multiple(jsontext, MOST_BYTES=bytes_, MOST_DEPTH=depth, SEARCHED=searched):
        watch = stopping.Watch(stopping.Pieces(TOKENIZER), Sampling(stop_json=True))
        stops = [end for end, byte in enumerate(data, 1) if watch.add(byte)]
        found = [end for end in range(1, len(data) + 1) if jsontext.first_object(data[:end].decode("utf-8", "replace"))]
    assert stops[:1] == found[:1]


@given(st.lists(st.integers(0, 258), max_size=40))
def test_pieces_make_up_the_text_that_the_tokenizer_decodes(ids):
    pieces = stopping.Pieces(TOKENIZER)
    assert pieces.by_token
    text = TOKENIZER.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert b"".join(map(pieces.piece, ids)).decode("utf-8", "replace") == text
    assert pieces.text(ids) == text.rstrip("\N{REPLACEMENT CHARACTER}").encode()


@settings(max_examples=30)
@given(st.text(st.sampled_from('{}"a é€🙂\\'), max_size=30), st.sampled_from(["a", '"}', "€", " é", "🙂a"]))
def test_any_decoder_finds_what_bytes_find(text, stop):
    sampling = Sampling(stop=(stop,), stop_json=True)
    quick, slow = (stopping.Watch(stopping.Pieces(TOKENIZER), sampling) for _ in range(2))
    slow._pieces.by_token = False
    for byte in text.encode():
        found = quick.add(byte)
        assert slow.add(byte) == found
        if found:
            break


@pytest.mark.parametrize("unit", ["{", "[", '{"', "}", "{x}", '{"a":', "\\"])
def test_hostile_texts_are_watched_in_linear_time(unit):
    """A piece may be megabytes long, and many small ones may follow."""
    pieces = stopping.Pieces(TOKENIZER)
    pieces._known[0] = (unit * (10_000_000 // len(unit))).encode()
    watch = stopping.Watch(pieces, Sampling(stop=("never",), stop_json=True))
    assert watch.add(0) is None
    small = stopping.Watch(pieces, Sampling(stop=("never",), stop_json=True))
    for byte in (unit * 20_000).encode()[:20_000]:
        assert small.add(byte) is None


def test_an_object_beyond_the_limit_does_not_stop():
    watch = stopping.Watch(stopping.Pieces(TOKENIZER), Sampling(stop_json=True))
    long = json.dumps({"a": "x" * jsontext.MOST_BYTES}).encode()
    assert not any(map(watch.add, long))
    assert [watch.add(byte) for byte in b'{"a": 1}'][-1] == Stop.JSON
