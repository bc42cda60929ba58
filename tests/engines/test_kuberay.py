"""The manifest for Kubernetes is valid YAML of the form that KubeRay asks for, and its command is one of ours."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rhfedmtl.cli import app

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray: pip install 'rhfedmtl[ray]'")
MANIFEST = Path(__file__).parents[2] / "deploy" / "kuberay-job.yaml"


@pytest.fixture
def job() -> dict[str, Any]:
    """The manifest, read."""
    (document,) = yaml.safe_load_all(MANIFEST.read_text())
    return document


def test_the_manifest_has_the_form_of_a_ray_job(job: dict[str, Any]) -> None:
    """Kind and version, one head and workers with image, resources and the shared volume; no telemetry."""
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert len(groups) >= 2
    for group in groups:
        assert isinstance(group["rayStartParams"], dict)
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert len({group["template"]["spec"]["containers"][0]["image"] for group in groups}) == 1
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_command_of_the_manifest_is_understood(job: dict[str, Any]) -> None:
    """A shell can parse it, and every option that it types is known to `rhfedmtl train`."""
    shell, _, script = shlex.split(job["spec"]["entrypoint"])
    assert subprocess.run([shell, "-n", "-c", script], check=False).returncode == 0
    usage = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).output
    typed = {word for word in shlex.split(script.replace(";", " ; ")) if word.startswith("--")}
    assert typed >= {"--resume", "--engine", "--address", "--out"}
    for word in typed:
        assert word in usage
