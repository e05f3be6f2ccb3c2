"""The chart: fresh, strict about its values, with no more rights than are used, and in step with the code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotvirt import __version__
from hotvirt.admission.request import Rule
from hotvirt.admission.webhooks import Admission
from hotvirt.api import names
from hotvirt.api.resources import DATAVOLUMES, KUBEVIRTS, VMIMS, VMIS, VMS
from hotvirt.cluster.settings import ControllerSettings
from hotvirt.plan.validate_cluster import validate_kubevirt
from hotvirt.subresources.app import VERSIONS, VM_VERBS, VMI_VERBS
from tests.targets import real

CHECKOUT = Path(__file__).parents[2]
CHART = CHECKOUT / "deploy" / "chart" / "hotvirt"
Object = dict[str, Any]
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
OURS = ("hotvirt-controller", "hotvirt-node")


@pytest.fixture(scope="module")
def helm() -> str:
    return str(real.programs("helm") / "helm")


def template(helm: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "hotvirt", str(CHART), "--namespace", "kubevirt", *options]
    return subprocess.run(command, capture_output=True, text=True)


def rendered(helm: str, *options: str) -> list[Object]:
    done = template(helm, *options)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]


@pytest.fixture(scope="module")
def objects(helm: str) -> list[Object]:
    return rendered(helm)


def of(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def environment(objects: list[Object]) -> dict[str, str]:
    (container,) = pod_of(objects, "Deployment", "hotvirt-controller")["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def pod_of(objects: list[Object], kind: str, name: str) -> Object:
    spec: Object = of(objects, kind, name)["spec"]["template"]["spec"]
    return spec


# What is generated


def test_the_generated_files_are_fresh() -> None:
    checked = subprocess.run([CHECKOUT / "hack" / "manifests", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_one_file_installs_everything(objects: list[Object]) -> None:
    text = (CHECKOUT / "deploy" / "install.yaml").read_text()
    whole = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]

    def identities(them: list[Object]) -> set[tuple[str, str]]:
        return {(each["kind"], each["metadata"]["name"]) for each in them}

    assert identities(whole) == identities(objects) | {("Namespace", "kubevirt")}
    crds = {name for kind, name in identities(whole) if kind == "CustomResourceDefinition"}
    assert crds == {each.group_resource for each in (VMS, VMIS, VMIMS, KUBEVIRTS)}
    for each in whole:
        if each["kind"] == "Namespace":
            assert each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


# In step with the code


def registered(configuration: Object) -> Iterator[tuple[str, str, str, str, str]]:
    """(group, version, resource, operation, failurePolicy) of each write that is asked about."""
    for webhook in configuration["webhooks"]:
        for rule in webhook["rules"]:
            for group in rule["apiGroups"]:
                for version in rule["apiVersions"]:
                    for resource in rule["resources"]:
                        for operation in rule["operations"]:
                            yield group, version, resource, operation, webhook["failurePolicy"]


def expected(rules: tuple[Rule, ...]) -> Iterator[tuple[str, str, str, str, str]]:
    for rule in rules:
        if rule.resource is DATAVOLUMES:
            continue  # CDI's on a cluster
        policy = "Ignore" if rule.resource is KUBEVIRTS else "Fail"
        for operation in rule.operations:
            resource = rule.resource.plural + (f"/{rule.subresource}" if rule.subresource else "")
            yield rule.resource.group, rule.resource.version, resource, operation, policy


def test_webhooks_ask_about_what_admission_has_rules_for(objects: list[Object]) -> None:
    validating = list(registered(of(objects, "ValidatingWebhookConfiguration", names.WEBHOOKS)))
    mutating = list(registered(of(objects, "MutatingWebhookConfiguration", names.WEBHOOKS)))
    assert sorted(validating) == sorted(expected(Admission.rules))
    assert sorted(mutating) == sorted(expected(Admission.mutating_rules))


def test_hotvirts_own_updates_are_not_asked_about(objects: list[Object]) -> None:
    """Those of the name that it has in the API, and nobody else's."""
    validating, _ = of(objects, "ValidatingWebhookConfiguration", names.WEBHOOKS)["webhooks"]
    conditions = {each["name"]: each["expression"] for each in validating["matchConditions"]}
    assert conditions["is-not-hotvirts-own"] == (
        f'request.operation != "UPDATE" || request.userInfo.username != "{names.CONTROLLER_USER}"'
    )


def test_kinds_are_upgraded_but_never_taken_away(objects: list[Object]) -> None:
    kinds = [each["metadata"] for each in objects if each["kind"] == "CustomResourceDefinition"]
    assert "virtualmachines.kubevirt.io" in [each["name"] for each in kinds]
    for each in kinds:
        assert each["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert each["labels"] == {names.LABEL_PART_OF: names.PART_OF}


def test_an_upgrade_leaves_to_hotvirt_what_hotvirt_writes(objects: list[Object]) -> None:
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in of(objects, kind, names.WEBHOOKS)["webhooks"]:
            assert "caBundle" not in webhook["clientConfig"]
    for version in VERSIONS:
        assert "caBundle" not in of(objects, "APIService", f"{version}.subresources.kubevirt.io")["spec"]
    assert "data" not in of(objects, "Secret", names.CERTIFICATES_SECRET)
    assert "data" not in of(objects, "ConfigMap", names.CA_CONFIGMAP)


def test_owners_may_do_every_verb_of_the_aggregated_api(objects: list[Object]) -> None:
    for role in ("edit", "admin"):
        rules = of(objects, "ClusterRole", f"kubevirt.io:{role}")["rules"]
        allowed = {
            (resource, verb)
            for rule in rules
            if rule["apiGroups"] == ["subresources.kubevirt.io"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert allowed == {
            (f"{plural}/{verb}", "update" if method == "PUT" else "get")
            for plural, verbs in (("virtualmachines", VM_VERBS), ("virtualmachineinstances", VMI_VERBS))
            for verb, (method, _) in verbs.items()
        }


def test_who_may_only_look_changes_nothing_and_types_nothing(objects: list[Object]) -> None:
    for rule in of(objects, "ClusterRole", "kubevirt.io:view")["rules"]:
        assert not WRITES & set(rule["verbs"])
        assert "virtualmachineinstances/console" not in rule["resources"]


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_user_roles_join_those_of_kubernetes(objects: list[Object], role: str) -> None:
    labels = of(objects, "ClusterRole", f"kubevirt.io:{role}")["metadata"]["labels"]
    assert labels[f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"


# Rights


def rules_of(objects: list[Object], name: str | None = None) -> list[Object]:
    found = [
        rule
        for each in objects
        if each["kind"] in ("Role", "ClusterRole") and name in (None, each["metadata"]["name"])
        for rule in each["rules"]
    ]
    assert found, f"no rules of {name}"
    return found


def test_no_right_is_a_wildcard(objects: list[Object]) -> None:
    rules = rules_of(objects)
    assert len(rules) > 20
    for rule in rules:
        for part in ("apiGroups", "resources", "verbs", "resourceNames", "nonResourceURLs"):
            assert not any("*" in word for word in rule.get(part, ())), rule


@pytest.mark.parametrize("component", OURS)
def test_secrets_only_by_name_and_none_is_made(objects: list[Object], component: str) -> None:
    found = [rule for rule in rules_of(objects, component) if "secrets" in rule["resources"]]
    if component == "hotvirt-node":
        assert found == []
    for rule in found:
        assert rule["resourceNames"] == [names.CERTIFICATES_SECRET]
        assert "create" not in rule["verbs"]


@pytest.mark.parametrize("component", OURS)
def test_nobody_gives_rights_or_poses_as_another(objects: list[Object], component: str) -> None:
    for rule in rules_of(objects, component):
        assert "rbac.authorization.k8s.io" not in rule["apiGroups"]
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
        assert not {"serviceaccounts/token", "pods/exec", "pods/eviction"} & set(rule["resources"])


def test_a_node_agent_writes_status_events_and_leases_alone(objects: list[Object]) -> None:
    written = {
        resource
        for rule in rules_of(objects, "hotvirt-node")
        if WRITES & set(rule["verbs"])
        for resource in rule["resources"]
    }
    assert written == {"virtualmachineinstances/status", "events", "leases"}
    policies = {each["metadata"]["name"] for each in objects if each["kind"] == "ValidatingAdmissionPolicy"}
    bound = {
        each["spec"]["policyName"]: each["spec"]["validationActions"]
        for each in objects
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert bound == {policy: ["Deny"] for policy in policies}
    narrowed = {
        resource
        for each in objects
        if each["kind"] == "ValidatingAdmissionPolicy" and names.NODE_USER in json.dumps(each)
        for rule in each["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    assert written <= narrowed


def test_nothing_of_hotvirt_writes_nodes(objects: list[Object]) -> None:
    for component in OURS:
        for rule in rules_of(objects, component):
            assert not (WRITES & set(rule["verbs"]) and {"nodes", "nodes/status"} & set(rule["resources"]))


def test_the_controller_is_confined(objects: list[Object]) -> None:
    pod = pod_of(objects, "Deployment", "hotvirt-controller")
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("hostPath" in volume for volume in pod["volumes"])


# What can be set


def test_images_registry_and_tag(helm: str) -> None:
    options = "image.registry=registry.example.org:5000/,image.tag=v9,image.pullPolicy=Always"
    objects = rendered(helm, "--set", options, "--set", "image.pullSecrets={one}")
    pod = pod_of(objects, "Deployment", "hotvirt-controller")
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.org:5000/hotvirt/controller:v9"
    assert container["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "one"}]
    given = environment(objects)
    assert given["HOTVIRT_LAUNCHER_IMAGE"] == "registry.example.org:5000/hotvirt/launcher:v9"
    assert json.loads(given["HOTVIRT_KUBEVIRT_SPEC"])["imagePullPolicy"] == "Always"


def test_settings_of_the_kubevirt_object(helm: str) -> None:
    objects = rendered(
        helm,
        *("--set", "useEmulation=true,kubevirt.featureGates={One,Two}"),
        *("--set", "kubevirt.configuration.vmRolloutStrategy=Stage"),
        *("--set", "kubevirt.configuration.developerConfiguration.cpuAllocationRatio=2"),
    )
    settings = ControllerSettings.of(environment(objects)).kubevirt
    assert validate_kubevirt({"spec": settings}) == []
    assert settings["configuration"] == {
        "developerConfiguration": {
            "cpuAllocationRatio": 2,
            "featureGates": ["One", "Two"],
            "useEmulation": True,
        },
        "vmRolloutStrategy": "Stage",
    }


def test_the_kubelets_folder_is_where_it_is_on_the_node(helm: str) -> None:
    pod = pod_of(rendered(helm, "--set", "kubelet.root=/srv/kubelet/"), "DaemonSet", "hotvirt-node")
    (container,) = pod["containers"]
    assert {"name": "HOTVIRT_NODE_ROOT", "value": "/srv/kubelet"} in container["env"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "kubelet"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "kubelet"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == "/srv/kubelet"
    # Device plug-ins are always looked for in one place.
    assert "/var/lib/kubelet/device-plugins" in [each["mountPath"] for each in container["volumeMounts"]]


def test_with_cert_manager_hotvirt_neither_makes_nor_spreads_certificates(helm: str) -> None:
    objects = rendered(helm, "--set", "certificates.certManager.enabled=true")
    kinds = [each["kind"] for each in objects]
    assert kinds.count("Issuer") == 2
    assert "Secret" not in kinds
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "APIService"):
        for each in objects:
            if each["kind"] == kind:
                injected = each["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
                assert injected == "kubevirt/hotvirt-api"
    certificate = of(objects, "Certificate", "hotvirt-api")["spec"]
    assert {"server auth", "client auth"} <= set(certificate["usages"])
    assert not any("secrets" in rule["resources"] for rule in rules_of(objects, "hotvirt-controller"))
    assert environment(objects)["HOTVIRT_CERTIFICATES"] == "given"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("replicas=0", "replicas"),
        ("replicas=two", "replicas"),
        ("hypervisor=xen", "'qemu', 'instant'"),
        ("image.pullPolicy=Sometimes", "'Always', 'IfNotPresent', 'Never'"),
        ("image.tag=a b", "tag"),
        ("kubelet.root=var/lib/kubelet", "kubelet/root"),
        ("useEmulation=maybe", "useEmulation"),
        ("certificates.certManager.enabled=1", "certManager"),
        ("replica=3", "replica"),
        ("node.resource.limits.cpu=1", "resource"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: str, wrong: str, said: str) -> None:
    refused = template(helm, "--set", wrong)
    assert refused.returncode != 0
    assert "don't meet the specifications of the schema" in refused.stderr
    assert said in refused.stderr


def test_another_namespace_is_refused_with_what_to_do(helm: str) -> None:
    command = [helm, "template", "hotvirt", str(CHART), "--namespace", "elsewhere"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "--namespace kubevirt --create-namespace" in refused.stderr


@pytest.mark.parametrize(
    ("version", "works"), [("v1.33.5", False), ("v1.34.0", True), ("v1.34.1-gke.5", True)]
)
def test_a_kubernetes_that_is_too_old_is_refused(helm: str, version: str, works: bool) -> None:
    done = template(helm, "--kube-version", version)
    assert (done.returncode == 0) is works
    if not works:
        assert "requires kubeVersion: >=1.34.0-0" in done.stderr
        assert "1.33.5" in done.stderr
