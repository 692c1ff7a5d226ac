"""The images sandboxes are made of: building ours, pulling, listing, and checking any."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from llm_sandbox_nb.sandbox.docker.engine import PREFIX, connect, engine_errors, one_line
from llm_sandbox_nb.sandbox.docker.ownership import owner_labels
from llm_sandbox_nb.sandbox.errors import ImageError
from llm_sandbox_nb.version import __version__

Target = Literal["full", "slim"]
Progress = Callable[[str], None]
"""Called with one line of text at a time."""

DEFAULT_IMAGE = f"{PREFIX}:{__version__}"
SLIM_IMAGE = f"{PREFIX}:{__version__}-slim"
BASE_IMAGE = "debian:bookworm-slim"
SCIENTIFIC = ("numpy", "scipy", "sympy", "mpmath", "matplotlib", "pandas", "pillow", "chardet")
SLIM_PACKAGES = ("numpy", "sympy", "mpmath", "matplotlib", "pandas", "pillow")
PROGRAMS = (
    "bash", "python3", "git", "curl", "pytest", "ssh", "rg", "jq", "sqlite3", "tree", "pdftotext", "wget",
    "gcc", "ffmpeg", "ipython",
)  # fmt: skip
CHECK_TIMEOUT = 60
"""Seconds a container may take to answer what it has."""

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_CHECK = (files("llm_sandbox_nb.sandbox") / "image" / "check.sh").read_text


@dataclass(frozen=True)
class ImageInfo:
    """One of our images on the engine. `size` is in bytes."""

    name: str
    id: str
    size: int
    created: str


@dataclass(frozen=True)
class ImageCheck:
    """What an image offers. It can be used when `problem` is empty; `missing` are things of ours it lacks."""

    name: str
    size: int
    programs: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    problem: str = ""

    @property
    def usable(self) -> bool:
        """Whether a sandbox can be made of it."""
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
    """Build our image from the Dockerfile in this package; returns its name.

    `ca_bundle` is a PEM file of authorities to trust (they stay in the image), `index_url` the Python package
    index and `proxy` the HTTP proxy (these do not stay); `force` ignores what the engine has cached.

    Raises:
        IsolationUnavailableError: no engine answers.
        ImageError: the build failed; the message has the last lines it printed.
        FileNotFoundError: `ca_bundle` is missing.
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
    """Fetch an image from the registry its name says; returns the name with its tag.

    Raises:
        IsolationUnavailableError: no engine answers.
        ImageError: the registry does not give it.
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
    """Our images on this engine, newest first: those this package built, and those that go by its names.

    Raises:
        IsolationUnavailableError: no engine answers.
    """
    with engine_errors():
        api = connect().api
        found = [*api.images(filters={"label": f"{PREFIX}.image"}), *api.images(name=PREFIX)]
    named = {
        tag: ImageInfo(tag, image["Id"], image["Size"], _when(image["Created"]))
        for image in found
        for tag in image.get("RepoTags") or ()
        if tag != "<none>:<none>"
    }
    return sorted(named.values(), key=lambda image: (image.created, image.name), reverse=True)


def check_image(name: str = DEFAULT_IMAGE) -> ImageCheck:
    """Start the image once and say what it has, and whether a sandbox can be made of it.

    Raises:
        IsolationUnavailableError: no engine answers.
        ImageError: there is no such image.
    """
    size = int(find_image(name)["Size"])
    lines = _run_check(name)
    if not any(line.startswith("shell ") for line in lines):
        return ImageCheck(name, size, problem=unusable(name, ("bash", "python3")))
    programs = dict(_pairs(lines, "program"))
    packages = dict(_pairs(lines, "package"))
    lacking = [program for program in ("bash", "python3") if program not in programs]
    problem = unusable(name, lacking) if lacking else _too_old(name, programs["python3"])
    missing = [item for item in (*PROGRAMS, *SCIENTIFIC) if item not in programs and item not in packages]
    return ImageCheck(name, size, programs, packages, tuple(missing), problem)


def find_image(name: str) -> dict[str, Any]:
    """What the engine knows of an image.

    Raises:
        IsolationUnavailableError: no engine answers.
        ImageError: there is no such image; the message names the command that brings it.
    """
    from llm_sandbox_nb.sandbox.docker.api import APIError, ImageNotFound

    with engine_errors():
        try:
            found: dict[str, Any] = connect().api.inspect_image(name)  # type: ignore[no-untyped-call]
        except ImageNotFound as error:
            raise ImageError(missing_image(name)) from error
        except APIError as error:
            raise ImageError(f"The image {name} cannot be used: {one_line(error)}.") from error
    return found


def missing_image(name: str) -> str:
    """The sentence for an image that is not on the engine."""
    if name in (DEFAULT_IMAGE, SLIM_IMAGE):
        option = "" if name == DEFAULT_IMAGE else " --target slim"
        return f"The image {name} is not there yet: make it with `llm-sandbox-nb image build{option}`."
    return f"The image {name} is not on this Docker engine: fetch it with `llm-sandbox-nb image pull {name}`."


def unusable(name: str, lacking: Iterable[str]) -> str:
    """The sentence for an image without what every sandbox needs."""
    return (
        f"The image {name} has no {' and no '.join(lacking)}, which every sandbox needs: "
        f"install it in the image, or use {DEFAULT_IMAGE}."
    )


def _too_old(name: str, version: str) -> str:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers >= (3, 8):
        return ""
    return f"The image {name} has Python {version}, and a sandbox needs 3.8 or later: use {DEFAULT_IMAGE}."


def _run_check(name: str) -> list[str]:
    from llm_sandbox_nb.sandbox.docker.api import APIError

    with engine_errors():
        client = connect()
        try:
            container = client.containers.create(
                name,
                ["sh", "-c", _CHECK(), "check", *PROGRAMS],
                entrypoint=[],
                user="0",
                cap_drop=["ALL"],
                network_mode="none",
                mem_limit="512m",
                pids_limit=128,
                labels=owner_labels(f"check-{token_hex(4)}", CHECK_TIMEOUT, {"check": name}),
            )
        except APIError as error:
            raise ImageError(f"The image {name} cannot be started: {one_line(error)}.") from error
        try:
            container.start()
            container.wait(timeout=CHECK_TIMEOUT)
            return container.logs(stdout=True, stderr=False).decode("utf-8", "replace").splitlines()
        except APIError:
            return []
        finally:
            container.remove(force=True, v=True)


def _pairs(lines: Iterable[str], kind: str) -> Iterator[tuple[str, str]]:
    for line in lines:
        parts = line.split(" ", 2)
        if len(parts) == 3 and parts[0] == kind:
            yield parts[1], parts[2]


def _follow(lines: Iterable[Mapping[str, Any]], on_progress: Progress | None, failure: str) -> None:
    """Hand on what the engine reports line by line; its error becomes ours."""
    last: list[str] = []
    shown = ""
    for line in lines:
        if "error" in line:
            tail = " | ".join(last[-5:])
            reason = " ".join(str(line["error"]).split()).rstrip(".")
            raise ImageError(f"{failure}: {reason}." + (f" Before that: {tail}" if tail else ""))
        if line.get("stream"):
            text = str(line["stream"]).strip()
        elif line.get("progressDetail"):  # how far one layer is, many times in a second
            continue
        else:
            text = " ".join(str(line[key]) for key in ("id", "status") if line.get(key)).strip()
        if text and text != shown:
            shown = text
            last = [*last[-20:], text]
            if on_progress:
                on_progress(text)


def _build_context(ca_bundle: Path | str | None, index_url: str | None) -> io.BytesIO:
    """Our image's folder as a tar file, with the site's certificates and pip settings in it."""
    folder = Path(str(files("llm_sandbox_nb.sandbox") / "image"))
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
    text = Path(ca_bundle).expanduser().read_text("ascii", "replace")
    found = _CERTIFICATE.findall(text)
    if not found:
        raise ImageError(
            f"The CA bundle {ca_bundle} holds no certificate in PEM form: name a file that does."
        )
    return list(dict.fromkeys(found))


def _when(created: int | str) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(created, UTC).isoformat() if isinstance(created, int) else created
