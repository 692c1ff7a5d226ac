"""Configuration of MCP servers, from files such as `.mcp.json`, from Harbor's tasks, and from names or commands."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.known_keys import public_address, remember_address, remember_key
from llm_sandbox_nb.own_folder import expanded

CONFIG_FILE = ".mcp.json"
ServerNames = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
"""MCP servers in one of the forms that `server_configs` accepts."""
_SERVER_NAME = re.compile(r"(?=.{1,31}$)[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*")
"""Matches valid server names. They do not contain `__`, so that `server__tool` is unambiguous."""
_INLINE = re.compile(r"([A-Za-z][\w-]*)=(.+)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SECRET_NAME = re.compile(r"key|token|secret|passw|authorization|cookie|credential", re.IGNORECASE)
_EXAMPLE = '{"command": "uvx", "args": ["mcp-server-time"]}'


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of an MCP server. A program has a `command`, and a web service has a `url`."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    inside: bool = False
    """True if the program runs in the sandbox."""
    tools: tuple[str, ...] | None = None
    """Names of the tools that the model can call. None stands for all tools."""

    def as_json(self) -> dict[str, Any]:
        """Return the configuration for the record. Arguments, variables and headers are omitted: they may be secret."""
        if self.url:
            return {"url": public_address(self.url)}
        return {"command": self.command, "inside": self.inside}


def server_configs(given: ServerNames, folder: Path | None = None) -> list[ServerConfig]:
    """Return the configurations of the servers that a caller names.

    Args:
        given: one or several values. A value is the name of a server in `.mcp.json`, a file with servers, `FILE#NAME`,
            `NAME=COMMAND`, `NAME=URL`, a JSON object as text, or a mapping like the content of a file.
        folder: folder of `.mcp.json` and of relative paths. None stands for the current folder.

    Raises:
        InputError: if a server is missing, or its configuration is invalid.
    """
    values = [given] if isinstance(given, str | Mapping) else given
    if not isinstance(values, Sequence):
        raise InputError(f"mcp names servers, as in mcp='time', not {given!r:.80}.")
    found: dict[str, ServerConfig] = {}
    for value in values:
        for config in _configs_of(value, folder or Path.cwd()):
            same = [name for name in found if _plain(name) == _plain(config.name)]
            if same:
                raise InputError(
                    f"Two MCP servers have the name {config.name}: give one of them another name."
                    if same == [config.name]
                    else f"The names of the MCP servers {same[0]} and {config.name} are too similar: change one."
                )
            found[config.name] = config
    return list(found.values())


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()


def _configs_of(value: object, folder: Path) -> Iterator[ServerConfig]:
    if isinstance(value, Mapping):
        yield from _from_mapping(value, "mcp")
        return
    if not isinstance(value, str) or not value.strip():
        raise InputError(
            f"An MCP server is a name, a file or a mapping such as {_EXAMPLE}, not {value!r:.80}."
        )
    text = value.strip()
    if text.startswith("{"):
        try:
            servers = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"The MCP servers in {text!r:.80} are not valid JSON.") from error
        yield from _from_mapping(servers, "mcp")
    elif inline := _INLINE.fullmatch(text):
        yield _inline(*inline.groups())
    elif _SERVER_NAME.fullmatch(text):
        yield _named(text, folder / CONFIG_FILE)
    else:
        file, _, name = text.partition("#")
        path = folder / expanded(file)
        if name:
            yield _named(name, path)
        else:
            yield from _from_mapping(_content(path), str(path))


def _inline(name: str, rest: str) -> ServerConfig:
    if re.match(r"https?://", rest):
        return _config(name, {"url": rest}, "mcp")
    try:
        command, *args = shlex.split(rest)
    except ValueError as error:
        raise InputError(
            f"The command of the MCP server {name} cannot be read ({error}): check its quotes."
        ) from error
    return _config(name, {"command": command, "args": args}, "mcp")


def _named(name: str, path: Path) -> ServerConfig:
    servers = {config.name: config for config in _from_mapping(_content(path), str(path), only=name)}
    if name not in servers:
        raise InputError(f"There is no MCP server {name!r:.40} in {path}: add it there, or correct the name.")
    return servers[name]


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError(
            f"There is no file {path} with MCP servers: make it, with a line such as "
            f'{{"mcpServers": {{"time": {_EXAMPLE}}}}}.'
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"The file {path} with MCP servers cannot be read: it has to be JSON.") from error


def _from_mapping(content: Any, source: str, only: str = "") -> Iterator[ServerConfig]:
    """Yield the servers in the content of a file.

    The servers can be in `mcpServers`, `mcp_servers` (Harbor) or `servers`, or at the top level.
    """
    for key in ("mcpServers", "mcp_servers", "servers"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping | list):
            content = content[key]
            break
    if isinstance(content, Mapping) and isinstance(content.get("name"), str):
        content = [content]
    if isinstance(content, list):
        entries = [(item.get("name"), item) for item in content if isinstance(item, Mapping)]
    else:
        entries = list(content.items()) if isinstance(content, Mapping) else []
    if not entries:
        raise InputError(f'{source} has no MCP servers: write {{"mcpServers": {{"time": {_EXAMPLE}}}}}.')
    for name, entry in entries:
        if only and name != only:
            continue
        if not isinstance(entry, Mapping):
            raise InputError(f"{source}: the MCP server {name!r:.40} has to be an object such as {_EXAMPLE}.")
        if not entry.get("disabled"):
            yield _config(name, entry, source)


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # invalid brackets or port
        return False


def _config(name: object, entry: Mapping[str, Any], source: str) -> ServerConfig:
    if not isinstance(name, str) or not _SERVER_NAME.fullmatch(name):
        raise InputError(
            f"{source}: the name of an MCP server has at most 31 letters and digits, with single - or _ between, "
            f"not {name!r:.40}."
        )
    where = f"{source}: the MCP server {name}"
    command, url = entry.get("command") or "", entry.get("url") or ""
    if not isinstance(command, str) or not isinstance(url, str) or bool(command) == bool(url):
        raise InputError(f"{where} needs either `command`, a program, or `url`, an address.")
    if str(entry.get("type") or entry.get("transport") or "").lower() == "sse":
        raise InputError(f"{where} uses the old transport sse: give its address for streamable HTTP.")
    url = _filled(url, where)
    if url and not _has_host(url):
        raise InputError(f"{where}: `url` has to be an address that begins with http:// or https://.")
    remember_address(url)
    args, tools, inside = entry.get("args") or [], entry.get("tools"), entry.get("inside", False)
    for key, value in (("args", args), ("tools", tools or [])):
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise InputError(f"{where}: `{key}` has to be a list of texts.")
    if not isinstance(inside, bool) or (inside and url):
        raise InputError(f"{where}: `inside` is true or false, and only a server with `command` can have it.")
    return ServerConfig(
        name=name,
        command=_filled(command, where),
        args=tuple(_filled(item, where) for item in args),
        env=_texts(entry.get("env") or {}, f"{where}: `env`"),
        url=url,
        headers=_texts(entry.get("headers") or {}, f"{where}: `headers`"),
        inside=inside,
        tools=None if tools is None or list(tools) == ["*"] else tuple(tools),
    )


def _texts(value: Any, where: str) -> dict[str, str]:
    """Return variables or headers. Values whose names suggest a secret are remembered, to keep them out of records."""
    if not isinstance(value, Mapping) or not all(
        isinstance(item, str | int | float) for item in value.values()
    ):
        raise InputError(f"{where} has to be an object with texts.")
    texts = {str(key): _filled(str(item), where) for key, item in value.items()}
    for key, text in texts.items():
        if re.search(r"[\0\r\n]", key + text):
            raise InputError(f"{where} has a line end in {key!r:.40}: remove it.")
        if _SECRET_NAME.search(key) and text.split():
            remember_key(text.split()[-1])
    return texts


def _filled(text: str, where: str) -> str:
    """Replace `${NAME}` by the value of an environment variable. `${NAME:-default}` gives a default for this value."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1]) or match[2]
        if found is None:
            raise InputError(f"{where} needs the environment variable {match[1]}: set it.")
        return found

    return _REFERENCE.sub(value, text)
