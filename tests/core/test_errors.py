from perdure.core import errors


def test_nearest_offers_the_closest_name():
    assert errors.nearest("learnig_rate", ["batch", "learning_rate"]) == "did you mean 'learning_rate'?"


def test_nearest_lists_what_exists_when_nothing_is_close():
    assert errors.nearest("zzz", ["sac", "ppo"]) == "known: ppo, sac"


def test_nearest_says_so_when_nothing_exists():
    assert errors.nearest("a", []) == "nothing is known here"


def test_a_missing_extra_is_an_import_error_that_names_the_command():
    error = errors.MissingExtra("matplotlib", "report")
    assert isinstance(error, ImportError)
    assert isinstance(error, errors.PerdureError)
    assert str(error) == "matplotlib is not installed; install it with: pip install 'perdure[report]'"


def test_only_a_run_that_broke_exits_with_one():
    kinds = [errors.ConfigError, errors.UnknownName, errors.MissingExtra, errors.Refused, errors.DataError]
    assert {kind.exit_code for kind in kinds} == {2}
    assert errors.RunFailed.exit_code == 1


def test_nearest_lists_only_so_many_names():
    listed = errors.nearest("zzz", [f"{number:03}" for number in range(100)])
    assert listed.endswith(f"039 and {100 - errors.MOST_LISTED} more")


def test_a_strangers_exception_is_told_in_one_line():
    assert errors.told(OSError("  first\nsecond")) == "OSError: first"
    assert errors.told(KeyError()) == "KeyError"
