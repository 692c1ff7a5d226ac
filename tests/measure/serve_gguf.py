"""Serves a GGUF file with xllamacpp until its standard input ends.

python serve_gguf.py MODEL.gguf THREADS CONTEXT PARALLEL

The first line that it prints is the address. Whoever started it holds the other end of its input, so that the server
ends with its parent, however that ends.
"""

from __future__ import annotations

import sys
from typing import Any

import xllamacpp  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    model, (threads, context, parallel) = sys.argv[1], map(int, sys.argv[2:])
    params: Any = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel = context * parallel, parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.hostnames = ["127.0.0.1"]
    params.port, params.use_jinja = 0, True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
