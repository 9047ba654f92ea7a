"""What every test shares: property tests draw the same examples each time, with no deadline, since cores are shared."""

import sys

import hypothesis
import pytest

from perdure import cli

hypothesis.settings.register_profile("perdure", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("perdure")


@pytest.fixture
def perdure_command(monkeypatch, capsys):
    """Run the command line in this process: arguments -> (exit code, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["perdure", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return caught.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def refusal(perdure_command):
    """What a command says as it refuses: arguments -> its one line, without "error: "."""

    def run(*arguments, code=2):
        found, out, err = perdure_command(*arguments)
        assert (found, out) == (code, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err.removeprefix("error: ").rstrip("\n")

    return run
