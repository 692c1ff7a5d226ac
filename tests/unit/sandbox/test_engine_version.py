"""The name and version of what answers as a Docker engine."""

from __future__ import annotations

from typing import Any

import pytest
from loopback_http import LoopbackHandler, LoopbackServer

from llm_sandbox_nb.sandbox.docker.engine import engine_version


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"Components": [{"Name": "Engine"}, {"Name": "containerd"}], "Version": "27.3.1"}, "Docker 27.3.1"),
        ({"Components": [{"Name": "Podman Engine"}], "Version": "4.3.1"}, "Podman 4.3.1"),
        ({"Components": [], "Version": "20.10"}, "Docker 20.10"),
        ({"Version": "19.03"}, "Docker 19.03"),
        ({}, "Docker ?"),
    ],
)
def test_an_engine_is_named_as_it_names_itself(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], said: str
) -> None:
    class Engine(LoopbackHandler):
        def do_GET(self) -> None:
            self.send(200, {"ApiVersion": "1.43", **answer} if self.path.endswith("/version") else {})

    with LoopbackServer(Engine) as server:
        monkeypatch.setenv("DOCKER_HOST", server.root.replace("http", "tcp"))
        assert engine_version() == said
