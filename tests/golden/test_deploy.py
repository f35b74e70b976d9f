"""What `deploy/` and its how-to name exists: options, paths, metrics, files."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from headrace.cli import app
from headrace.serving.core.counters import REASONS
from headrace.serving.front.access import read_or_create_token
from headrace.serving.workers.host import HostGoneError
from helpers.doc_pages import ROOT
from helpers.gateway import Bench, get

DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "how-to" / "run-in-production.md"
UNIT = (DEPLOY / "headrace.service").read_text()
(QUOTAS,) = re.findall(
    r"(?s)```ini\n(.*?)```", (ROOT / "docs" / "how-to" / "serve-a-shared-device.md").read_text()
)
"""What is added to the unit for plans that divide a core."""
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
ALERTS = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())


def options_of(command: str) -> set[str]:
    program: Any = typer.main.get_command(app)
    return {name for param in program.commands[command].params for name in param.opts}


def unit_values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)


def dockerfile_lines(instruction: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", joined, re.MULTILINE)


def served_arguments() -> dict[str, list[str]]:
    """Where -> the arguments of `headrace serve` there."""
    (unit,) = unit_values("ExecStart")
    (image,) = dockerfile_lines("CMD")
    return {
        "unit": shlex.split(unit)[1:],
        "image": yaml.safe_load(image),
        "deployment": CONTAINER["args"],
    }


def test_a_gateway_that_another_has_followed_is_not_started_again() -> None:
    assert unit_values("RestartPreventExitStatus") == [str(HostGoneError.exit_code)]


def test_the_unit_permits_what_the_server_asks_the_kernel_by() -> None:
    [families] = unit_values("RestrictAddressFamilies")
    assert set(families.split()) == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}


@pytest.mark.parametrize("where", served_arguments())
def test_every_option_that_is_given_exists(where: str) -> None:
    command, plan, *rest = served_arguments()[where]
    given = {word.partition("=")[0] for word in rest if word.startswith("--")}

    assert command == "serve"
    assert plan.endswith("/plan.json")
    assert given <= options_of("serve")
    assert "--no-auth" not in given


def test_every_metric_that_is_named_is_exposed() -> None:
    exposed = {
        line.split()[2]
        for line in Bench().ask(get("/metrics")).body.decode().splitlines()
        if line.startswith("# TYPE")
    }
    rules = [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
    named = {
        name
        for text in (PAGE.read_text(), *rules)
        for name in re.findall(r"\bheadrace_[a-z_]+", text)
    }

    assert len(named) >= 7
    assert named <= exposed


def test_objectives_that_clients_miss_by_their_own_mistakes_wake_nobody() -> None:
    rules = {rule["alert"]: rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]}
    missed, all_of_them = (
        {outcome for outcome in ("answered", "late", *REASONS) if not re.fullmatch(but, outcome)}
        for but in re.findall(r'outcome!~"(.*?)"', rules["HeadraceMissesObjectives"])
    )
    unserved = {"deadline", "no-slot", "draining", "queue-full", "failed", "app-error", "app-lost"}
    assert missed == {"late", *unserved}
    assert all_of_them == {"answered", *missed}


def test_a_gateway_whose_target_is_gone_is_down_as_one_that_does_not_answer() -> None:
    """A discovered target that has gone leaves no sample of `up`, not one of 0."""
    [down] = [
        rule["expr"]
        for group in ALERTS["groups"]
        for rule in group["rules"]
        if rule["alert"] == "HeadraceDown"
    ]
    assert set(down.split(" or ")) == {'up{job="headrace"} == 0', 'absent(up{job="headrace"})'}
    assert "`up` is 0, or absent" in PAGE.read_text()


def test_pages_say_alike_what_clients_of_a_killed_gateway_see() -> None:
    several = (PAGE.parent / "from-one-machine-to-several.md").read_text()
    [row] = re.findall(r"^\| the gateway \|(.*)$", several, re.MULTILINE)
    assert "connections are refused" in row
    assert "connections are refused" in PAGE.read_text()


def test_every_alert_says_what_it_means_and_stands_on_the_page() -> None:
    page = PAGE.read_text()
    for rule in (rule for group in ALERTS["groups"] for rule in group["rules"]):
        assert rule["annotations"]["summary"]
        assert all(name in page for name in re.findall(r"\bheadrace_[a-z_]+|\bup\b", rule["expr"]))


def test_the_probes_ask_what_is_served_without_a_token() -> None:
    bench = Bench(token="a-token-of-some-length")
    probes = [CONTAINER[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]

    for probe in probes:
        client = bench.connect(("10.0.0.9", 40_000))
        client.send(get(probe["httpGet"]["path"]))
        assert client.reply().status == 200
        assert probe["httpGet"]["port"] == CONTAINER["ports"][0]["name"]
    assert SERVICE["spec"]["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["template"]["metadata"]["labels"]


def test_replicas_are_on_nodes_of_their_own_as_far_as_there_are_nodes() -> None:
    (spread,) = POD["topologySpreadConstraints"]

    assert DEPLOYMENT["spec"]["replicas"] > 1
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
    assert spread["whenUnsatisfiable"] == "DoNotSchedule"
    assert spread["labelSelector"] == DEPLOYMENT["spec"]["selector"]


def test_the_pod_is_no_root_and_mounts_what_it_uses() -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}

    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    assert {volume["name"] for volume in POD["volumes"]} == set(mounts)
    assert all(any(p in arg for arg in CONTAINER["args"]) for p in ("/plans", "/token"))
    assert mounts["cache"] in " ".join(dockerfile_lines("ENV"))
    assert CONTAINER["resources"]["requests"] == CONTAINER["resources"]["limits"]
    (wait,) = [int(word) for word in CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1:]]
    assert POD["terminationGracePeriodSeconds"] > wait + 10


def test_the_admin_socket_has_a_place_where_the_root_is_read_only() -> None:
    [runtime] = yaml.safe_load((DEPLOY / "kserve.yaml").read_text())["spec"]["containers"]
    for container in (CONTAINER, runtime):
        assert container["securityContext"]["readOnlyRootFilesystem"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        mounts = {each["mountPath"]: each.get("readOnly") for each in container["volumeMounts"]}
        assert mounts[variables["XDG_CONFIG_HOME"]] is None


def test_a_token_from_a_secret_is_one_that_the_server_takes(tmp_path: Path) -> None:
    """The mode that the manifest gives it, by a link, as secrets are mounted."""
    (volume,) = [v for v in POD["volumes"] if v["name"] == "token"]
    (tmp_path / "data").write_text("f" * 64)
    (tmp_path / "data").chmod(volume["secret"]["defaultMode"])
    (tmp_path / "token").symlink_to("data")

    assert read_or_create_token(tmp_path / "token") == "f" * 64


def test_the_image_copies_what_there_is_and_is_no_root() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in dockerfile_lines("COPY"):
        *sources, _ = line.split()
        if sources[0].startswith("--from"):
            continue
        for source in sources:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored
    assert dockerfile_lines("USER") == ["10001"]
    known = (
        r"^(ARG|FROM|COPY|RUN|ENV|USER|EXPOSE|STOPSIGNAL|HEALTHCHECK|ENTRYPOINT|CMD|#.*| +.*|)"
        r"(?: |$)"
    )
    assert all(re.match(known, line) for line in DOCKERFILE.splitlines())


def test_the_health_check_of_the_image_asks_in_python_whether_the_server_lives() -> None:
    """Docker Swarm restarts what is unhealthy, and a server that loads models is not ready."""
    (health,) = dockerfile_lines("HEALTHCHECK")
    command = yaml.safe_load(health.partition("CMD ")[2])

    assert CONTAINER["livenessProbe"]["httpGet"]["path"] in health
    assert "/v2/health/ready" not in health
    assert command[0] == "python"
    compile(command[2], "healthcheck", "exec")


def test_what_is_compiled_is_kept_where_it_can_be_written() -> None:
    """Beside the installed sources it cannot, and without a place every start compiles again."""
    for environment in (" ".join(unit_values("Environment")), " ".join(dockerfile_lines("ENV"))):
        assert "NUMBA_CACHE_DIR=/var/cache/headrace/" in environment
        assert "HEADRACE_CACHE=/var/cache/headrace" in environment
    assert unit_values("CacheDirectory") == ["headrace"]
    assert "mkdir -p /var/cache/headrace && chown 10001" in DOCKERFILE


def test_the_unit_restarts_drains_and_reloads() -> None:
    (reload,) = unit_values("ExecReload")
    (check,) = unit_values("ExecStartPre")

    assert "-HUP" in reload
    assert shlex.split(check)[1:] == ["verify", shlex.split(unit_values("ExecStart")[0])[2]]
    assert unit_values("Type") == ["notify"]
    assert unit_values("KillMode") == ["mixed"]
    assert unit_values("Restart") == ["on-failure"]
    assert unit_values("User") == ["headrace"]


@pytest.mark.parametrize("edited", [False, True], ids=["as it is", "with quotas"])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path, edited: bool) -> None:
    program = Path(sys.executable).parent / "headrace"
    unit = tmp_path / "headrace.service"
    unit.write_text(UNIT.replace("/opt/headrace/bin/headrace", str(program)))
    if edited:
        (tmp_path / "headrace.service.d").mkdir()
        (tmp_path / "headrace.service.d/override.conf").write_text(QUOTAS)

    done = subprocess.run(
        ["systemd-analyze", "verify", unit],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )

    assert "headrace.service" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


RAY = DEPLOY / "ray"
MANIFESTS = {
    f"{path.relative_to(DEPLOY)}: {document['kind']} {document['metadata']['name']}": document
    for path in (DEPLOY / "kubernetes.yaml", DEPLOY / "kserve.yaml", *sorted(RAY.glob("*.yaml")))
    if path.name != "kustomization.yaml"
    for document in yaml.safe_load_all(path.read_text())
}
BY_KIND = {document["kind"]: document for document in MANIFESTS.values()}
"""One of each kind suffices where only its kind is asked for."""

KNOWN_FIELDS = {
    "RayCluster": {"rayVersion", "headGroupSpec", "workerGroupSpecs"},
    "ServingRuntime": {
        "annotations",
        "supportedModelFormats",
        "protocolVersions",
        "multiModel",
        "containers",
        "volumes",
    },
    "ServiceMonitor": {"selector", "endpoints"},
}
"""Of kinds that are not Kubernetes' own, from their references; what is in their pods is checked
as a pod."""
GROUP_FIELDS = {
    "groupName",
    "replicas",
    "minReplicas",
    "maxReplicas",
    "serviceType",
    "rayStartParams",
    "template",
}


def pod_templates(document: dict[str, Any]) -> list[dict[str, Any]]:
    """What pods are made of, of kinds that Kubernetes does not know."""
    spec = document["spec"]
    if document["kind"] == "ServingRuntime":
        return [{"spec": {"containers": spec["containers"], "volumes": spec["volumes"]}}]
    if document["kind"] == "RayCluster":
        return [group["template"] for group in groups(spec)]
    return []


def groups(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_manifest_has_known_fields_only(name: str) -> None:
    document = MANIFESTS[name]
    known = KNOWN_FIELDS.get(document["kind"])
    if known is not None:
        assert set(document["spec"]) <= known
    if document["kind"] == "RayCluster":
        assert all(set(group) <= GROUP_FIELDS for group in groups(document["spec"]))
        for group in groups(document["spec"]):
            assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.extras
@pytest.mark.parametrize("name", MANIFESTS)
def test_every_manifest_follows_kubernetes_schema(name: str) -> None:
    """Kubernetes' own kinds whole; of others their pods."""
    schemas = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    document = MANIFESTS[name]
    if document["kind"] not in KNOWN_FIELDS:
        schemas.validate(document, "1.33", strict=True)
    for number, template in enumerate(pod_templates(document)):
        whole = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": f"template-{number}"},
            "template": template,
        }
        schemas.validate(whole, "1.33", strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kustomize_builds_every_manifest_of_the_base() -> None:
    done = subprocess.run(["kubectl", "kustomize", RAY], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    built = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    stated = [
        document["kind"]
        for path in RAY.glob("*.yaml")
        if path.name != "kustomization.yaml"
        for document in yaml.safe_load_all(path.read_text())
    ]
    assert sorted(built) == sorted(stated)


def test_the_base_names_every_file_beside_it() -> None:
    base = yaml.safe_load((RAY / "kustomization.yaml").read_text())

    assert set(base["resources"]) | {"kustomization.yaml"} == {path.name for path in RAY.iterdir()}


def test_what_selects_pods_of_the_ray_cluster_selects_them() -> None:
    """By labels that KubeRay gives them: the cluster's name, and whether it is the head."""
    name = BY_KIND["RayCluster"]["metadata"]["name"]
    selectors = [
        BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        *(
            document["spec"]["podSelector"]["matchLabels"]
            for document in MANIFESTS.values()
            if document["kind"] == "NetworkPolicy"
        ),
        MANIFESTS["ray/service.yaml: Service headrace"]["spec"]["selector"],
    ]

    assert all(selector["ray.io/cluster"] == name for selector in selectors)
    assert all(
        selector.get("ray.io/node-type") in (None, "head", "worker") for selector in selectors
    )


def test_the_gateway_of_the_cluster_is_probed_where_it_listens() -> None:
    head = BY_KIND["RayCluster"]["spec"]["headGroupSpec"]["template"]["spec"]
    (gateway,) = [each for each in head["containers"] if each["name"] == "gateway"]
    (port,) = gateway["ports"]

    assert f"--port={port['containerPort']}" in gateway["args"]
    assert {word.partition("=")[0] for word in gateway["args"] if word[:2] == "--"} <= options_of(
        "serve"
    )
    for kind, path in (("startup", "ready"), ("readiness", "ready"), ("liveness", "live")):
        probe = gateway[f"{kind}Probe"]["httpGet"]
        assert probe == {"path": f"/v2/health/{path}", "port": port["name"]}
    for container in (*head["containers"], *worker_containers()):
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {mount["name"] for mount in container["volumeMounts"]} >= {"ray", "shared-memory"}
    assert all(
        group["template"]["spec"]["securityContext"]["runAsNonRoot"]
        for group in groups(BY_KIND["RayCluster"]["spec"])
    )


def worker_containers() -> list[dict[str, Any]]:
    specs = BY_KIND["RayCluster"]["spec"]["workerGroupSpecs"]
    return [each for group in specs for each in group["template"]["spec"]["containers"]]


def test_prometheus_brings_the_token_that_the_server_takes() -> None:
    (endpoint,) = BY_KIND["ServiceMonitor"]["spec"]["endpoints"]
    service = MANIFESTS["ray/service.yaml: Service headrace"]
    (runtime,) = BY_KIND["ServingRuntime"]["spec"]["containers"]

    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert endpoint["authorization"]["credentials"] == {"name": "headrace-token", "key": "token"}
    assert {word.partition("=")[0] for word in runtime["args"] if word[:2] == "--"} <= options_of(
        "serve"
    )
