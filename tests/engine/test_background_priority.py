"""Work that no reply waits for has a lower priority, and only as long as it lasts."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from specchat.engine.server.idle_time import background_priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the policy is Linux's")


def test_the_thread_waits_longer_for_its_turn_and_is_itself_again_afterwards():
    policies = []

    def work():
        policies.append(os.sched_getscheduler(0))
        with background_priority():
            policies.append(os.sched_getscheduler(0))
        policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert policies == [os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_OTHER]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "other threads are not concerned"
