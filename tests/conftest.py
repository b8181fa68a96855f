"""What all tests share."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# A shared machine can stall any example for seconds, so no example has a deadline; on CI the
# examples are derived from the test itself, so that a run can be repeated.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("default")

# Tests that were started in the background may have been told to ignore Ctrl-C, and so would every
# process that they start and then interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every JVM of Spark here lives for seconds. Code compiled for hours costs it a third more.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Spark looks up the name of the machine, which need not have an address.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# What whoever starts the tests has set for programs that they use themselves.
os.environ["COLUMNS"] = "80"
for name in ("FORCE_COLOR", "SPARK_BOOKKEEPER_METADATA_URI"):
    os.environ.pop(name, None)
