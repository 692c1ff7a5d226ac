"""The list of allowed hosts: how it is written, and what it lets through."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from network_attacks import address_of_this_machine

from llm_sandbox_nb.sandbox.network.policy import (
    NAMED_SETS,
    PUBLIC,
    HostRule,
    Policy,
    PolicyRefusalError,
    is_own_address,
    what_is_wrong_with,
)
from llm_sandbox_nb.sandbox.network.secrets import parse_secrets, read_secrets
from llm_sandbox_nb.sandbox.options import SandboxOptions


def allows(entries: str, host: str, port: int = 443) -> bool:
    try:
        Policy([entries]).check(host, port)
    except PolicyRefusalError:
        return False
    return True


@pytest.mark.parametrize(
    ("entries", "yes", "no"),
    [
        ("example.org", ["example.org:443", "example.org:80"], ["a.example.org:443", "example.org:22"]),
        (
            "*.example.org",
            ["a.example.org:443", "a.b.example.org:80"],
            ["example.org:443", "badexample.org:443"],
        ),
        ("example.org:22", ["example.org:22"], ["example.org:443"]),
        ("*.example.org, !b.example.org", ["a.example.org:443"], ["b.example.org:443", "b.example.org:80"]),
        ("10.0.0.5:5432", ["10.0.0.5:5432"], ["10.0.0.5:443", "10.0.0.6:5432"]),
        ("[fd00::5]:8080", ["fd00::5:8080"], ["fd00::5:80"]),
        ("*.org,!pypi", ["example.org:443"], ["pypi.org:443"]),
        ("pypi,github", ["files.pythonhosted.org:443", "api.github.com:443"], ["pypi.org.evil.org:443"]),
    ],
)
def test_entries(entries: str, yes: list[str], no: list[str]) -> None:
    for text in yes + no:
        host, _, port = text.rpartition(":")
        assert allows(entries, host, int(port)) == (text in yes), text


@pytest.mark.parametrize(
    "entry", ["https://example.org", "example.org/path", "ex ample.org", "*", "*.", "a.*.org", "example.org:0",
              "example.org:99999", "127.1", "0x7f.0.0.1", "exämple.org", "-a.org", "a..b"],
)  # fmt: skip
def test_an_entry_that_means_nothing_is_refused_in_one_sentence(entry: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be allowed: write a host"):
        Policy([entry])
    assert all(HostRule.parse(host) for hosts in NAMED_SETS.values() for host in hosts)


@pytest.mark.parametrize(
    ("address", "words"),
    {
        "10.0.0.5": "private", "100.64.1.1": "private", "127.0.0.2": "loopback", "169.254.169.254": "metadata",
        "168.63.129.16": "metadata", "192.0.0.192": "metadata", "224.0.0.1": "multicast", "0.0.0.0": "private",
        "::ffff:8.8.8.8": "IPv6 form", "64:ff9b::808:808": "IPv6 form", "2002:808:808::": "IPv6 form", "::": "private",
        "fe80::1": "private", "fd00::1": "private", "8.8.8.8": "", "2606:4700::1111": "",
        "::7f00:1": "private", "fec0::1": "private", "::ffff:0:7f00:1": "private", "3fff::1": "private",
        "2606:4700::5efe:a00:1": "IPv6 form", "2606:4700::200:5efe:a00:1": "IPv6 form", "192.88.99.1": "private",
    }.items(),
)  # fmt: skip
def test_addresses(address: str, words: str) -> None:
    found = what_is_wrong_with(ipaddress.ip_address(address))
    assert found.startswith(words)
    assert bool(found) == bool(words)
    if words:
        policy = Policy([f"[{address}]:443" if ":" in address else f"{address}:443"])
        policy.check_address(ipaddress.ip_address(address), 443, PUBLIC)


def test_an_address_of_this_machine_is_known_without_a_list() -> None:
    own = address_of_this_machine() or "127.0.0.1"
    assert is_own_address(ipaddress.ip_address(own))
    assert not is_own_address(ipaddress.ip_address("93.184.215.14"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:  # a port that is in use says nothing
        taken.bind((own, 0))
        assert is_own_address(ipaddress.ip_address(own))


def test_a_person_adds_to_the_list() -> None:
    policy = Policy(["example.org,!evil.org"])
    policy.permit("once.org:443", once=True)
    policy.permit("run.org:22")
    policy.permit("evil.org")
    assert [policy.check("once.org", 443).host, policy.check("run.org", 22).host] == ["once.org", "run.org"]
    policy.check("run.org", 22)
    for host in ("once.org", "evil.org"):
        with pytest.raises(PolicyRefusalError):
            policy.check(host, 443)


def test_a_person_allows_a_private_address_for_one_connection() -> None:
    policy, address = Policy(), ipaddress.ip_address("10.0.0.5")
    policy.permit("10.0.0.5:5432", once=True)
    policy.check_address(address, 5432, policy.check("10.0.0.5", 5432))
    with pytest.raises(PolicyRefusalError, match="private"):
        policy.check_address(address, 5432, PUBLIC)


def test_a_denial_for_one_connection_allows_nothing() -> None:
    policy = Policy()
    policy.permit("!evil.org", once=True)
    with pytest.raises(PolicyRefusalError, match="not in the list"):
        policy.check("evil.org", 443)


def test_options_that_contradict_each_other() -> None:
    assert SandboxOptions(allow=("pypi",)).network == "allow"
    sent = SandboxOptions(network="allow", allow=("pypi", "a.org:22"), secrets={"KEY": ("a.org",)})
    assert SandboxOptions.from_json(sent.to_json()) == sent
    for given, words in [
        ({"isolation": "process", "network": "allow"}, "cannot enforce a list of allowed hosts"),
        ({"network": "none", "allow": ("pypi",)}, "use network='allow'"),
        ({"network": "allow", "proxy": "http://p"}, "leave the option proxy out"),
        (
            {"isolation": "bubblewrap", "network": "public", "proxy": "http://p"},
            "of bubblewrap brings its own",
        ),
        ({"secrets": {"KEY": ("10.0.0.1",)}}, "A secret is NAME=host"),
    ]:
        with pytest.raises(ValueError, match=words):
            SandboxOptions(**given)  # type: ignore[arg-type]


def test_a_secret_without_a_value_or_a_host_is_refused_without_repeating_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parse_secrets(["KEY=a.org,b.org"]) == {"KEY": ("a.org", "b.org")}
    assert parse_secrets(["KEY=a.org", "KEY=b.org"]) == {"KEY": ("a.org", "b.org")}
    for entry in ("KEY", "KEY=", "KEY=sk-A VALUE", "1KEY=a.org"):
        with pytest.raises(ValueError, match="NAME=host") as caught:
            parse_secrets([entry])
        assert "sk-" not in str(caught.value)
    for value in ("", "short", "with\nnewline in it"):
        monkeypatch.setenv("KEY", value)
        with pytest.raises(ValueError, match="KEY") as caught:
            read_secrets({"KEY": ("a.org",)})
        assert not value or value not in str(caught.value)
