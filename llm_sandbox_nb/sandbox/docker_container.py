"""What is asked of the engine about one container. All of it blocks; `docker.py` calls it in threads."""

from __future__ import annotations

import io
import secrets
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.sandbox.bootstrap import bootstrap_argv
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.docker_engine import (
    PREFIX,
    connect,
    engine_errors,
    find_endpoint,
    lost_errors,
    one_line,
    unexpected,
)
from llm_sandbox_nb.sandbox.docker_image import missing_image, unusable
from llm_sandbox_nb.sandbox.docker_owner import (
    LABEL_ID,
    adopted_name,
    container_name,
    current_owner,
    owner_labels,
    owner_of,
)
from llm_sandbox_nb.sandbox.docker_settings import (
    NETWORK_NAME,
    ContainerSettings,
    container_arguments,
    ensure_network,
    first_program,
)
from llm_sandbox_nb.sandbox.errors import ImageError, SandboxError, SandboxLostError

LABEL_PROFILE = f"{PREFIX}.profile"
LABEL_ROOT = f"{PREFIX}.root"
CA_PATH = "/etc/ssl/llm-sandbox-nb-site.pem"
_APT_SETTINGS = "/etc/apt/apt.conf.d/90llm-sandbox-nb-site"
REMOVAL_TIMEOUT = 20

_networks_ready: set[str] = set()


@dataclass(frozen=True)
class Container:
    """A container of ours: its id on the engine and our own name for it."""

    id: str
    sandbox_id: str
    profile: str
    directories: Directories


def create_container(settings: ContainerSettings, ca_bundle: Path | None, lease: float) -> Container:
    """Make a container, not yet started. It carries all its labels from the first moment.

    Raises:
        ImageError: the image is not there.
        SandboxError: the engine refuses.
    """
    from llm_sandbox_nb.sandbox.docker_api import APIError, ImageNotFound

    client = connect()
    if settings.reach == "open":
        _have_network()
    sandbox_id = secrets.token_hex(6)
    arguments = container_arguments(
        client,
        settings,
        first_program(settings, bootstrap_argv()),
        owner_labels(sandbox_id, lease, settings.labels),
    )
    try:
        made = client.api.create_container(name=container_name(sandbox_id), **arguments)
    except ImageNotFound as error:
        raise ImageError(missing_image(settings.image)) from error
    except APIError as error:
        if "invalid reference" in one_line(error):
            raise ImageError(f"{settings.image!r} is no name of an image: correct it.") from error
        raise unexpected(error, "make a container") from error
    container = Container(made["Id"], sandbox_id, settings.profile, settings.directories)
    if ca_bundle is not None:
        try:
            _trust(container.id, ca_bundle)
        except BaseException:
            remove_container(container.id)
            raise
    return container


def _have_network() -> None:
    url = find_endpoint().url
    if url not in _networks_ready:
        ensure_network(connect())
        _networks_ready.add(url)


def _trust(container: str, ca_bundle: Path) -> None:
    """Put a site's certificates into a container that has not started yet, also for apt."""
    from llm_sandbox_nb.sandbox.docker_api import APIError

    apt = f'Acquire::https::CAInfo "{CA_PATH}";\n'.encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in ((CA_PATH, ca_bundle.read_bytes()), (_APT_SETTINGS, apt)):
            member = tarfile.TarInfo(path.strip("/"))
            member.mode, member.size = 0o644, len(data)
            archive.addfile(member, io.BytesIO(data))
    try:
        connect().api.put_archive(container, "/", buffer.getvalue())
    except APIError as error:
        raise unexpected(error, "put certificates into a new container") from error


def start_container(container: str, image: str, *, again: bool = True) -> None:
    """Start a container; a network that somebody has removed meanwhile is made again.

    Raises:
        ImageError: the image has no python3.
        SandboxError: the engine refuses.
    """
    from llm_sandbox_nb.sandbox.docker_api import APIError

    try:
        connect().api.start(container)
    except APIError as error:
        text = one_line(error)
        if again and NETWORK_NAME in text and "not found" in text:
            _networks_ready.clear()
            _have_network()
            start_container(container, image, again=False)
        elif "python3" in text:
            raise ImageError(unusable(image, ["python3"])) from error
        else:
            raise unexpected(error, "start a container") from error


def inspect_container(container: str) -> dict[str, Any]:
    """What the engine knows of a container.

    Raises:
        SandboxLostError: it is gone, or the engine is.
    """
    with lost_errors("its container is gone"):
        found: dict[str, Any] = connect().api.inspect_container(container)
    return found


def take_over(container_id: str) -> Container:
    """Check that a container may be adopted, and mark it as this process's.

    Raises:
        SandboxError: it is none of ours, or its owner may live.
        SandboxLostError: it has ended.
    """
    from llm_sandbox_nb.sandbox.docker_api import APIError

    found = inspect_container(container_id)
    labels: dict[str, str] = found["Config"].get("Labels") or {}
    owner = owner_of({"Labels": labels, "Names": [found.get("Name", "")]})
    if owner is None:
        raise SandboxError(f"The container {container_id[:12]} is no sandbox of {PREFIX}: name one that is.")
    if not owner.is_dead() and owner != current_owner():
        raise SandboxError(
            f"The sandbox {labels[LABEL_ID]} belongs to a process that may live: end that first."
        )
    if not found["State"].get("Running"):
        raise SandboxLostError(f"The sandbox {labels[LABEL_ID]} has ended; open a new one.")
    try:
        connect().api.rename(container_id, adopted_name(labels[LABEL_ID]))
    except APIError as error:
        if error.status_code != 400:
            raise SandboxLostError(f"The sandbox is lost: {one_line(error)}; open a new one.") from error
    root = labels.get(LABEL_ROOT, Directories().root)
    return Container(found["Id"], labels[LABEL_ID], labels.get(LABEL_PROFILE, "standard"), Directories(root))


def remove_container(container: str) -> None:
    """Remove a container with everything in it, and wait until it is gone."""
    from llm_sandbox_nb.sandbox.docker_api import APIError, NotFound

    client = connect()
    with engine_errors():
        try:
            client.api.remove_container(container, force=True, v=True)
        except NotFound:
            return
        except APIError as error:
            # 409: it is about to be removed already; 500: and the engine stumbled over that itself.
            if error.status_code not in (409, 500):
                raise unexpected(error, "remove a container") from error
            _wait_until_removed(container)


def _wait_until_removed(container: str) -> None:
    """The engine is about to remove it already."""
    from llm_sandbox_nb.sandbox.docker_api import NotFound

    try:
        connect().api.wait(container, timeout=REMOVAL_TIMEOUT, condition="removed")
    except NotFound:
        return
