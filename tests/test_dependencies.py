"""Every dependency has a lower bound, and the constraints file names versions within the bounds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TERMINAL = tomllib.loads((ROOT / "terminal" / "pyproject.toml").read_text())["project"]
SHIPPED = ("frames", "parquet", "onnx", "plot", "tensorboard", "mlflow", "ray", "dashboard", "deploy")
"""Extras that the constraints file covers."""


def requirements() -> list[Requirement]:
    """Return the requirements of the package and its extras."""
    texts = [*PROJECT["dependencies"], *TERMINAL["dependencies"]]
    texts += [text for extra in SHIPPED for text in PROJECT["optional-dependencies"][extra]]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_a_dependency_has_a_lower_bound_and_a_version_in_the_constraints(requirement: Requirement) -> None:
    """The version lies within the bounds."""
    assert any(bound.operator in (">=", "==") for bound in requirement.specifier)
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line)
    assert requirement.specifier.contains(versions[requirement.name.lower()])


def test_the_wire_code_runs_on_the_lowest_protobuf() -> None:
    """Generated code runs on its own version of protobuf, on later versions, and on the next major version."""
    source = (ROOT / "src" / "rhfedmtl" / "deploy" / "wire" / "wire_pb2.py").read_text()
    found = re.search(r"Protobuf Python Version: ([\d.]+)", source)
    assert found is not None
    generated = Version(found[1])
    for requirement in requirements():
        if requirement.name == "protobuf":
            bounds = {bound.operator: Version(bound.version) for bound in requirement.specifier}
            assert generated <= bounds[">="]
            assert bounds["<"].major <= generated.major + 2
