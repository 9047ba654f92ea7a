"""A tiny tokenizer with a chat template that TRL trains tools with, a random model on disk, and two whole runs."""

import json
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No ping leaves the machine (TRL sends none where CI is set), and nothing is looked up."""
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tokenizer():
    """A byte-level BPE whose tokens cross words, so that prompts are short, with Qwen3's template from TRL."""
    import trl
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import get_json_schema

    from perdure.integrations import _environment, _tools
    from perdure.worlds.concierge.world import Concierge

    made = _environment.DriftCallToolEnv()
    names = _tools.published(_environment.DriftCallToolEnv._act)
    texts = [json.dumps(get_json_schema(getattr(made, name))) for name in sorted(names)]
    texts += [Concierge({"stage": stage}, terse=True).reset(seed=stage)[0] for stage in (1, 2)]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=special[:3], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    inner.add_tokens(special[3:])
    found = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    found.chat_template = template.read_text()
    return found


@pytest.fixture(scope="session")
def model_folder(tokenizer, tmp_path_factory):
    """A random Qwen2 model of two layers, where TRL can load both the policy and its reference from."""
    from perdure.lm.tiny import tiny_model

    folder = tmp_path_factory.mktemp("model")
    made = tiny_model(tokenizer, width=32, layers=2, heads=2, kv_heads=1, context=4096, architecture="qwen2")
    made.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def watched(load_module):
    """The module watched.py: trainers that note what they do, and those that say what the oracle says."""
    return load_module(Path(__file__).with_name("watched.py"))


@pytest.fixture
def build(watched, tokenizer, model_folder, tmp_path):
    """A trainer of a route: "tools" or "json", keywords of watched.build -> Watched."""

    def make(route, **options):
        return watched.build(route, model_folder, tokenizer, tmp_path / "run", **options)

    return make


@pytest.fixture(scope="session", params=["tools", "json"])
def runs(request, watched, tokenizer, model_folder, tmp_path_factory):
    """Ten steps of a route with a checkpoint after five, and the same from that checkpoint on: (straight, resumed)."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        made = [
            watched.build(request.param, model_folder, tokenizer, folder, save_strategy="steps", save_steps=5)
            for _ in range(2)
        ]
        made[0].train()
        made[1].train(resume_from_checkpoint=str(folder / "checkpoint-5"))
    return made
