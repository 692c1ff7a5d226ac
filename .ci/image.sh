#!/usr/bin/env bash
# Builds our images from our Dockerfile, with what this host needs to reach its package indexes: its CA bundle, pip's
# index and the proxy of its environment. Safe to call again: the engine's cache makes that quick.
#   IMAGE_TARGETS  which images (default: "full slim")
#   PYTHON         an interpreter with this package's requirements (default: .venv's, else python3)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-}
if [ -z "$python" ]; then
    python=python3
    if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
fi

options=()
ca=${PIP_CERT:-${REQUESTS_CA_BUNDLE:-${SSL_CERT_FILE:-}}}
if [ -z "$ca" ] && [ -n "$(ls /usr/local/share/ca-certificates 2>/dev/null)" ]; then
    ca=/etc/ssl/certs/ca-certificates.crt
fi
if [ -n "$ca" ]; then options+=(--ca-bundle "$ca"); fi

index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}
case $index in http://* | https://*) options+=(--index-url "$index") ;; esac

proxy=${https_proxy:-${HTTPS_PROXY:-${http_proxy:-${HTTP_PROXY:-}}}}
if [ -n "$proxy" ]; then options+=(--proxy "$proxy"); fi

for target in ${IMAGE_TARGETS:-full slim}; do
    "$python" -m llm_sandbox_nb image build --target "$target" ${BASE_IMAGE:+--base-image "$BASE_IMAGE"} "${options[@]}"
done
