"""What a site's policy lets through, fills in and refuses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traitlets import TraitError
from traitlets.config import Config

from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE
from llm_sandbox_nb.sandbox.errors import PolicyError
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.server.policy import SandboxPolicy


def policy(**traits: object) -> SandboxPolicy:
    return SandboxPolicy(config=Config({"SandboxPolicy": traits}))


def test_defaults_are_those_of_the_sandbox_room() -> None:
    spec = policy().resolve(SandboxOptions())
    assert spec == SandboxOptions("auto", "standard", None, None, Limits())


@pytest.mark.parametrize(
    ("traits", "asked", "sentence"),
    [
        ({"allowed_isolations": ["docker"]}, {"isolation": "process"}, "'process'; ask for 'docker'"),
        ({"allowed_isolations": ["process"]}, {"isolation": "auto"}, "ask for it by name"),
        ({"allowed_isolations": ["process"]}, {}, "ask for it by name"),
        ({"allowed_profiles": ["strict"]}, {"profile": "standard"}, "profile 'standard'"),
        ({"allowed_profiles": ["strict"]}, {}, "profile 'standard'"),
        ({"allowed_images": ["ours/*"]}, {"image": "theirs/x"}, "image 'theirs/x'"),
        ({"allowed_images": ["ours/*"]}, {"image": "OURS/x"}, "image 'OURS/x'"),
        ({"allowed_networks": ["none"]}, {"network": "open"}, "network 'open'"),
        ({"allowed_networks": ["none", "public"]}, {"network": "open"}, "ask for 'none' or 'public'."),
        ({}, {"network": "lan"}, "ask for 'none' or 'allow' or 'public' or 'open'."),
        ({"allowed_networks": ["open"]}, {"network": "none"}, "ask for 'allow' or 'public' or 'open'."),
        ({"allowed_networks": []}, {}, "an administrator has allowed none"),
        (
            {"max_memory_bytes": 2**31},
            {"limits": {"memory_bytes": 2**31 + 1}},
            "at most 2147483648 for memory_bytes; 2147483649",
        ),
        ({"max_memory_bytes": 2**31}, {"limits": {"memory_bytes": None}}, "no limit was asked for"),
        ({"max_cpus": 0.5}, {"limits": {"cpus": 0.6}}, "at most 0.5 for cpus"),
        ({"max_pids": 50}, {"limits": {"pids": 60}}, "at most 50 for pids"),
        ({"proxy": "http://a"}, {"proxy": "http://b"}, "fixes the proxy"),
        ({"index_url": "http://a"}, {"index_url": "http://b"}, "fixes the package index"),
        ({"ca_bundle": "/site.pem"}, {"ca_bundle_pem": "-----BEGIN"}, "fixes the CA bundle"),
    ],
)
def test_refused_in_one_sentence(traits: dict[str, object], asked: dict[str, object], sentence: str) -> None:
    site = policy(**traits)
    with pytest.raises(PolicyError) as caught:
        site.resolve(site.read_request(asked))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_auto_takes_only_what_is_allowed() -> None:
    resolve = policy(allowed_isolations=["bubblewrap", "process"]).resolve
    assert resolve(SandboxOptions()).isolation == "bubblewrap"
    assert resolve(SandboxOptions(isolation="process")).isolation == "process"


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_a_closed_network_holds_when_nothing_is_asked_for(profile: str) -> None:
    assert policy(allowed_networks=["none"]).resolve(SandboxOptions(profile=profile)).network == "none"


def test_the_default_image_and_our_own_need_not_match_the_patterns() -> None:
    site = policy(allowed_images=["ours/*"], default_image="site/base")
    assert site.resolve(SandboxOptions()).image == "site/base"
    for image in ("site/base", "ours/a"):
        assert site.resolve(SandboxOptions(image=image)).image == image
    assert (
        policy(allowed_images=["team/*"]).resolve(SandboxOptions(image=DEFAULT_IMAGE)).image == DEFAULT_IMAGE
    )
    with pytest.raises(PolicyError):
        policy(allowed_images=["team/*"], default_image="team/a").resolve(SandboxOptions(image=DEFAULT_IMAGE))


def test_defaults_never_exceed_the_maximum() -> None:
    site = policy(max_memory_bytes=10**8, max_pids=70, max_cpus=0.5, default_pids=None)
    assert site.resolve(SandboxOptions()).limits == Limits(10**8, 70, 0.5)


@pytest.mark.parametrize(
    "body",
    [
        {"isolation": 3},
        {"image": ""},
        {"image": "x" * 5000},
        {"limits": []},
        {"limits": {"disk": 3}},
        {"limits": {"pids": "many"}},
        {"limits": {"pids": -1}},
        {"limits": {"cpus": True}},
        {"limits": {"cpus": float("nan")}},
        {"proxy": ["x"]},
    ],
)
def test_malformed_requests_name_the_field(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=repr(next(iter(body)))[1:-1]):
        policy().read_request(body)


@pytest.mark.parametrize(
    ("allowed", "asked", "network"),
    [
        (["none", "open"], {"network": "public"}, "public"),
        (["none", "open"], {"network": "allow", "allow": ["pypi"]}, "allow"),
        (["none", "open"], {"isolation": "docker"}, None),
        (["none"], {"isolation": "docker"}, "none"),
        (["public"], {"isolation": "docker", "profile": "strict"}, "public"),
    ],
)
def test_a_site_that_allows_the_open_network_allows_the_public_one(
    allowed: list[str], asked: dict[str, object], network: str | None
) -> None:
    site = policy(allowed_networks=allowed)
    assert site.resolve(site.read_request(asked)).network == network


def test_a_trait_that_makes_no_sense_is_refused_at_start() -> None:
    with pytest.raises(TraitError):
        policy(allowed_isolations=["chroot"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "isolation": st.sampled_from(["auto", "docker", "bubblewrap", "process", "magic"]),
            "profile": st.sampled_from(["standard", "strict", "lax"]),
            "network": st.sampled_from(["none", "public", "open", "half"]),
            "limits": st.dictionaries(
                st.sampled_from(["memory_bytes", "pids", "cpus"]), st.none() | st.floats(1, 1e12)
            ),
        },
    )
)
def test_nothing_outside_the_policy_gets_through(body: dict[str, object]) -> None:
    site = policy(allowed_isolations=["docker"], allowed_profiles=["strict"], default_profile="strict",
                  allowed_networks=["none"], max_memory_bytes=10**9, max_pids=100, max_cpus=1.5)  # fmt: skip
    try:
        spec = site.resolve(site.read_request(body))
    except (PolicyError, ValueError):
        return
    assert (spec.isolation, spec.profile, spec.network) == ("docker", "strict", "none")
    assert spec.limits is not None
    assert spec.limits.memory_bytes is not None
    assert spec.limits.memory_bytes <= 10**9
    assert spec.limits.pids is not None
    assert spec.limits.pids <= 100
    assert spec.limits.cpus is not None
    assert spec.limits.cpus <= 1.5


def test_a_spec_survives_its_label() -> None:
    spec = policy().resolve(policy().read_request({"image": "a/b", "limits": {"pids": 9}}))
    assert SandboxOptions.from_json(json.loads(json.dumps(spec.to_json()))) == spec
