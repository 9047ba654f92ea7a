"""The tokenizer of bytes and its round trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from perdure.core.errors import ConfigError, DataError  # noqa: E402
from perdure.lm import tokens  # noqa: E402

TOKENIZER = tokens.byte_tokenizer()


def encoded(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_ids_are_the_bytes_of_the_text_and_back(text):
    ids = TOKENIZER(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A vocabulary of four merges beside bytes and markers."""
    file = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokens.train_tokenizer(["book a cab, book 30 77 30 cabs"] * 3, 263, file)
    return tokens.load_tokenizer(file)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_learned_vocabulary_loses_nothing(learned, text):
    ids = learned(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert learned.decode(ids, clean_up_tokenization_spaces=False) == text


def test_a_learned_vocabulary_merges_what_is_frequent_and_numbers_of_dates(learned):
    assert len(learned) == 263
    assert len(encoded(learned, "book")) < 4
    thirty, seven = encoded(learned, "30"), encoded(learned, "7")
    assert len(thirty) == len(seven) == 1
    assert encoded(learned, "773077") == [*seven, *seven, *thirty, *seven, *seven], "77 is frequent, but no day or hour"
    assert encoded(learned, tokens.END) == [learned.eos_token_id]
    assert learned.pad_token_id != learned.eos_token_id


def test_a_learned_vocabulary_has_frequent_names_whole(tmp_path):
    file = tmp_path / "tokenizer.json"
    text = "payment.get_token(pickup_time_ist) TOKmo at dawn."
    tokens.train_tokenizer([text] * 9, 330, file)
    tokenizer = tokens.load_tokenizer(file)
    pieces = [tokenizer.decode([each]) for each in encoded(tokenizer, text)]
    assert pieces == ["payment.get_token", "(", "pickup_time_ist", ")", " TOK", "mo", " at", " dawn", "."]


def test_a_learned_vocabulary_is_the_same_bytes_again(tmp_path):
    texts = ["the fare is shown", "the fee is added", "thefts"] * 5
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        tokens.train_tokenizer(texts, 280, file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_is_no_vocabulary_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no room beside bytes and markers; give 260 or more"):
        tokens.train_tokenizer(["a"], 259, tmp_path / "t.json")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(DataError, match="is no tokenizer"):
        tokens.load_tokenizer(tmp_path / "broken.json")
    with pytest.raises(DataError, match="is no tokenizer"):
        tokens.load_tokenizer(tmp_path / "absent.json")
    import tokenizers

    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "bare.json"))
    with pytest.raises(DataError, match="has no token"):
        tokens.load_tokenizer(tmp_path / "bare.json")


def test_every_byte_has_its_own_character():
    characters = tokens.byte_characters()
    assert len(set(characters)) == 256
    assert (characters[0x41], characters[0x20], characters[0x0A], characters[0xAD]) == ("A", "Ġ", "Ċ", "Ń")


def test_specials_follow_the_bytes_and_padding_is_not_the_end():
    assert len(TOKENIZER) == 259
    assert encoded(TOKENIZER, "<|pad|><|im_start|><|im_end|>") == [256, 257, 258]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (256, 258)
    assert tokens.end_of_turn(TOKENIZER) == 258


def test_it_comes_back_from_a_folder_as_it_was(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = 'Zoë: {"a": [1,\n2]}<|im_end|> 🙂'
    assert encoded(loaded, text) == encoded(TOKENIZER, text) == [*'Zoë: {"a": [1,\n2]}'.encode(), 258, *" 🙂".encode()]
    assert (loaded.pad_token_id, loaded.eos_token_id, len(loaded)) == (256, 258, 259)


def test_without_the_marker_an_answer_ends_with_the_end_of_sequence():
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "</s>": 1}, merges=[]))
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert tokens.end_of_turn(plain) == 1
    plain.eos_token = None
    with pytest.raises(ConfigError, match="set its eos_token"):
        tokens.end_of_turn(plain)
