"""Program of the child process that loads a model and serves requests on loopback until its parent process ends.

The program reads its plan from stdin, as one line of JSON. It writes the server's address or an error to stdout, also
as one line of JSON, and the engine's log to stderr. The program ends when stdin is closed, which also happens when the
parent is killed. On Linux, the kernel kills the program as soon as its parent has ended. The program imports nothing
from llm_sandbox_nb.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the model of the plan on stdin."""
    plan = json.loads(sys.stdin.buffer.readline())
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _end_with(plan["parent"])
    try:
        server, answer = _serve(plan)
    except Exception as error:  # noqa: BLE001 - the parent reports the error in one sentence
        server, answer = None, {"error": f"{type(error).__name__}: {error}"[:2000]}
    answers.write(json.dumps(answer) + "\n")
    answers.close()
    if server is not None:
        threading.Event().wait()


def _end_with(parent: int) -> None:
    """End this process when its parent ends for any reason."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_wait_for_end_of_input, daemon=True).start()


def _wait_for_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _serve(plan: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = plan["file"]
    params.model_alias = {plan["alias"]}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [plan["key"]]
    params.n_ctx = plan["context"] * plan["slots"]
    params.n_parallel = plan["slots"]
    params.kv_unified = False  # otherwise one conversation could use the memory of another
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = plan["threads"]
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.cache_ram_mib = plan["cache_mib"]
    params.use_jinja = True
    params.fit_params = False
    params.offline = True
    params.ui = params.endpoint_slots = False
    server = xllamacpp.Server(params)
    return server, {"address": server.listening_address, "engine": xllamacpp.__version__}


if __name__ == "__main__":
    main()
