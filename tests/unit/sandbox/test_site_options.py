"""Checks of the options that lead a sandbox to a site's own servers."""

from __future__ import annotations

import pytest

from llm_sandbox_nb.sandbox.options import SandboxOptions


@pytest.mark.parametrize(
    "wrong", ["foo", "", "squid:3128", "http://", "http://proxy.example:port", "http://[::1"]
)
@pytest.mark.parametrize("name", ["proxy", "index_url"])
def test_an_address_without_a_host_is_refused(name: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"The {name} .* is not a URL with a host; give one such as http"):
        SandboxOptions(**{name: wrong})


@pytest.mark.parametrize(
    "right", ["http://proxy.example:3128", "http://u:p@10.0.0.1", "socks5h://[::1]:1080"]
)
def test_an_address_with_a_host_is_accepted(right: str) -> None:
    assert SandboxOptions(proxy=right).proxy == right
    assert SandboxOptions(index_url="file:///srv/index/simple").index_url
