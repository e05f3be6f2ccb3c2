"""Kubeconfigs as kubectl reads them, and a Pod's service account."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotvirt.kube.config import ConfigError, in_cluster, load_kubeconfig


def kubeconfig(path: Path, user: dict[str, Any], name: str = "one", **cluster: Any) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443/", **cluster}}],
                "users": [{"name": name, "user": user}],
                "contexts": [
                    {"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}
                ],
            }
        )
    )
    return path


def test_data_and_files_next_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"the CA")
    user = {"client-certificate-data": base64.b64encode(b"cert").decode(), "client-key": "key.pem"}
    (tmp_path / "key.pem").write_bytes(b"the key")
    config = load_kubeconfig(kubeconfig(tmp_path / "config", user, **{"certificate-authority": "ca.crt"}))
    assert (config.server, config.namespace) == ("https://one:6443", "ns-one")
    assert (config.ca_data, config.cert_data, config.key_data) == (b"the CA", b"cert", b"the key")


def test_several_files_merge_and_the_first_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kubeconfig(tmp_path / "first", {"token": "1"}, "one")
    second = kubeconfig(tmp_path / "second", {"token": "2"}, "two")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{first}:{second}")
    assert load_kubeconfig().token == "1"
    assert load_kubeconfig(context="two").token == "2"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "is not a kubeconfig"),
        ("a: [", "cannot be read"),
        ("current-context: x", "no context 'x'"),
        ("current-context: x\ncontexts: [{name: x, context: {cluster: y}}]", "no cluster 'y'"),
    ],
)
def test_what_is_wrong_is_a_sentence(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigError, match=says):
        load_kubeconfig(path)


def test_a_missing_file_and_a_login_we_do_not_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no kubeconfig"):
        load_kubeconfig(tmp_path / "nothing")
    path = kubeconfig(tmp_path / "config", {"exec": {"command": "login"}})
    with pytest.raises(ConfigError, match="use a token or a client certificate"):
        load_kubeconfig(path)


def test_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match="not a Pod"):
        in_cluster(tmp_path)
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("CA")
    (tmp_path / "namespace").write_text("kubevirt\n")
    config = in_cluster(tmp_path)
    assert (config.server, config.namespace, config.bearer_token()) == (
        "https://[fd00::1]:443",
        "kubevirt",
        "first",
    )
    (tmp_path / "token").write_text("renewed")
    assert config.bearer_token() == "renewed"
