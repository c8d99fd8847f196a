"""The MPIJobs of deploy/kubernetes: valid for the API, and their numbers, volumes and options fit each other."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lms3d import train
from lms3d.units import parse_size

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
SCHEMA = json.loads((HERE / "mpijob_v2beta1.json").read_text())
CLAIM = {"$ref": "#/$defs/claim", "$defs": SCHEMA["$defs"]}
IMAGE_FOLDERS = ("/opt/lms3d/", "/usr/sbin/")  # made by the Dockerfiles


def patched(document: Any, operations: list[dict[str, Any]]) -> Any:
    """What kustomize makes of a JSON patch, as far as this repository uses it: `replace` of a value."""
    document = copy.deepcopy(document)
    for operation in operations:
        assert operation["op"] == "replace", operation
        *parents, last = (int(key) if key.isdecimal() else key for key in operation["path"].strip("/").split("/"))
        place = document
        for key in parents:
            place = place[key]
        assert last in place, f"{operation['path']} is not there to be replaced"
        place[last] = operation["value"]
    return document


def job(variant: str) -> Any:
    base = yaml.safe_load((MANIFESTS / "base" / "mpijob.yaml").read_text())
    return base if variant == "base" else patched(base, yaml.safe_load((MANIFESTS / "gpu" / "gpus.yaml").read_text()))


def claims() -> list[Any]:
    return list(yaml.safe_load_all((MANIFESTS / "base" / "volumes.yaml").read_text()))


@pytest.fixture(params=["base", "gpu"])
def spec(request: pytest.FixtureRequest) -> Any:
    return job(request.param)["spec"]


def pod(spec: Any, role: str) -> Any:
    return spec["mpiReplicaSpecs"][role]["template"]["spec"]


def container(spec: Any, role: str) -> Any:
    (only,) = pod(spec, role)["containers"]
    return only


def training(spec: Any) -> Any:
    """The options of lms3d.train, read by its own parser; InputError for one that it does not have."""
    arguments = container(spec, "Launcher")["args"]
    return train._parser().parse_args(arguments[arguments.index("lms3d.train") + 1 :])


@pytest.mark.parametrize("variant", ["base", "gpu"])
def test_job_is_valid_for_the_api(variant: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(job(variant))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/slotPerWorker", 2),
        ("spec/runPolicy/cleanPodPolicy", "Sometimes"),
        ("spec/mpiReplicaSpecs/Launcher/replicas", 2),
        ("spec/mpiReplicaSpecs/Worker/replicas", 0),
        ("spec/mpiReplicaSpecs/Worker/restartPolicy", "Always"),
        ("spec/mpiReplicaSpecs/Worker/template/spec/containers/0/volumeMount", []),
        ("spec/mpiReplicaSpecs/Launcher/template/spec/containers/0/args/1", 4),
    ],
)
def test_schema_refuses_mistakes(path: str, value: Any) -> None:
    broken = job("base")
    *parents, last = (int(key) if key.isdecimal() else key for key in path.split("/"))
    place = broken
    for key in parents:
        place = place[key]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(broken)


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim["metadata"]["name"])
def test_claims_are_valid_and_shared_by_all_workers(claim: Any) -> None:
    jsonschema.Draft202012Validator(CLAIM).validate(claim)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_rank_per_slot(spec: Any) -> None:
    arguments = container(spec, "Launcher")["args"]
    ranks = int(arguments[arguments.index("-np") + 1])
    assert ranks == spec["slotsPerWorker"] * spec["mpiReplicaSpecs"]["Worker"]["replicas"]


def test_a_gpu_per_slot() -> None:
    spec = job("gpu")["spec"]
    assert container(spec, "Worker")["resources"]["limits"]["nvidia.com/gpu"] == str(spec["slotsPerWorker"])


def test_job_resumes_below_a_volume_that_outlives_the_pods(spec: Any) -> None:
    options = training(spec)
    assert options.resume
    assert spec["runPolicy"]["backoffLimit"] > 0
    kept = {volume["name"] for volume in pod(spec, "Worker")["volumes"] if "persistentVolumeClaim" in volume}
    writable = [mount for mount in container(spec, "Worker")["volumeMounts"] if not mount.get("readOnly")]
    folders = [mount["mountPath"] for mount in writable if mount["name"] in kept]
    assert any(options.output.is_relative_to(folder) for folder in folders)


def test_every_container_has_limits(spec: Any) -> None:
    for role in ("Launcher", "Worker"):
        assert {"cpu", "memory"} <= set(container(spec, role)["resources"]["limits"])


def test_memory_of_all_ranks_and_of_shared_memory_fits_into_the_limit(spec: Any) -> None:
    limit = parse_size(container(spec, "Worker")["resources"]["limits"]["memory"] + "B")
    of_ranks = spec["slotsPerWorker"] * (getattr(training(spec), "memory_limit", None) or 0)
    shared = [v["emptyDir"] for v in pod(spec, "Worker")["volumes"] if v.get("emptyDir", {}).get("medium") == "Memory"]
    assert len(shared) == 1
    assert of_ranks + parse_size(shared[0]["sizeLimit"] + "B") < 0.8 * limit


def test_volumes_and_claims_exist(spec: Any) -> None:
    volumes = {volume["name"]: volume for volume in pod(spec, "Worker")["volumes"]}
    assert {mount["name"] for mount in container(spec, "Worker")["volumeMounts"]} == set(volumes)
    claimed = {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v}
    assert claimed == {claim["metadata"]["name"] for claim in claims()}


def test_paths_lie_below_a_mount_or_in_the_image(spec: Any) -> None:
    mounts = tuple(mount["mountPath"] for mount in container(spec, "Worker")["volumeMounts"])
    values = [v["value"] for v in container(spec, "Launcher")["env"] if v["name"] != "LMS3D_RANKS"]
    for role in ("Launcher", "Worker"):
        values += container(spec, role)["command"] + container(spec, role)["args"]
    for path in filter(lambda value: value.startswith("/"), values):
        assert path.startswith((*mounts, *IMAGE_FOLDERS)), f"{path} is in no volume of the worker and not in the image"


def test_ranks_learn_what_the_environment_says(spec: Any) -> None:
    """A rank is started through ssh, which drops the container's environment: mpirun must pass it on."""
    arguments = container(spec, "Launcher")["args"]
    passed = {value for flag, value in itertools.pairwise(arguments) if flag == "-x"}
    assert passed == {"PATH", *(variable["name"] for variable in container(spec, "Launcher")["env"])}
    assert container(spec, "Worker")["env"] == container(spec, "Launcher")["env"], "stop.sh looks where rank.sh wrote"


def test_pods_wait_for_the_run_to_save(spec: Any) -> None:
    for role, program in (("Launcher", "sleep"), ("Worker", "/opt/lms3d/deploy/stop.sh")):
        command = container(spec, role)["lifecycle"]["preStop"]["exec"]["command"]
        assert program in command
        assert 120 <= int(command[-1]) < pod(spec, role)["terminationGracePeriodSeconds"]


def test_nobody_is_root(spec: Any) -> None:
    for role in ("Launcher", "Worker"):
        assert pod(spec, role)["securityContext"]["runAsNonRoot"] is True
        assert container(spec, role)["securityContext"] == {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


def test_users_and_ports_agree_with_the_images(spec: Any) -> None:
    user = pod(spec, "Worker")["securityContext"]["runAsUser"]
    sshd = dict(
        line.split(" ", 1)
        for line in (ROOT / "deploy/docker/sshd_config").read_text().splitlines()
        if line and not line.startswith("#")
    )
    for name in ("cpu", "gpu"):
        assert f"\nUSER {user}\n" in (ROOT / f"deploy/docker/Dockerfile.{name}").read_text()
    assert container(spec, "Worker")["ports"] == [{"name": "ssh", "containerPort": int(sshd["Port"])}]
    assert sshd["HostKey"] == spec["sshAuthMountPath"] + "/id_rsa"
    assert f"Port {sshd['Port']}\n" in (ROOT / "deploy/docker/ssh_config").read_text()


@pytest.mark.parametrize("variant", ["base", "gpu"])
def test_kustomize_makes_the_same(variant: str) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl, whose kustomize renders the manifests without a cluster, is not installed")
    command = ["kubectl", "kustomize", str(MANIFESTS / variant)]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    documents = {document["kind"]: document for document in yaml.safe_load_all(rendered)}
    expected, tag = job(variant), "cpu" if variant == "base" else "gpu"
    for role in ("Launcher", "Worker"):
        container(expected["spec"], role)["image"] = f"lms3d:{tag}"
    assert documents["MPIJob"] == expected
    assert "PersistentVolumeClaim" in documents
