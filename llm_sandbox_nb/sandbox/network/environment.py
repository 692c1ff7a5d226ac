"""Environment variables that make common programs in a sandbox use the proxy, and trust its certificate authority."""

from __future__ import annotations

from collections.abc import Iterable

from llm_sandbox_nb.sandbox.network.door import DOOR_PORT
from llm_sandbox_nb.sandbox.network.secrets import placeholder

AUTHORITY_FILE = "/tmp/llm-sandbox/authority.pem"
"""File with the certificates that programs inside trust. Checkpoints do not cover its folder."""
JAVA_AUTHORITY_FILE = "/tmp/llm-sandbox/authority.p12"
"""File with the same certificates for Java, which cannot read PEM files."""
JAVA_PASSWORD = "changeit"  # Java's usual password; the file holds only public certificates
CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
)
_LOCAL = "localhost,127.0.0.1,::1"
_HOST = "127.0.0.1"
_DOOR = f"http://{_HOST}:{DOOR_PORT}"
# Python program that connects ssh through the proxy. It has no quotes, `%`, `$` or `\`, because ssh expands `%`, and
# two shells read the text.
_SSH_TO_PROXY = (
    "import os,socket,sys,threading as t;"
    "h,p,a,d,c,v=sys.argv[1:];n=chr(13)+chr(10);z=bytes();"
    "s=socket.create_connection((a,int(d)));f=s.makefile(chr(114)+chr(98),0);"
    "s.sendall((c+chr(32)+h+chr(58)+p+chr(32)+v+n+n).encode());"
    "l=f.readline();[*iter(lambda:f.readline().strip(),z)];"
    "int(l.split()[1])==200 or sys.exit(l.decode());"
    "u=lambda:[s.sendall(x) for x in iter(lambda:os.read(0,65536),z)]+[s.shutdown(1)];"
    "t.Thread(target=u,daemon=True).start();"
    "[os.write(1,x) for x in iter(lambda:f.read(65536),z)]"
)
_SSH = f"ssh -o 'ProxyCommand=python3 -c \"{_SSH_TO_PROXY}\" %h %p {_HOST} {DOOR_PORT} CONNECT HTTP/1.0'"


def proxy_variables(url: str) -> dict[str, str]:
    """Return variables for an HTTP proxy at `url`. Local addresses are reached without the proxy."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    return dict.fromkeys(names, url) | dict.fromkeys(("no_proxy", "NO_PROXY"), _LOCAL)


def door_variables(secrets: Iterable[str]) -> dict[str, str]:
    """Return variables of a sandbox with a door. `secrets` are the names of secrets, which get placeholders."""
    java = {
        f"{kind}.{name}": value
        for kind in ("http", "https")
        for name, value in (("proxyHost", _HOST), ("proxyPort", DOOR_PORT))
    }
    stand_ins = {name: placeholder(name) for name in secrets}
    if stand_ins:
        trusted = "javax.net.ssl.trustStore"
        java |= {
            trusted: JAVA_AUTHORITY_FILE,
            f"{trusted}Type": "PKCS12",
            f"{trusted}Password": JAVA_PASSWORD,
        }
    return {
        **proxy_variables(_DOOR),
        "NODE_USE_ENV_PROXY": "1",
        "JAVA_TOOL_OPTIONS": " ".join(f"-D{name}={value}" for name, value in java.items()),
        "GIT_SSH_COMMAND": _SSH,
        **(dict.fromkeys(CA_VARIABLES, AUTHORITY_FILE) if stand_ins else {}),
        **stand_ins,
    }
