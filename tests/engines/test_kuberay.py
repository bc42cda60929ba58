"""The manifest for Kubernetes is valid YAML of the form that KubeRay asks for, and its command is one of ours."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rhfedmtl.cli.main import app

MANIFEST = Path(__file__).parents[2] / "deploy" / "kuberay-job.yaml"
# Fields of ray.io/v1 that a manifest of ours may use: KubeRay drops, or refuses, others.
JOB = {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
CLUSTER = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
HEAD = {"rayStartParams", "template"}
WORKERS = {*HEAD, "groupName", "replicas", "minReplicas", "maxReplicas"}


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
    assert (set(job["spec"]), set(spec), set(groups[0])) == (JOB, CLUSTER, HEAD)
    assert all(set(group) == WORKERS for group in groups[1:])
    assert spec["authOptions"] == {"mode": "token"}
    for group in groups:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
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


@pytest.mark.parametrize("kept", [False, True])
def test_a_retry_goes_on_from_the_checkpoint_that_is_there(job: dict[str, Any], tmp_path: Path, kept: bool) -> None:
    """The command as the shell of the submitter, `ray job submit` and the shell of the job take it in turn."""
    runs = tmp_path / "runs" / job["metadata"]["name"]
    (runs / "1").mkdir(parents=True)
    if kept:
        (runs / "1" / "checkpoint").touch()
    program = tmp_path / "rhfedmtl"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    words = shlex.split(job["spec"]["entrypoint"].replace("/data/runs", str(tmp_path / "runs")))
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        shlex.join(words), shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    begins = f"train --resume {runs / '1'} --address auto" if kept else "train --engine ray --address auto --data saved"
    assert answer.stdout.startswith(begins)
    assert kept or answer.stdout.endswith(f"--out {runs}\n")
