"""Work that no reply waits for has a lower priority, and only as long as it lasts."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from specchat.engine.server.idle_time import IdleTime, background_priority

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


def test_measuring_alone_does_not_wait_for_other_programs():
    policies = {}

    def noting(name):
        return lambda *_: policies.update({name: os.sched_getscheduler(0)})

    prompts = SimpleNamespace(due=True, save=noting("prompts"))
    model = SimpleNamespace(name="no-model", model=None)
    pair = SimpleNamespace(key="", device=torch.device("cpu"), target=model)
    idle = IdleTime(SimpleNamespace(get=lambda *_: None), pair, print, prompts)
    idle.measuring = SimpleNamespace(due=True, measure=noting("measuring"))
    idle.kept = SimpleNamespace(work=noting("learning"))
    for done in (prompts, idle.measuring, idle.kept):
        idle.work(None, lambda: False)
        done.due = False
    assert policies == {"prompts": os.SCHED_BATCH, "measuring": os.SCHED_OTHER, "learning": os.SCHED_BATCH}
