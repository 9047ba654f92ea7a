"""LanguagePolicy: what it says, records, forgets, saves, and how it is found by name."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from perdure.core.errors import ConfigError, DataError
from perdure.lm import forward
from perdure.lm.factory import language_policy
from perdure.lm.hooks import Hooks
from perdure.lm.policy import LanguagePolicy
from perdure.lm.prompts import PromptBuilder
from perdure.lm.sampling import Sampling
from perdure.lm.tiny import tiny_model
from perdure.lm.tokens import byte_tokenizer

SIZES = {"width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "context": 96}


def step(policy, number, *, lane=0, reward=0.0, terminated=False, truncated=False, following="next"):
    """Tell the policy what came of its last answer, as the collector does."""
    policy.record(
        SimpleNamespace(
            step=number,
            lane=lane,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=following,
            info={},
        )
    )


def tiny(**options):
    options = {"tiny": SIZES, "max_new_tokens": 6, **options}
    return language_policy("perdure/tiny", **options)


def chosen(recorded):
    return [token for token, mine in zip(recorded.ids, recorded.mask, strict=True) if mine]


# What is said


def test_an_answer_is_its_json_object_or_its_words():
    assert LanguagePolicy.parse('so: {"a": [1]}') == {"a": [1]}
    assert LanguagePolicy.parse("so") == "so"


def test_the_answer_is_the_text_of_the_recorded_tokens(letters):
    policy = letters.policy()
    action = policy.act("letter 3?")
    (recorded,) = policy.take_generated()
    assert policy.parse(policy.chat.decode(chosen(recorded))) == action
    assert recorded.ids[: -len(chosen(recorded))] == policy.chat.prompt([{"role": "user", "content": "letter 3?"}])


def test_the_recorded_log_probabilities_are_the_trainers(letters):
    policy = letters.policy(sampling=Sampling(temperature=0.7, max_new_tokens=6))
    policy.act_batch(["a", "letter 12?"])
    step(policy, 0, lane=0)
    step(policy, 1, lane=1)
    policy.act_batch(["b", "letter 1?"])
    rows = policy.take_generated()
    padded = forward.pad(rows, policy.chat.pad_id)
    scores = forward.score(policy.model, padded.ids_BT, padded.lengths_B, temperature=0.7)
    expected = torch.where(padded.mask_BT, scores.logprobs_BT, 0.0)
    torch.testing.assert_close(padded.logprobs_BT, expected.detach(), atol=1e-5, rtol=0)


def test_neither_batching_nor_the_number_of_lanes_changes_an_answer(letters):
    one, three = letters.policy(), letters.policy()
    for turn in range(3):
        assert one.act_batch([f"a{turn}"]) == three.act_batch([f"a{turn}", f"bcd{turn}", f"e{turn}"])[:1]
        step(one, turn)
        for lane in range(3):
            step(three, turn, lane=lane, terminated=lane == 1)


def test_lanes_and_turns_draw_different_numbers(letters):
    policy = letters.policy(conversation="fresh")
    said = [tuple(policy.act_batch(["a", "a"])) for _ in range(3)]
    assert len({answer for pair in said for answer in pair}) > 3


def test_a_seed_begins_the_draws_anew(letters):
    policy = letters.policy(conversation="fresh")
    policy.seed(5)
    first = [policy.act("a") for _ in range(3)]
    policy.seed(5)
    assert [policy.act("a") for _ in range(3)] == first
    policy.seed(6)
    assert [policy.act("a") for _ in range(3)] != first


def test_the_answers_log_probability_is_told(letters):
    policy = letters.policy()
    _, thought = policy.act_with_info("a")
    (recorded,) = policy.take_generated()
    assert thought == {"logprob": pytest.approx(sum(recorded.logprobs))}


def test_the_effective_rank_is_that_of_the_last_hidden_states(letters):
    policy = letters.policy(capture_effective_rank=True)
    _, thought = policy.act_with_info("a")
    (recorded,) = policy.take_generated()
    with torch.no_grad():
        hidden = policy.model.model(torch.tensor([recorded.ids])).last_hidden_state[0]
    shares = torch.linalg.svdvals(hidden.double())
    shares = shares / shares.sum()
    assert thought["effective_rank"] == pytest.approx(float((-(shares * shares.log()).sum()).exp()), rel=1e-4)
    assert "effective_rank" not in letters.policy().act_with_info("a")[1]


@pytest.mark.parametrize(("parsed", "action"), [(True, {"a": 1}), (False, '{"a": 1}')])
def test_actions_may_stay_text(letters, monkeypatch, parsed, action):
    policy = letters.policy(parse_actions=parsed)
    monkeypatch.setattr(policy.chat, "decode", lambda ids: '{"a": 1}')
    assert policy.act("a") == action
    assert policy.act_greedy("a") == action


# What is recorded


def test_within_an_episode_tokens_are_only_appended(letters):
    policy = letters.policy(context=200)
    policy.act("one")
    step(policy, 0, reward=0.5)
    opened = list(policy._lanes[0].trajectory.ids)
    policy.act("two")
    step(policy, 1, reward=1.0, terminated=True)
    (recorded,) = policy.take_generated()
    assert recorded.ids[: len(opened)] == opened
    first, second = recorded.turns
    assert recorded.ids[first.end : second.start] == policy.chat.following("two", ended=first.stop == "end")
    assert [turn.reward for turn in recorded.turns] == [0.5, 1.0]
    assert [turn.step for turn in recorded.turns] == [0, 1]
    assert recorded.terminated
    assert not recorded.truncated
    said = [position for turn in recorded.turns for position in range(turn.start, turn.end)]
    assert np.flatnonzero(recorded.mask).tolist() == said


def test_an_episodes_end_begins_a_new_trajectory(letters):
    policy = letters.policy()
    policy.act("one")
    step(policy, 0, truncated=True)
    policy.act("two")
    first, second = policy.take_generated()
    assert first.truncated
    assert second.ids[: second.turns[0].start] == policy.chat.prompt([{"role": "user", "content": "two"}])


def test_taking_returns_and_clears_and_what_was_taken_becomes_context(letters):
    policy = letters.policy(context=200)
    policy.act("one")
    step(policy, 0)
    (first,) = policy.take_generated()
    assert policy.take_generated() == []
    policy.act("two")
    (second,) = policy.take_generated()
    assert second.ids[: len(first)] == first.ids
    assert not any(second.mask[: len(first)])
    assert not any(second.logprobs[: len(first)])
    assert len(second.turns) == 1


def test_fresh_prompts_are_trajectories_of_one_turn(letters):
    policy = letters.policy(preset="reference")
    policy.act("one")
    step(policy, 0)
    policy.act("two")
    first, second = policy.take_generated()
    assert second.ids[: second.turns[0].start] == policy.chat.prompt([{"role": "user", "content": "two"}])
    assert len(first.turns) == len(second.turns) == 1


def test_a_full_context_goes_on_in_a_new_prompt_of_the_last_turns():
    policy = tiny(context_turns=1, system="s")
    seen, rows = [], []
    for turn in range(5):
        policy.act(f"observation {turn}")
        step(policy, turn)
        seen.append(f"observation {turn}")
    rows = policy.take_generated()
    assert len(rows) > 1
    assert sum(len(row.turns) for row in rows) == 5
    assert all(len(row) <= 96 for row in rows)
    opening = policy.chat.decode(rows[1].ids[: rows[1].turns[0].start])
    again = len(rows[0].turns)
    assert seen[again] in opening
    assert seen[again - 1] in opening
    assert policy.chat.decode(chosen(rows[0])[-6:]) in opening
    assert again < 2 or seen[again - 2] not in opening


def test_memory_that_does_not_fit_is_shortened_and_a_prompt_that_does_not_is_refused():
    policy = tiny(context_turns=9)
    for turn in range(12):
        policy.act("x" * 20)
        step(policy, turn)
    with pytest.raises(ConfigError, match=r"a prompt has \d+ tokens, the model's context 96; shorten the observation"):
        policy.act("x" * 200)


def test_the_session_is_kept_while_no_conversation_begins(letters):
    policy = letters.policy(context=200)
    opened = []
    open_session = policy.sampler.open
    policy.sampler.open = lambda prompts, copies=1: opened.append(prompts) or open_session(prompts, copies)
    for turn in range(3):
        policy.act_batch(["a", "b"])
        for lane in range(2):
            step(policy, turn, lane=lane, terminated=turn == 1 and lane == 1)
    assert [len(prompts) for prompts in opened] == [2, 2]
    policy.refresh()
    policy.act_batch(["a", "b"])
    assert len(opened) == 3
    assert policy.version == 1


def test_new_weights_speak_after_a_refresh(letters):
    policy = letters.policy(conversation="fresh")
    policy.act("a")
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(-3)
    policy.refresh()
    policy.take_generated()
    policy.act("a")
    (recorded,) = policy.take_generated()
    padded = forward.pad([recorded], 0)
    scores = forward.score(policy.model, padded.ids_BT, padded.lengths_B)
    expected = torch.where(padded.mask_BT, scores.logprobs_BT, 0.0)
    torch.testing.assert_close(padded.logprobs_BT, expected.detach(), atol=1e-5, rtol=0)
    assert recorded.version == 1


# Evaluation


def test_greedy_answers_record_nothing_and_draw_nothing(letters):
    policy, other = letters.policy(context=200), letters.policy(context=200)
    policy.act("one")
    other.act("one")
    step(policy, 0)
    step(other, 0)
    policy.begin_episode()
    greedy = [policy.act_greedy("one"), policy.act_greedy("again")]
    policy.begin_episode()
    assert [policy.act_greedy("one"), policy.act_greedy("again")] == greedy
    assert policy.act("two") == other.act("two")
    assert policy.take_generated() == other.take_generated()
    assert policy.state_dict() == other.state_dict()


def test_a_greedy_answer_is_the_likeliest_one(letters):
    policy = letters.policy(parse_actions=False)
    ids = policy.chat.prompt([{"role": "user", "content": "one"}])
    said = []
    for _ in range(6):
        said.append(int(policy.forward(ids + said).logits_BV[0].argmax()))
        if said[-1] == policy.chat.eos_id:
            break
    assert policy.act_greedy("one") == policy.chat.decode(said)


# The state


def test_a_policy_goes_on_from_its_state(letters):
    policy, other = letters.policy(context=200), letters.policy(context=200)
    policy.act_batch(["a", "b"])
    step(policy, 0, lane=0)
    step(policy, 1, lane=1, terminated=True)
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert other.act_batch(["c", "d"]) == policy.act_batch(["c", "d"])
    assert other.take_generated() == policy.take_generated()
    with pytest.raises(DataError, match=r"a policy's state has \['a'\]"):
        policy.load_state_dict({"a": 1})


def test_forward_gives_logits_and_value_of_the_last_token(letters):
    policy = letters.policy(value_init="default")
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    found = policy.forward(ids)
    with torch.no_grad():
        hidden = policy.model.model(ids).last_hidden_state[:, -1]
        logits = policy.model(ids).logits[:, -1]
    torch.testing.assert_close(found.logits_BV, logits)
    torch.testing.assert_close(found.values_B, policy.value_head(hidden))
    assert found.values_B.requires_grad
    torch.testing.assert_close(policy.forward([5, 6, 7]).values_B, found.values_B[:1])


def test_presets_choose_what_is_not_said(letters):
    corrected, reference = letters.policy(), letters.policy(preset="reference")
    assert (corrected.conversation, reference.conversation) == ("append", "fresh")
    assert not corrected.value_head.summary.weight.any()
    assert reference.value_head.summary.weight.all()
    assert letters.policy(preset="reference", conversation="append").conversation == "append"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"preset": "refrence"}, r"preset is 'refrence'; did you mean 'reference'"),
        ({"conversation": "long"}, r"conversation is 'long'; it must be 'append' or 'fresh'"),
        ({"value_init": "ones"}, r"value_init is 'ones'"),
    ],
)
def test_unknown_choices_are_refused(letters, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        letters.policy(**options)


def test_a_tokenizer_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="embeds 100 tokens"):
        LanguagePolicy(tiny_model(100, **SIZES), byte_tokenizer())


def test_json_open_ids_see_through_word_marks(letters):
    policy = letters.policy()
    assert policy.json_open_ids == {ord("{")}
    vocabulary = {"{": 1, "Ġ{": 2, "▁{": 3, '{"': 4, "ĊĠ{": 5, "a{": 6, "Ġ": 7, "}": 8}
    other = letters.policy()
    other.tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary)
    assert other.json_open_ids == {1, 2, 3, 4}


# Hooks


class Told(Hooks):
    name = "told"

    def __init__(self):
        self.seen, self.came = [], []

    def see(self, observation, lane=0):
        self.seen.append((observation, lane))

    def prefix(self, lane=0):
        return f"[{len(self.seen)}]"

    def observe(self, observation, reward, info, lane=0, *, ended):
        self.came.append((observation, reward, lane, ended))


def test_hooks_see_observations_before_they_open_the_prompt(letters):
    policy, hook = letters.policy(), Told()
    policy.attach([hook, Hooks()])
    policy.act("one")
    step(policy, 0, reward=2.0, truncated=True)
    assert hook.seen == [("one", 0)]
    assert hook.came == [("next", 2.0, 0, True)]
    (recorded,) = policy.take_generated()
    assert "[1]\none" in policy.chat.decode(recorded.ids)


def test_the_policys_own_prefix_comes_first():
    tokenizer = byte_tokenizer()
    prompts = PromptBuilder(prefix_provider=lambda lane: "own")
    policy = LanguagePolicy(tiny_model(tokenizer, **SIZES), tokenizer, prompts=prompts)
    policy.attach([Told()])
    assert policy.prompts.text("x") == "own\n[0]\nx"


# Files and names


def test_a_checkpoint_holds_model_tokenizer_and_value_head(tmp_path):
    policy = tiny(value_init="default", seed=3)
    policy.save(tmp_path)
    assert (tmp_path / "v_head.safetensors").is_file()
    again = LanguagePolicy.from_checkpoint(tmp_path, sampling=Sampling(max_new_tokens=6))
    assert again.loaded_value_head
    ids = [1, 2, 3]
    for ours, theirs in zip(policy.forward(ids), again.forward(ids), strict=True):
        assert torch.equal(ours, theirs)
    again.seed(3)
    assert again.act("letter?") == policy.act("letter?")


def test_an_adapter_is_saved_without_its_base_and_found_again(tmp_path):
    policy = tiny(lora={"r": 2, "target": ["q_proj", "v_proj"]}, seed=4)
    trained = [name for name, each in policy.model.named_parameters() if each.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    with torch.no_grad():
        for name, each in policy.model.named_parameters():
            if "lora_B" in name:
                each.add_(0.3)
    policy.save(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    again = LanguagePolicy.from_checkpoint(tmp_path)
    ids = [1, 2, 3]
    assert torch.equal(policy.forward(ids).logits_BV, again.forward(ids).logits_BV)
    assert [name for name, each in again.model.named_parameters() if each.requires_grad] == trained
    named = language_policy(tmp_path)
    assert torch.equal(policy.forward(ids).logits_BV, named.forward(ids).logits_BV)
    with pytest.raises(ConfigError, match="holds an adapter already"):
        language_policy(tmp_path, lora={})


def test_an_adapter_of_a_relative_base_is_found_from_another_working_directory(tmp_path, monkeypatch):
    language_policy("perdure/tiny", tiny={"width": 16, "layers": 1, "heads": 2, "kv_heads": 1}).save(tmp_path / "base")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    language_policy("base", lora={"r": 2}).save(tmp_path / "adapter")
    monkeypatch.chdir(tmp_path / "elsewhere")
    language_policy(tmp_path / "adapter")


def test_an_adapter_finds_its_base_in_the_folder_that_it_names(tmp_path):
    tiny(seed=1).save(tmp_path / "base")
    policy = language_policy(tmp_path / "base", lora={"r": 2}, seed=2)
    with torch.no_grad():
        next(each for name, each in policy.model.named_parameters() if "lora_B" in name).fill_(0.5)
    policy.save(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "perdure.json").exists()
    again = LanguagePolicy.from_checkpoint(tmp_path / "adapter")
    assert torch.equal(policy.forward([1, 2]).logits_BV, again.forward([1, 2]).logits_BV)


def test_a_folder_without_value_head(tmp_path):
    policy = tiny()
    policy.save(tmp_path)
    (tmp_path / "v_head.safetensors").unlink()
    assert not policy.load_value_head(tmp_path)
    assert not policy.loaded_value_head
    with pytest.raises(DataError, match=r"has no value head \(v_head.safetensors"):
        LanguagePolicy.from_checkpoint(tmp_path)
    assert not LanguagePolicy.from_checkpoint(tmp_path, value_head="fresh").loaded_value_head
    assert language_policy(tmp_path).without_value_head == str(tmp_path)
    assert language_policy(tmp_path, value_head="fresh").without_value_head is None
    with pytest.raises(DataError, match="has no value head"):
        language_policy(tmp_path, value_head="required")
    with pytest.raises(ConfigError, match=r"value_head is 'old'"):
        LanguagePolicy.from_checkpoint(tmp_path, value_head="old")


def test_the_seed_is_all_that_tells_tiny_policies_apart():
    one, same, other = tiny(seed=1, lora={}), tiny(seed=1, lora={}), tiny(seed=2, lora={})
    for (name, a), b, c in zip(one.model.named_parameters(), same.model.parameters(), other.model.parameters()):
        assert torch.equal(a, b), name
        assert a.ndim < 2 or "lora_B" in name or not torch.equal(a, c), name


def test_the_global_generator_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    tiny(lora={}, value_init="zeros")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name_or_path": "gpt2"}, r"name_or_path is 'gpt2', which is no folder here; nothing is downloaded"),
        ({"temprature": 1.0}, r"policy.kwargs.temprature is not a key here; did you mean 'temperature'"),
        ({"temperature": 0.0}, r"temperature is 0.0"),
        ({"top_k": "3"}, r"policy.kwargs.top_k is '3'"),
        ({"tiny": {"widht": 3}}, r"tiny holds \['widht'\]"),
        ({"tiny": {"tokenizer": 3}}, r"tiny\.tokenizer is 3; it is the path"),
        ({"lora": {"rank": 3}}, r"policy.kwargs.lora.rank is not a key here"),
        ({"lora": {"r": 0}}, r"r is 0; an adapter's rank is at least 1"),
        ({"lora": {"target": ["nothing"]}}, r"lora.target is \('nothing',\)"),
        ({"value_head": "required"}, r"perdure/tiny has no value head"),
    ],
)
def test_unusable_options_are_refused(options, complaint):
    with pytest.raises((ConfigError, DataError), match=complaint):
        language_policy(**options)


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no model and tokenizer"):
        language_policy(tmp_path)
    with pytest.raises(ConfigError, match="it sizes perdure/tiny alone"):
        language_policy(tmp_path, tiny=SIZES)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match="names no base model"):
        language_policy(tmp_path)
