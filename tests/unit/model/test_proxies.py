"""The proxy that an address is asked through, by the variables of the environment."""

import pytest

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.proxies import check_certificates, is_loopback, proxy_for

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("address", "environment", "proxy"),
    [
        ("https://a.example/v1", {}, None),
        ("https://a.example/v1", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example/v1", {"https_proxy": PROXY, "HTTPS_PROXY": "http://other:1"}, PROXY),
        ("https://a.example/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://a.example/v1", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://a.example/v1", {"ALL_PROXY": "proxy.example:3128"}, PROXY),
        ("https://a.example/v1", {"ALL_PROXY": PROXY, "NO_PROXY": "example"}, None),
        ("https://a.example/v1", {"ALL_PROXY": PROXY, "NO_PROXY": ".a.example, b"}, None),
        ("https://a.example/v1", {"ALL_PROXY": PROXY, "NO_PROXY": "*"}, None),
        ("https://a.example/v1", {"ALL_PROXY": PROXY, "NO_PROXY": "le,ample,[::1],bad::entry["}, PROXY),
        ("https://a.example:8443/v1", {"ALL_PROXY": PROXY, "NO_PROXY": "a.example:8443"}, None),
        ("https://a.example/v1", {"ALL_PROXY": PROXY, "NO_PROXY": "a.example:8443"}, PROXY),
        ("http://192.168.3.4:8000/v1", {"ALL_PROXY": PROXY, "NO_PROXY": "192.168.0.0/16"}, None),
        ("http://192.168.3.4:8000/v1", {"ALL_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, PROXY),
        ("http://[fd00::5]:8000/v1", {"ALL_PROXY": PROXY, "NO_PROXY": "[fd00::5]"}, None),
        ("http://127.0.0.1:8000/v1", {"ALL_PROXY": PROXY}, None),
        ("http://localhost:8000/v1", {"ALL_PROXY": "socks5://proxy.example"}, None),
        ("http://[::1]:8000/v1", {"HTTP_PROXY": PROXY}, None),
    ],
)
def test_the_proxy_of_an_address(address: str, environment: dict[str, str], proxy: str | None) -> None:
    assert proxy_for(address, environment) == proxy


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ALL_PROXY", "socks5://proxy.example", "for which the package socksio is missing"),
        ("all_proxy", "socks4://proxy.example", "of the kind socks4"),
        ("HTTPS_PROXY", "http://", "is not the address of a proxy"),
        ("HTTPS_PROXY", "http://a:b:c", "is not the address of a proxy"),
    ],
)
def test_a_value_that_cannot_be_used_names_the_variable(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=f"The environment variable {variable} .*{said}") as caught:
        proxy_for("https://a.example/v1", {variable: value})
    assert caught.value.kind == "setup"


def test_a_socks_proxy_is_used_where_its_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert proxy_for("https://a.example/v1", {"ALL_PROXY": "socks5h://p:1"}) == "socks5h://p:1"
    for address in ("socks5://", "socks5://p", "socks5://p:port"):
        with pytest.raises(ModelError, match="is not the address of a SOCKS proxy with its port"):
            proxy_for("https://a.example/v1", {"ALL_PROXY": address})


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"]
)
def test_hosts_that_are_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example", "10.0.0.1", "127.example", "", "0.0.0.0"])
def test_hosts_that_are_another_machine(host: str) -> None:
    assert not is_loopback(host)


def test_certificates_that_are_not_there_are_named() -> None:
    with pytest.raises(ModelError, match="SSL_CERT_DIR names /nowhere, which does not exist"):
        check_certificates("https://a.example/v1", {"SSL_CERT_DIR": "/nowhere"})
    check_certificates("http://localhost/v1", {"SSL_CERT_DIR": "/nowhere"})
