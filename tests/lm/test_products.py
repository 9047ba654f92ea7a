"""The decoder's matrices multiply alike however they are laid out."""

import pytest

torch = pytest.importorskip("torch")

from perdure.lm import products  # noqa: E402

BLOCKS = pytest.mark.skipif(
    not products.can_block(torch.device("cpu"), torch.float32), reason="oneDNN does not multiply by blocks here"
)


@pytest.mark.parametrize("kind", [pytest.param(products.Blocked, marks=BLOCKS), products.Plain])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_is_that_of_the_matrix(kind, rows, biased, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 1 if kind is products.Blocked else 10**9)
    matrix, bias = torch.randn(7, 3), torch.randn(7) if biased else None
    x, total = torch.randn(rows, 3), torch.randn(rows, 7)
    found = products.product(matrix, bias, torch.float32)
    assert isinstance(found, kind)
    expected = torch.nn.functional.linear(x, matrix, bias)
    with torch.inference_mode():
        torch.testing.assert_close(found(x), expected)
        torch.testing.assert_close(found.add_to(total.clone(), x), total + expected)


def test_a_product_is_a_copy():
    matrix, bias = torch.ones(7, 3), torch.ones(7)
    found = products.product(matrix, bias, torch.float32)
    matrix.zero_()
    bias.zero_()
    assert found(torch.ones(1, 3)).tolist() == [[4.0] * 7]


@BLOCKS
def test_only_large_matrices_have_a_layout_of_their_own():
    assert isinstance(products.product(torch.ones(512, 512), None, torch.float32), products.Blocked)
    assert isinstance(products.product(torch.ones(512, 511), None, torch.float32), products.Plain)
    assert isinstance(products.product(torch.ones(512, 512), None, torch.float16), products.Plain)
