"""Document files: numbers, overrides, and errors that name file, line and column."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, DataError, PerdureError
from perdure.harness import load, syntax

EXPERIMENT = """\
environment: {id: perdure/cartpole}
algorithm: {name: ppo, kwargs: {learning_rate: 1e-3, hidden: [64, 64]}}
rollout:
  total_steps: 400_000
  n_envs: 16
regime:
  provider: schedule
  segments:
    - {id: earth, steps: 200_000}
    - {id: reversed, steps: 200_000, params: {force: -10.0}}
"""

LAUGHS = "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh"))
"""Lists of lists by alias: 9 ** 7 entries in 300 bytes."""


@pytest.fixture
def file(tmp_path):
    def write(text, name="experiment.yaml"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def refusal(path, *overrides, kind: type[PerdureError] = ConfigError):
    with pytest.raises(kind) as caught:
        load.experiment(path, overrides)
    message = str(caught.value)
    assert len(message.splitlines()) <= 2
    return message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.0e-3", 0.001),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("400_000", 400_000),
        ("1_0.5", 10.5),
        ("0x1F", 31),
        ("010", 10),
        ("-7", -7),
        ("true", True),
        ("yes", "yes"),
        ("off", "off"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("", None),
        ("'1e-3'", "1e-3"),
        ("e5", "e5"),
    ],
)
def test_scalars_read_as_their_author_means_them(file, text, value):
    found = load.read(file(f"key: {text}\n")).values["key"]
    assert found == value
    assert type(found) is type(value)


def test_yaml_json_and_toml_give_the_same_experiment(file):
    values = load.read(file(EXPERIMENT)).values
    toml = """
        environment.id = "perdure/cartpole"
        algorithm = {name = "ppo", kwargs = {learning_rate = 1e-3, hidden = [64, 64]}}
        rollout = {total_steps = 400_000, n_envs = 16}
        [regime]
        provider = "schedule"
        segments = [{id = "earth", steps = 200_000}, {id = "reversed", steps = 200_000, params = {force = -10.0}}]
    """
    hashes = {
        load.experiment(path).config_hash()
        for path in (
            file(EXPERIMENT),
            file(json.dumps(values, indent="\t"), "experiment.json"),
            file(toml, "experiment.toml"),
        )
    }
    assert len(hashes) == 1


def test_anchors_and_merges_work(file):
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\n"
    assert load.read(file(text)).values["other"] == {"a": 1, "b": 3}


@pytest.mark.parametrize("name", ["experiment.yaml", "experiment.json"])
def test_a_key_that_stands_twice_is_refused(file, name):
    text = '{"rollout": {"n_envs": 1},\n "run": {"seed": 1, "seed": 2}}'
    message = refusal(file(text, name))
    assert f"{name}:2:21: seed stands twice in one section" in message
    assert f"first at {file(text, name)}:2:10" in message


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("a: [1, 2\nb: 3\n", "x.yaml", "x.yaml:2:2: "),
        ("a:\n\tb: 3\n", "x.yaml", "x.yaml:2:1: "),
        ("a: &a [*a]\n", "x.yaml", "x.yaml:1:4: the alias contains itself"),
        ("a: !!python/object/apply:os.system [ls]\n", "x.yaml", "x.yaml:1:4: the tag"),
        ("a: !!python/name:os.system\n", "x.yaml", "x.yaml:1:4: could not determine a constructor"),
        ("a: &a [0, 0, 0, 0, 0, 0]\n" + LAUGHS, "x.yaml", "x.yaml holds more than 200,000 values"),
        ("1: a\n", "x.yaml", "x.yaml:1:1: the key '1' is not text"),
        ("a: 1\n---\nb: 2\n", "x.yaml", "x.yaml:2:1: "),
        ("[1, 2]\n", "x.yaml", "x.yaml holds [1, 2], not a mapping of sections"),
        ("# nothing\n", "x.yaml", "x.yaml is empty"),
        ("a: .nan\n", "x.yaml", "x.yaml:1:1: a is nan, but a document holds finite numbers"),
        ("a: \x01\n", "x.yaml", "is not allowed in YAML"),
        (b"\xff\xfe", "x.yaml", "is not UTF-8 text (byte 0)"),
        ("a: " + "[" * 5000, "x.yaml", "is nested too deeply"),
        ('{"a": 1,\n}', "x.json", "x.json:2:1: "),
        ('{"a": NaN}', "x.json", "a is nan, but a document holds finite numbers"),
        ("a = 1\na = 2\n", "x.toml", "at line 2"),
        ("a = 2024-01-01\n", "x.toml", "a is datetime.date(2024, 1, 1), a date"),
    ],
)
def test_what_is_no_document_is_named_with_its_line(file, text, name, says):
    assert says in refusal(file(text, name))


def test_a_missing_file_offers_its_neighbour(file, tmp_path):
    file(EXPERIMENT)
    assert "did you mean 'experiment.yaml'?" in refusal(tmp_path / "experment.yaml")
    assert "cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("n_envs: 16", "n_envs: many", ":5:3: rollout.n_envs is 'many'"),
        ("n_envs: 16", "n_env: 16", ":5:3: rollout.n_env (16) is not a key here; did you mean 'n_envs'?"),
        ("n_envs: 16", "seed: 16", ":5:3: rollout.seed (16) is not a key here; it belongs elsewhere: write run.seed"),
        ("provider: schedule", "provider: schedul", ":7:3: regime.provider is 'schedul'"),
        ("name: ppo", "name: pp", ":2:13: algorithm.name is 'pp'"),
        ("total_steps: 400_000", "total_steps: 400_016", ":8:3: regime.segments add up to 400000"),
    ],
)
def test_a_wrong_document_is_named_with_its_line(file, old, new, place):
    path = file(EXPERIMENT.replace(old, new))
    assert refusal(path).startswith(f"{path}{place}")


def test_overrides_are_typed_as_yaml(file):
    config = load.experiment(
        file(EXPERIMENT),
        [
            "run.seeds=[3, 4]",
            "algorithm.kwargs.learning_rate=1e-4",
            "algorithm.kwargs.feed.epochs=4",
            "regime.segments[1].params.force=-5",
            "regime.segments.0.id=home",
            "run.task=a=b",
            "rollout.window_steps=64",
        ],
    )
    assert config.run.seeds == (3, 4)
    assert config.algorithm.kwargs == {"learning_rate": 1e-4, "hidden": [64, 64], "feed": {"epochs": 4}}
    found = config.schedule()
    assert found is not None
    assert (found.segments[0].id, found.segments[1].params) == ("home", {"force": -5.0})
    assert (config.run.task, config.rollout.window_steps) == ("a=b", 64)


def test_later_overrides_win_and_the_file_is_left_alone(file):
    path = file(EXPERIMENT)
    assert load.experiment(path, ["run.seed=1", "run.seeds=[2]", "run.seed=3"]).run.seeds == (3,)
    assert path.read_text() == EXPERIMENT


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rollout.n_envs", "--set rollout.n_envs does not read path=value"),
        ("=3", "--set =3 does not read path=value"),
        ("a..b=3", "--set a..b=3 does not read path=value"),
        ("regime.segments[5].steps=1", "the list has entries [0] to [1], not 5"),
        ("rollout.n_envs.x=1", "'x' cannot be set inside 16"),
        ("rollout[0]=1", "0 cannot be set inside"),
        ("rollout.n_envs=[1", "--set rollout.n_envs=[1:1:3: "),
        ("rollout.n_envs=many", "--set rollout.n_envs=many: rollout.n_envs is 'many'"),
        ("rollout.n_env=1", "--set rollout.n_env=1: rollout.n_env (1) is not a key here; did you mean 'n_envs'?"),
        ("algorithm.kwargs.x=.inf", "is inf, but a document holds finite numbers"),
    ],
)
def test_a_wrong_override_is_named(file, override, says):
    assert says in refusal(file(EXPERIMENT), override)


def test_an_override_keeps_the_lines_of_everything_else(file):
    path = file(EXPERIMENT.replace("n_envs: 16", "n_envs: many"))
    assert refusal(path, "rollout.window_steps=7").startswith(f"{path}:5:3: rollout.n_envs")


def test_a_runs_folder_stands_for_its_document(file, tmp_path):
    config = load.experiment(file(EXPERIMENT), ["run.output_dir=elsewhere"])
    folder = tmp_path / "moved"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"config": config.resolved()}))
    again = load.experiment(folder)
    assert again.folder == folder
    assert again.config_hash() == config.config_hash()
    (folder / "run.json").write_text("{}")
    assert "holds no document" in refusal(folder, kind=DataError)


def test_sweeps_and_experiments_are_told_apart(file):
    sweep = file("base: {}\nfamilies: {ppo: {}}\n", "sweep.yaml")
    assert "run it with: perdure sweep" in refusal(sweep)
    with pytest.raises(ConfigError, match="run it with: perdure run"):
        load.sweep(file(EXPERIMENT))


def test_a_sweeps_base_may_be_a_file_beside_it(file):
    file(EXPERIMENT, "base.yaml")
    config = load.sweep(file("base: base.yaml\nfamilies: {ppo: {}}\n", "sweep.yaml"))
    assert config.base["rollout"]["n_envs"] == 16


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_what_is_written_as_yaml_reads_back_equal(values):
    assert syntax.parse_yaml(syntax.to_yaml(values), "test", {}) == values


@given(st.text(max_size=200))
def test_any_text_is_a_document_or_a_config_error(text):
    with contextlib.suppress(ConfigError):
        syntax.parse_yaml(text, "test", {})
