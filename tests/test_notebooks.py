"""The notebooks run from top to bottom in an empty folder, are stored without output, and have their picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def _cells(name: str) -> list[dict[str, object]]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_stored_without_output(name: str) -> None:
    """What they show is made when the pages are; the gallery links to each, and has its picture."""
    assert not any(cell.get("outputs") for cell in _cells(name))
    gallery = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert f"({name}.ipynb)" in gallery
    assert f"../figures/{name}.png" in gallery


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs as it stands, after those above it, and the picture comes out."""
    if any("watch" in "".join(cell["source"]) for cell in _cells(name)):  # type: ignore[arg-type]
        from rhfedmtl.data.loaders import watch
        from rhfedmtl.errors import DataError

        try:
            watch.fetch()
        except DataError as error:
            pytest.skip(f"the watch data is not to be had: {error}")
    import matplotlib as mpl

    mpl.use("agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": f"notebook_{name}"}
    monkeypatch.setitem(sys.modules, f"notebook_{name}", type(sys)(f"notebook_{name}"))
    for i, cell in enumerate(_cells(name)):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}[{i}]", "exec"), names)  # type: ignore[arg-type]
    assert Path(f"{name}.png").stat().st_size > 5_000
