"""The critic's layer and the files it is read from."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from perdure.core.errors import ConfigError, DataError
from perdure.lm.value_head import FILES, ValueHead, head_file

WEIGHTS = {"weight": torch.tensor([[1.0, -2.0, 0.5]]), "bias": torch.tensor([0.25])}
HIDDEN = torch.tensor([[[1.0, 1.0, 2.0], [0.0, 0.5, 0.0]]])


def write(folder, name, weights):
    save_file(weights, str(folder / name)) if name.endswith("safetensors") else torch.save(weights, folder / name)


def test_it_is_one_linear_map_in_fp32(tmp_path):
    write(tmp_path, "v_head.safetensors", WEIGHTS)
    head = ValueHead(3)
    assert head.read(tmp_path)
    torch.testing.assert_close(head(HIDDEN), torch.tensor([[0.25, -0.75]]))
    half = head(HIDDEN.bfloat16())
    assert half.dtype == torch.float32
    assert half.shape == (1, 2)


def test_it_begins_at_zero_or_at_random():
    assert not ValueHead(3)(HIDDEN).any()
    torch.manual_seed(1)
    assert ValueHead(3, "default")(HIDDEN).all()
    with pytest.raises(ConfigError, match=r"value_init is 'ones'; it must be 'zeros' or 'default'"):
        ValueHead(3, "ones")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("prefix", ["", "summary.", "v_head.summary."])
def test_all_files_and_keys_are_read(tmp_path, name, prefix):
    write(tmp_path, name, {prefix + key: tensor for key, tensor in WEIGHTS.items()})
    head = ValueHead(3)
    assert head.read(tmp_path)
    torch.testing.assert_close(head.summary.weight.data, WEIGHTS["weight"])
    torch.testing.assert_close(head.summary.bias.data, WEIGHTS["bias"])


def test_the_first_of_several_files_counts(tmp_path):
    for value, name in enumerate(reversed(FILES)):
        write(tmp_path, name, {"weight": torch.full((1, 3), float(value)), "bias": torch.zeros(1)})
    assert head_file(tmp_path) == tmp_path / "v_head.safetensors"
    head = ValueHead(3)
    head.read(tmp_path)
    assert head.summary.weight[0, 0] == 3


def test_saving_writes_one_file_that_is_read_back(tmp_path):
    torch.manual_seed(2)
    head, other = ValueHead(3, "default"), ValueHead(3)
    head.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["v_head.safetensors"]
    assert load_file(str(tmp_path / "v_head.safetensors")).keys() == {"weight", "bias"}
    assert other.read(tmp_path)
    assert torch.equal(other(HIDDEN), head(HIDDEN))


def test_an_empty_folder_changes_nothing(tmp_path):
    assert head_file(tmp_path) is None
    assert not ValueHead(3).read(tmp_path)


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}, r"weight has shape \[1, 4\], the model needs \[1, 3\]"),
        ({"weight": torch.full((1, 3), torch.nan), "bias": torch.zeros(1)}, r"weight holds numbers .* not finite"),
        ({"weight": torch.zeros(1, 3)}, r"has weight; a value head has weight and bias"),
        ({"linear.weight": torch.zeros(1, 3), "linear.bias": torch.zeros(1)}, r"has linear"),
    ],
)
def test_foreign_weights_are_refused_and_change_nothing(tmp_path, weights, complaint):
    write(tmp_path, "v_head.safetensors", weights)
    head = ValueHead(3)
    with pytest.raises(DataError, match=complaint):
        head.read(tmp_path)
    assert not head(HIDDEN).any()


class Mischief:
    def __reduce__(self):
        return (pytest.fail, ("a file was executed",))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(Mischief(), "cannot be read as weights"), ([1, 2], "holds a list, not named tensors")],
    ids=["executable", "list"],
)
def test_files_of_other_things_are_refused(tmp_path, content, complaint):
    torch.save(content, tmp_path / "v_head.pt")
    with pytest.raises(DataError, match=rf"v_head\.pt {complaint}"):
        ValueHead(3).read(tmp_path)


@pytest.mark.parametrize("name", ["v_head.safetensors", "v_head.pt"])
@pytest.mark.parametrize("content", [b"", b"torn", b"PK\x03\x04torn"])
def test_damaged_files_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        ValueHead(3).read(tmp_path)
