"""A process id and the moment of its birth name one process for ever."""

from __future__ import annotations

import os
import subprocess
import sys

from spark_bookkeeper.local_cluster.processes import birth_of


def test_a_birth_stays_the_same_and_differs_between_processes() -> None:
    # Births are counted in hundredths of a second; this process is older than that.
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    assert birth_of(os.getpid()) == birth_of(os.getpid()) is not None
    assert birth_of(child.pid) not in (None, birth_of(os.getpid()))

    child.communicate()


def test_a_process_that_ended_has_no_birth_even_before_it_was_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert birth_of(child.pid) is None

    child.communicate()
    assert birth_of(child.pid) is None
