"""The registry of isolations: their names and properties.

A new isolation needs a row in this registry, a module with the functions of `open.Implementation` (and of
`open.OwnedImplementation` or `open.AdoptingImplementation`), and descriptions in
`trajectory/protection.py:ISOLATION_WORDS`. It also needs a pytest marker with its name in pyproject.toml, and its name
in the settings of JupyterLab (`labextension/schema/plugin.json`), in `server/rest-api.yml`, in `open.open_sandbox` and
in docs/reference/sandbox.md. Its properties are described in isolation.md and threat-model.md of docs/explanation, and
its installation in docs/how-to/install.md.

For CI, it needs its system packages in `.ci/run` and its folder in the rows of `.ci/campaigns.txt`. Most tests find it
in this registry. Add it to the tests that name isolations, which check or measure the means of each isolation: those in
tests/performance, test_benchmark_killed.py, test_check_attacks.py and test_sandbox_reuse.py.

Options, command lines and settings import this module. It is quick to import, because it imports no other module of the
package, not even the modules of the isolations.
"""

from __future__ import annotations

from dataclasses import dataclass

PROFILES = ("standard", "strict")
NETWORKS = ("none", "allow", "public", "open")
"""Networks that a sandbox can have, the safest first. The last one, `open`, is not safe: programs inside can use
services of this machine and of the network around it."""


@dataclass(frozen=True)
class Isolation:
    """Properties of all sandboxes with an isolation. `contract.Protection` describes one running sandbox."""

    name: str
    implementation: str
    """Name of the module with the functions of `open.Implementation`."""
    install_hint: str
    """Instructions for a user of a machine on which the isolation does not work yet."""
    checkpoints: str
    """Sentences about the files that checkpoints cover."""
    automatic: bool = True
    """True if the isolation `auto` may choose this isolation. `auto` tries the rows of `ISOLATIONS` in their order."""
    isolates: bool = True
    """True if commands cannot change other files and processes of this machine."""
    takes_images: bool = False
    """True if the option `image` can choose the image of a sandbox."""
    networks: tuple[str, ...] = NETWORKS
    """Networks that the isolation offers."""
    usual_network: str = "none"
    """Default network of the profile `standard`. The profile `strict` has the default `none` if `networks` has it."""
    own_root: bool = False
    """True if a sandbox works directly in a folder of this machine, and checkpoints cover only this folder. If False,
    the working directory is `/testbed` inside, and checkpoints cover all files inside that commands can write."""
    door_for_public: bool = False
    """True if the network `public` leads through a proxy of this package, because the isolation cannot filter packets:
    see `SandboxOptions.has_door`."""
    survives_owner: bool = False
    """True if a sandbox lives on for a while after its owner, the process that opened it, was killed. Another process
    can then adopt the sandbox; see `open.AdoptingImplementation`."""


ISOLATIONS: dict[str, Isolation] = {
    row.name: row
    for row in (
        Isolation(
            "docker",
            "llm_sandbox_nb.sandbox.docker.sandbox",
            "start an engine or point DOCKER_HOST to one; make the image: llm-sandbox-nb image build",
            "Checkpoints cover every file in the container, but not running processes.",
            takes_images=True,
            usual_network="public",
            survives_owner=True,
        ),
        Isolation(
            "bubblewrap",
            "llm_sandbox_nb.sandbox.bubblewrap.sandbox",
            "on Linux, install the package bubblewrap and allow unprivileged user namespaces",
            "Checkpoints cover every folder that can be written in the sandbox, but not running processes.",
            door_for_public=True,
        ),
        Isolation(
            "process",
            "llm_sandbox_nb.sandbox.process",
            "use Linux, and install bash",
            "Checkpoints cover the working directory only, and no running processes: everything else that "
            "commands can change here belongs to your own machine.",
            automatic=False,
            isolates=False,
            networks=("open",),
            usual_network="open",
            own_root=True,
        ),
    )
}


ISOLATION_VARIABLE = "LLM_SANDBOX_ISOLATION"
"""Environment variable that chooses the isolation."""


def isolation_choices() -> tuple[str, ...]:
    """Return the valid values of the option `isolation`: `auto` and the names of all isolations."""
    return ("auto", *ISOLATIONS)


def automatic_isolations() -> list[str]:
    """Return the names of the isolations from which `auto` chooses, the strongest first."""
    return [row.name for row in ISOLATIONS.values() if row.automatic]


def default_network(name: object, profile: object) -> str:
    """Return the default network of an isolation and profile. Return `"none"` for an unknown isolation."""
    if not isinstance(name, str) or name not in ISOLATIONS:
        return "none"
    row = ISOLATIONS[name]
    return "none" if profile == "strict" and "none" in row.networks else row.usual_network


def has_own_root(name: object) -> bool:
    """Return `own_root` of the isolation `name`. Return False for an unknown name, e.g. from another version's file."""
    return isinstance(name, str) and name in ISOLATIONS and ISOLATIONS[name].own_root


def isolates(name: object) -> bool:
    """Return `isolates` of the isolation `name`. Return True for an unknown name, e.g. from another version's file."""
    return not isinstance(name, str) or name not in ISOLATIONS or ISOLATIONS[name].isolates
