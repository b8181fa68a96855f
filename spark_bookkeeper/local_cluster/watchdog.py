"""Run one program for as long as the process that started it lives.

The watchdog is a program of its own, started as ``python -I -S watchdog.py PROGRAM ARGUMENT ...``.
It uses only the standard library. Its standard input is a pipe from its maker. It writes the
program's process id to standard output, then waits for the first of these events:

* the program ends: the watchdog ends with its exit code;
* standard input ends: the maker closed it to stop the program, or is gone, for any reason: the
  operating system closes a pipe even after ``kill -9``;
* its parent is another process than before: the maker is gone, but a child that it forked still
  holds the pipe.

In the last two cases it kills the program, which must have synced everything that it acknowledged.
A request to stop would not help ZooKeeper, which does nothing at its end, and would take a third of
a second: a Java machine waits that long for its threads. If the watchdog itself is killed, Linux
kills the program (``PR_SET_PDEATHSIG``). That signal belongs to the *thread* that started the
program. So it is requested here, where the only thread lives to the end, and not by the maker.

The program runs in the session that the maker gave the watchdog: Ctrl-C in a terminal does not
reach it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Run ``command``; return its exit code, or 128 + signal as a shell does."""
    parent = os.getppid()
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    asked_to_stop = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))

    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        close_fds=False,  # the program must inherit the maker's lock file
        preexec_fn=_die_with_parent,  # safe: this process has one thread
    )
    os.write(1, f"{program.pid}\n".encode())
    while program.poll() is None:
        ready, _, _ = select.select([0, wakeup_read], [], [], 1.0)
        if wakeup_read in ready:
            os.read(wakeup_read, 4096)
        if (0 in ready and not os.read(0, 4096)) or asked_to_stop or os.getppid() != parent:
            program.kill()
            program.wait()
    code = program.returncode
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    for restored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(restored, signal.SIG_DFL)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
