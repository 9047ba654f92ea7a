"""The exceptions a user can meet: each names the place, the value and the remedy.

PerdureError (exit code 2: the user can mend it)
├── ConfigError            a document, key, type or value is wrong
│   └── UnknownName        a name that nothing is registered under
├── MissingExtra           an optional library is not installed (also ImportError)
├── Refused                two parts that cannot work together
├── DataError              a file, trace, checkpoint or bundle cannot be used
└── RunFailed              a run broke while running (exit code 1)
"""

import difflib
from collections.abc import Iterable

MOST_LISTED = 40
"""Names that a message lists at most."""


class PerdureError(ValueError):
    """Anything perdure refuses; the message says where, what and how to mend it."""

    exit_code = 2


class ConfigError(PerdureError):
    """A document, key, type or value that cannot be used."""


class UnknownName(ConfigError):
    """A name nothing is registered under; the message offers the nearest ones."""


class MissingExtra(PerdureError, ImportError):
    """An optional library is absent; the message names the pip extra that brings it."""

    def __init__(self, library: str, extra: str):
        super().__init__(f"{library} is not installed; install it with: pip install 'perdure[{extra}]'")
        self.library, self.extra = library, extra


class Refused(PerdureError):
    """Parts that cannot work together, with every offender and its reason."""


class DataError(PerdureError):
    """A file on disk that is damaged, foreign or missing."""


class RunFailed(PerdureError):
    """A run that broke after it had started; what was written before stays readable."""

    exit_code = 1


def told(error: BaseException) -> str:
    """What a stranger's exception says, in one line: its type and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def refuse_other_than_whole(name: str, value: object, least: int) -> None:
    """ConfigError, naming the option, for a value that is no whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}; it is a whole number, {least} or more")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt `name`: "did you mean 'x'?" or the list of what exists."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    listed = ", ".join(known[:MOST_LISTED]) + (
        f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
    )
    return f"known: {listed}" if known else "nothing is known here"
