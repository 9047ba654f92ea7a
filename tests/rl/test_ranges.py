import pytest

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.rl import ranges


@component
class Part:
    share: float = 0.5
    count: int = 1


def test_numbers_within_their_ranges_pass_ends_included():
    for share in (0.0, 1.0):
        ranges.check(Part(share, 1), share=ranges.SHARE, count=ranges.COUNT)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Part(share=1.5), r"share is 1\.5; it lies in \[0, 1\]"),
        (Part(share=float("nan")), "share is nan"),
        (Part(count=0), "count is 0; it must be at least 1"),
    ],
)
def test_the_first_number_that_leaves_its_range_is_named(part, says):
    with pytest.raises(ConfigError, match=says):
        ranges.check(part, share=ranges.SHARE, count=ranges.COUNT)
