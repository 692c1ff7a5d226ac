"""Run a command beside busy loops: `python tests/busy.py 6 make test`. Its exit code is that of the command."""

from __future__ import annotations

import subprocess
import sys


def main(loops: int, command: list[str]) -> int:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        return subprocess.run(command).returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
