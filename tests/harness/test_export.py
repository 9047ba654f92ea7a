import json
import pickle

import gymnasium
import numpy as np
import pytest

from perdure.core import arrays
from perdure.core.errors import DataError, PerdureError
from perdure.core.records import Spec
from perdure.harness import checkpoint, export
from perdure.harness.run import execute


@pytest.fixture(scope="module")
def finished(fake, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    execute(fake.job(folder))
    return folder


@pytest.fixture
def bundle(fake, finished, tmp_path):
    learner = fake.FakeLearner()
    learner.init((0, 3))
    spec = Spec((4,), 2, False, (-1.0, -2.0), (1.0, 2.0))
    return export.export_run(finished, learner, tmp_path / "bundle", spec=spec)


def relist(bundle, **files):
    """Rewrite bundle.json to list `files` too, as an attacker could."""
    index = json.loads((bundle / "bundle.json").read_text())
    index["files"].update(files)
    (bundle / "bundle.json").write_text(json.dumps(index))


def test_a_bundle_verifies_and_loads(bundle):
    assert export.verify(bundle) == []
    loaded = export.load_bundle(bundle)
    assert loaded.manifest["algorithm_id"] == "fake"
    assert loaded.manifest["steps"] == 1000
    assert loaded.regimes["origins"] == {"earth": "earth", "moon": "moon", "earth_again": "earth"}
    assert loaded.spaces["action"] == {
        "kind": "box",
        "shape": [2],
        "dtype": "float32",
        "low": [-1.0, -2.0],
        "high": [1.0, 2.0],
    }
    with np.load(loaded.policy / "weights.npz") as weights:
        assert weights["sums"].shape == (2,)
    assert "earth_again (= earth)" in (bundle / "README.md").read_text()


def test_the_newest_checkpoint_is_exported(bundle, finished):
    state = json.loads((checkpoint.newest(finished) / "state.json").read_text())
    with np.load(bundle / "policy" / "weights.npz") as weights:
        assert weights["sums"].tolist() == state["sums"]


def test_a_folder_that_holds_something_is_not_overwritten(bundle, finished, fake):
    with pytest.raises(DataError, match="not empty"):
        export.export_run(finished, fake.FakeLearner(), bundle)
    assert export.verify(bundle) == []


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda b: (b / "policy/weights.npz").write_bytes(b"x"), "policy/weights.npz was altered"),
        (lambda b: (b / "policy/weights.npz").unlink(), "policy/weights.npz is missing"),
        (lambda b: (b / "policy/extra.npz").write_bytes(b"x"), "policy/extra.npz is not listed"),
        (lambda b: (b / "bundle.json").write_text("{"), "is not JSON"),
        (lambda b: (b / "bundle.json").unlink(), "bundle.json is missing"),
        (lambda b: (b / "bundle.json").write_text('{"format": "x/9"}'), "has format 'x/9'"),
        (lambda b: relist(b, **{"../../etc/passwd": "0"}), "'../../etc/passwd', which leads out"),
        (lambda b: relist(b, **{"/etc/passwd": "0"}), "'/etc/passwd', which leads out"),
        (lambda b: relist(b, **{"policy/../../x": "0"}), "which leads out"),
        (lambda b: relist(b, **{"C:\\x": "0"}), "which leads out"),
        (lambda b: (b / "policy/link").symlink_to("/etc/passwd"), "policy/link is a link"),
    ],
)
def test_every_harm_is_found(bundle, harm, problem):
    harm(bundle)
    problems = export.verify(bundle)
    assert len(problems) >= 1
    assert any(problem in found for found in problems)
    with pytest.raises(DataError, match="not a whole bundle"):
        export.load_bundle(bundle)


def test_a_file_behind_a_linked_folder_is_refused_even_if_its_hash_is_right(bundle, tmp_path):
    outside = tmp_path / "outside"
    (bundle / "policy").rename(outside)
    (bundle / "policy").symlink_to(outside)
    assert any("behind a link" in problem for problem in export.verify(bundle))


class _Writes:
    def __init__(self, write):
        self.save_checkpoint = write


ENV = gymnasium.Env()
ENV.observation_space = gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(0, 1, (2,)), "t": gymnasium.spaces.Text(5)})
ENV.action_space = gymnasium.spaces.Tuple([gymnasium.spaces.MultiBinary(3), gymnasium.spaces.MultiDiscrete([2, 3])])


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: (folder / "w.pt").write_bytes(pickle.dumps({"a": 1})),
        lambda folder: np.save(folder / "w.npy", np.array([{}], dtype=object), allow_pickle=True),
        lambda folder: np.savez(folder / "w.npz", a=np.array([{}], dtype=object)),
        lambda folder: np.savez(folder / "w.npz", a=np.array([(1, {})], dtype=[("n", int), ("o", object)])),
    ],
)
def test_pickle_is_refused_whatever_its_dress(tmp_path, write):
    with pytest.raises(DataError, match="holds pickle"):
        export.export_bundle(tmp_path / "bundle", ENV, _Writes(write), {})
    assert list(tmp_path.iterdir()) == []


def test_pickle_slipped_in_later_is_found(bundle):
    (bundle / "policy" / "w.bin").write_bytes(pickle.dumps([1]))
    relist(bundle, **{"policy/w.bin": arrays.sha256(bundle / "policy" / "w.bin")})
    assert export.verify(bundle) == ["policy/w.bin holds pickle; weights are npz, safetensors or JSON"]


def test_a_third_party_algorithm_is_exported_with_its_spaces(tmp_path):
    algorithm = _Writes(lambda folder: np.savez(folder / "w.npz", a=np.zeros(2)))
    run = {"algorithm_id": "mine", "task": "t", "config": {"a": {"b": 1}}, "seeds": [0]}
    bundle = export.load_bundle(export.export_bundle(tmp_path / "bundle", ENV, algorithm, run))
    assert bundle.config == {"a": {"b": 1}}
    assert bundle.spaces["observation"]["spaces"]["x"] == {
        "kind": "box",
        "shape": [2],
        "dtype": "float32",
        "low": 0.0,
        "high": 1.0,
    }
    assert [space["kind"] for space in bundle.spaces["action"]["spaces"]] == ["multi_binary", "multi_discrete"]


def test_weights_kept_elsewhere_are_only_described(tmp_path):
    algorithm = _Writes(lambda folder: (folder / "w").write_text("heavy"))
    external = {"uri": "s3://bucket/w", "sha256": "00"}
    path = export.export_bundle(tmp_path / "bundle", ENV, algorithm, {}, external)
    assert export.load_bundle(path).manifest["external"] == external
    assert not any((path / "policy").iterdir())
    with pytest.raises(PerdureError, match="uri and sha256, not by url"):
        export.export_bundle(tmp_path / "other", ENV, algorithm, {}, {"url": "x"})


def test_an_unbounded_box_has_null_bounds():
    from perdure.harness import spaces

    assert spaces.as_json(gymnasium.spaces.Box(-np.inf, np.inf, (3,)))["low"] is None
    low = np.array([0.0, -np.inf], np.float32)
    assert spaces.as_json(gymnasium.spaces.Box(low, np.inf, (2,)))["low"] == [0.0, None]


def test_a_listed_archive_that_is_damaged_is_named(bundle):
    file = bundle / "policy" / "w.npz"
    np.savez(file, x=np.arange(1000.0))
    content = bytearray(file.read_bytes())
    content[:30] = bytes(30)
    file.write_bytes(content)
    relist(bundle, **{"policy/w.npz": arrays.sha256(file)})
    (problem,) = export.verify(bundle)
    assert problem.startswith("w.npz is an archive that cannot be read")


def test_a_name_that_no_disk_can_hold_is_a_problem_and_no_crash(bundle):
    relist(bundle, **{"x" * 5_000: "0"})
    (problem,) = export.verify(bundle)
    assert problem.endswith("cannot be read: File name too long")


def test_what_is_no_folder_is_no_bundle(tmp_path):
    (tmp_path / "file").write_text("")
    assert export.verify(tmp_path / "file")[0].endswith("cannot be read (Not a directory); check the path")
