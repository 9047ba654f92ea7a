"""Tasks by split and number."""

import pytest

from perdure.core.errors import ConfigError
from perdure.serving import tasks
from perdure.worlds.concierge.tasks import STAGE_BASE


def test_numbers_run_through_the_stages():
    first, last = tasks.task("train", 0), tasks.task("train", tasks.count("train") - 1)
    assert first == ("train-0", "train", 0, 1, STAGE_BASE[1], 8)
    assert (last.stage, last.seed, last.max_turns) == (3, STAGE_BASE[3] + 899_999, 16)
    assert [tasks.task("probe", index)[3:] for index in (199, 200)] == [(1, 20_000_249, 8), (2, 20_000_050, 12)]
    assert [tasks.count(name) for name in ("train", "validation", "probe")] == [2_700_000, 150, 600]


def test_no_seed_stands_in_two_splits():
    seeds = {name: [each for chosen in stages.values() for each in chosen] for name, stages in tasks.SEEDS.items()}
    assert not set(seeds["validation"]) & set(seeds["probe"])
    assert len(set(seeds["train"])) == 2_700_000
    assert max(seeds["train"]) < min(seeds["validation"] + seeds["probe"])


def test_ranges_count_as_slices_do_and_end():
    def indices(*bounds):
        return [each["index"] for each in tasks.between("validation", *bounds)]

    assert indices() == list(range(150))
    assert indices(3, 6) == [3, 4, 5]
    assert indices(-2) == [148, 149]
    assert indices(140, 10**9) == list(range(140, 150))
    assert len(tasks.between("train")) == tasks.MOST_LISTED
    assert tasks.between("train", 10**9) == []


@pytest.mark.parametrize("index", [-1, 150, 10**9])
def test_numbers_beyond_the_split(index):
    with pytest.raises(IndexError, match="validation has the tasks 0 to 149"):
        tasks.task("validation", index)


def test_splits_that_there_are_not():
    with pytest.raises(ConfigError, match="split is 'valid'; did you mean 'validation'"):
        tasks.count("valid")
    assert {each["type"] for each in tasks.splits()} == {"train", "validation", "test"}
