"""The guest's YAML reader against PyYAML: for what people write in cloud-init files, both must agree."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
READER = REPOSITORY / "demo/guest/rootfs/usr/lib/nocloud/yaml.awk"


def from_initrd(initrd: Path, wanted: str) -> bytes:
    """One file of the guest's initramfs (a `newc` cpio archive)."""
    data = gzip.decompress(initrd.read_bytes())
    at = 0
    while data[at : at + 6] == b"070701":
        size, name_size = int(data[at + 54 : at + 62], 16), int(data[at + 94 : at + 102], 16)
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        start = (at + 110 + name_size + 3) // 4 * 4
        if name == wanted:
            return data[start : start + size]
        at = (start + size + 3) // 4 * 4
    raise AssertionError(f"{wanted} is not in {initrd}")


@pytest.fixture(scope="module")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest's own busybox: its awk is the one that has to understand the reader."""
    built = subprocess.run([REPOSITORY / "demo/guest/build"], capture_output=True, text=True, check=True)
    initrd = Path(built.stdout.splitlines()[-1]).with_name("initrd")
    program = tmp_path_factory.mktemp("busybox") / "busybox"
    program.write_bytes(from_initrd(initrd, "usr/bin/busybox"))
    program.chmod(0o755)
    return program


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flattened(each, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from flattened(each, f"{path}/{index}" if path else str(index))
    else:
        yield path, "" if value in ("~", "null") else value


def decoded(line: str) -> tuple[str, str]:
    path, _, value = line.partition("=")
    backslash = "\0"
    value = value.replace(r"\\", backslash).replace(r"\n", "\n").replace(r"\t", "\t").replace(backslash, "\\")
    return path, value


DOCUMENTS = {
    "a real cloud-config": """#cloud-config
# a comment
hostname: "web-1"   # trailing
fqdn: 'it''s.example'
users:
- name: demo
  groups: [wheel, "net admin"]
  ssh_authorized_keys:
  - ssh-ed25519 AAAA demo@example
- default
write_files:
  - path: /etc/motd
    owner: root:root
    content: |
      Hello: world

        indented # not a comment
      - not a list
    permissions: '0644'
  -   path: /tmp/folded
      content: >-
        one
        two

        three
runcmd:
  - echo hello > /tmp/x; cat /tmp/x
  - [ sh, -c, "echo \\"quoted\\" $HOME\\n" ]
  - |
    set -e
    for i in 1 2 3; do
        echo $i
    done
  - - nested
    - list
  - curl http://example.com:80/path?x=1#fragment
bootcmd:
    - echo deep
final: last value
""",
    "network version 2": """
version: 2
ethernets:
    eth0:
        match: {macaddress: "52:54:00:12:34:56"}
        addresses:
            - 10.0.0.5/24
            - "fd00::5/64"
        routes: [{to: default, via: 10.0.0.1}, {to: 10.9.0.0/16, via: 10.0.0.2}]
        nameservers:
            addresses: [1.1.1.1, 8.8.8.8]
            search: []
""",
    "network version 1": """network:
  version: 1
  config:
  - type: physical
    name: eth0
    subnets:
    - {type: static, address: 10.0.0.5/24, gateway: 10.0.0.1}
  - type: nameserver
    address:
    - 10.0.0.3
""",
    "keeps and strips": "a: |+\n  text\n\nb: |-\n  text\n\nc: >\n  folded\n  text\nd: |2\n    two more\n",
    "several lines": 'plain: one\n  two\n  three\nquoted: "four\n  five"\nempty:\nnothing: ~\nend: x\n',
    "flow over lines": "list: [a,\n  b,\n  {c: d}]\nmap: {x: 1,\n  y: [2, 3]}\n",
    "document start and Windows lines": "---\r\ninstance-id: i-1\r\nlocal-hostname: host\r\n",
    "JSON": '{"instance-id": "i-9", "list": [{"a": "b, c"}, "d: e"]}\n',
    "a list at the top": "- a\n- b: c\n  d: e\n-\n  f: g\n",
    "backslashes and tabs": 'a: "tab\\there"\nb: \'C:\\\\temp\'\nc: "line\\nbreak \\\\ end"\n',
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_the_reader_agrees_with_pyyaml(busybox: Path, document: str) -> None:
    read = subprocess.run(
        [busybox, "awk", "-f", READER], input=document.encode(), capture_output=True, check=True
    )
    lines = read.stdout.decode().split("\n")[:-1]
    expected = list(flattened(yaml.load(document, Loader=yaml.BaseLoader)))
    assert [decoded(line) for line in lines] == expected


def test_what_is_no_yaml_is_refused(busybox: Path) -> None:
    read = subprocess.run([busybox, "awk", "-f", READER], input=b"a: b\njust words\n", capture_output=True)
    assert read.returncode == 1
    assert b"line 2 is no key: just words" in read.stderr
