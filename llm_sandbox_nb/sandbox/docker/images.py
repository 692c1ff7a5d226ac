"""Functions that build this package's image, and that pull, list and check images of sandboxes."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal

from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.docker.engine import PREFIX, connect, engine_errors, one_line
from llm_sandbox_nb.sandbox.docker.ownership import owner_labels
from llm_sandbox_nb.sandbox.errors import ImageError
from llm_sandbox_nb.version import __version__

if TYPE_CHECKING:
    from llm_sandbox_nb.sandbox.docker.api import LogConfig

Target = Literal["full", "slim"]
Progress = Callable[[str], None]
"""Function that is called with one line of text at a time."""

DEFAULT_IMAGE = f"{PREFIX}:{__version__}"
SLIM_IMAGE = f"{PREFIX}:{__version__}-slim"
BASE_IMAGE = "debian:bookworm-slim"
SCIENTIFIC = ("numpy", "scipy", "sympy", "mpmath", "matplotlib", "pandas", "pillow", "chardet")
PROGRAMS = (
    "bash", "python3", "git", "curl", "pytest", "ssh", "rg", "jq", "sqlite3", "tree", "pdftotext", "wget",
    "gcc", "ffmpeg", "ipython",
)  # fmt: skip
OLDEST_PYTHON = (3, 8)
CHECK_TIMEOUT = 60
"""Seconds in which the check in a container must end."""

_MAX_LINE_LENGTH = 200
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_IMAGE_FOLDER = files("llm_sandbox_nb.sandbox") / "image"


@dataclass(frozen=True)
class ImageInfo:
    """An image of this package on the engine."""

    name: str
    id: str
    size: int
    """Size in bytes."""
    created: str
    """Creation time as ISO date and time."""


@dataclass(frozen=True)
class ImageCheck:
    """Result of a check of an image."""

    name: str
    size: int
    """Size in bytes."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Programs in the image, and their versions."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Python packages in the image, and their versions."""
    missing: tuple[str, ...] = ()
    """Names in `PROGRAMS` and `SCIENTIFIC`, which the default image has, that this image lacks."""
    problem: str = ""
    """A sentence: the reason why no sandbox can run in the image. Empty if the image can be used."""

    @property
    def usable(self) -> bool:
        """True if a sandbox can run in the image."""
        return not self.problem


def build_image(
    target: Target = "full",
    tag: str | None = None,
    *,
    base_image: str | None = None,
    ca_bundle: Path | str | None = None,
    index_url: str | None = None,
    proxy: str | None = None,
    force: bool = False,
    on_progress: Progress | None = None,
) -> str:
    """Build an image from the Dockerfile in this package. Return the image's name.

    Args:
        target: the build target of the Dockerfile: `"full"`, or `"slim"` without compilers, ffmpeg and scipy.
        tag: name of the image. If None, the name is made from `target` and the package's version.
        base_image: image on which the new image is based; `BASE_IMAGE` if None.
        ca_bundle: PEM file of certificates that programs in the image trust, also after the build.
        index_url: Python package index, for the build only.
        proxy: HTTP proxy, for the build only.
        force: True to ignore the engine's build cache.
        on_progress: function that is called with each line that the build prints.

    Raises:
        IsolationUnavailableError: if no engine answers.
        ImageError: if the build fails. The message has the last lines that the build printed.
        FileNotFoundError: if `ca_bundle` is missing.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError

    name = tag or (DEFAULT_IMAGE if target == "full" else SLIM_IMAGE)
    context = _build_context(ca_bundle, index_url)
    arguments = {"BASE_IMAGE": base_image or BASE_IMAGE}
    if proxy:
        arguments |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy)
    with engine_errors():
        try:
            lines = connect().api.build(
                fileobj=context, custom_context=True, encoding="gzip", tag=name, target=target,
                buildargs=arguments, labels={f"{PREFIX}.image": f"{target} {__version__}"},
                nocache=force, rm=True, forcerm=True, decode=True,
            )  # fmt: skip
            _follow(lines, on_progress, f"The image {name} could not be built")
        except APIError as error:
            raise ImageError(f"The image {name} could not be built: {one_line(error)}.") from error
    return name


def pull_image(name: str, *, on_progress: Progress | None = None) -> str:
    """Pull an image from a registry. Return the image's name with its tag, which is `latest` if `name` has no tag.

    Raises:
        IsolationUnavailableError: if no engine answers.
        ImageError: if the image cannot be pulled.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError, parse_repository_tag

    repository, tag = parse_repository_tag(name)
    with engine_errors():
        try:
            lines = connect().api.pull(repository, tag=tag or "latest", stream=True, decode=True)
            _follow(lines, on_progress, f"The image {name} could not be pulled")
        except APIError as error:
            raise ImageError(f"The image {name} could not be pulled: {one_line(error)}.") from error
    return name if tag else f"{name}:latest"


def list_images() -> list[ImageInfo]:
    """Return all images that this package has built or whose name is `llm-sandbox-nb`, the newest first.

    Raises:
        IsolationUnavailableError: if no engine answers.
    """
    with engine_errors():
        api = connect().api
        found = [*api.images(filters={"label": f"{PREFIX}.image"}), *api.images(name=PREFIX)]
    named = {
        tag: ImageInfo(
            tag, image["Id"], image["Size"], datetime.fromtimestamp(image["Created"], UTC).isoformat()
        )
        for image in found
        for tag in image.get("RepoTags") or ()
        if tag != "<none>:<none>"
    }
    return sorted(named.values(), key=lambda image: (image.created, image.name), reverse=True)


def check_image(name: str = DEFAULT_IMAGE) -> ImageCheck:
    """List the programs and packages of an image, and check if a sandbox can run in it. This starts a container.

    Raises:
        IsolationUnavailableError: if no engine answers.
        ImageError: if the image is missing.
    """
    size = int(find_image(name)["Size"])
    lines = _run_check(name)
    if not any(line.startswith("shell ") for line in lines):
        return ImageCheck(name, size, problem=unusable(name, ("bash", "python3")))
    programs = dict(_pairs(lines, "program"))
    packages = dict(_pairs(lines, "package"))
    lacking = [program for program in ("bash", "python3") if program not in programs]
    python = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", programs.get("python3", ""))
    problem = ""
    if lacking:
        problem = unusable(name, lacking)
    elif not python or tuple(map(int, python.groups())) < OLDEST_PYTHON:
        problem = (
            f"The image {name} has Python {programs['python3']}, and a sandbox needs 3.8 or later: "
            f"use {DEFAULT_IMAGE}."
        )
    missing = [item for item in (*PROGRAMS, *SCIENTIFIC) if item not in programs and item not in packages]
    return ImageCheck(name, size, programs, packages, tuple(missing), problem)


def find_image(name: str) -> dict[str, Any]:
    """Return the engine's description of an image.

    Raises:
        IsolationUnavailableError: if no engine answers.
        ImageError: if the image is missing or cannot be used. For a missing image, the message has the command that
            builds or pulls the image.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError, ImageNotFound

    with engine_errors():
        try:
            inspected: dict[str, Any] = connect().api.inspect_image(name)  # type: ignore[no-untyped-call]
        except ImageNotFound as error:
            raise ImageError(missing_image(name)) from error
        except APIError as error:
            raise ImageError(f"The image {name} cannot be used: {one_line(error)}.") from error
    return inspected


def missing_image(name: str) -> str:
    """Return the error message for an image that is not on the engine."""
    if name in (DEFAULT_IMAGE, SLIM_IMAGE):
        option = "" if name == DEFAULT_IMAGE else " --target slim"
        return f"The image {name} is not there yet: make it with `llm-sandbox-nb image build{option}`."
    return f"The image {name} is not on this Docker engine: fetch it with `llm-sandbox-nb image pull {name}`."


def unusable(name: str, lacking: Iterable[str]) -> str:
    """Return the error message for an image that lacks programs that every sandbox needs."""
    return (
        f"The image {name} has no {' and no '.join(lacking)}, which every sandbox needs: "
        f"install it in the image, or use {DEFAULT_IMAGE}."
    )


def output_log() -> LogConfig:
    """Return the log setting of a container whose output is read after its end.

    The engine then keeps the last megabyte of the output. By default, an engine might keep nothing or everything.
    """
    from llm_sandbox_nb.sandbox.docker.api import LogConfig

    return LogConfig(type=LogConfig.types.JSON, config={"max-size": "1m", "max-file": "1"})


def _run_check(name: str) -> list[str]:
    from requests import RequestException

    from llm_sandbox_nb.sandbox.docker.api import APIError

    with engine_errors():
        client = connect()
        try:
            container = client.containers.create(
                name,
                ["sh", "-c", (_IMAGE_FOLDER / "check.sh").read_text(), "check", *PROGRAMS],
                entrypoint=[],
                user="0",
                cap_drop=["ALL"],
                network_mode="none",
                mem_limit="512m",
                pids_limit=128,
                labels=owner_labels(f"check-{token_hex(4)}", CHECK_TIMEOUT, {"check": name}),
                log_config=output_log(),
            )
        except APIError as error:
            raise ImageError(f"The image {name} cannot be started: {one_line(error)}.") from error
        try:
            container.start()
            container.wait(timeout=CHECK_TIMEOUT)
            return container.logs(stdout=True, stderr=False).decode("utf-8", "replace").splitlines()
        except (APIError, RequestException):  # the shell is missing, or does not end
            return []
        finally:
            container.remove(force=True, v=True)


def _pairs(lines: Iterable[str], kind: str) -> Iterator[tuple[str, str]]:
    for line in lines:
        parts = line.split(" ", 2)
        # People read these texts in a terminal, so control characters that a hostile image prints must not pass.
        if len(parts) == 3 and parts[0] == kind and line.isprintable() and len(line) <= _MAX_LINE_LENGTH:
            yield parts[1], parts[2]


def _follow(lines: Iterable[Mapping[str, Any]], on_progress: Progress | None, failure: str) -> None:
    """Pass the messages of a build or pull to `on_progress`, each as a line of text.

    Raises:
        ImageError: if a message is an error. The exception's message begins with `failure`.
    """
    last: list[str] = []
    shown = ""
    for line in lines:
        if "error" in line:
            tail = " | ".join(last[-5:])
            reason = " ".join(str(line["error"]).split()).rstrip(".")
            raise ImageError(f"{failure}: {reason}." + (f" Before that: {tail}" if tail else ""))
        if line.get("stream"):
            text = str(line["stream"]).strip()
        elif line.get("progressDetail"):  # the progress of a layer, which is sent many times per second
            continue
        else:
            text = " ".join(str(line[key]) for key in ("id", "status") if line.get(key)).strip()
        if text and text != shown:
            shown = text
            last = [*last[-20:], text]
            if on_progress:
                on_progress(text)


def _build_context(ca_bundle: Path | str | None, index_url: str | None) -> io.BytesIO:
    """Return a tar file for a build: the folder of the Dockerfile, with the site's certificates and pip settings."""
    folder = Path(str(_IMAGE_FOLDER))
    paths = [path for path in folder.rglob("*") if path.is_file() and path != folder / "check.sh"]
    content = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    if index_url:
        content["site/pip.conf"] = f"[global]\nindex-url = {index_url}\n".encode()
    for number, certificate in enumerate(_certificates(ca_bundle)):
        content[f"site/ca/site-{number:03}.crt"] = certificate.encode("ascii")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, data in sorted(content.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o755 if name.startswith("install-") else 0o644
            archive.addfile(member, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def _certificates(ca_bundle: Path | str | None) -> list[str]:
    if ca_bundle is None:
        return []
    text = expanded(ca_bundle).read_text("ascii", "replace")
    found = _CERTIFICATE.findall(text)
    if not found:
        raise ImageError(
            f"The CA bundle {ca_bundle} holds no certificate in PEM form: name a file with certificates."
        )
    return list(dict.fromkeys(found))
