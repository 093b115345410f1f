"""Waiting for the app in a test ends when the app has nothing left to do, however busy the machine is."""

from __future__ import annotations

import asyncio
import time

from driving import driving


async def test_a_pause_waits_for_work_that_gets_no_processor_time():
    done = []

    async def work() -> None:
        for _ in range(50):
            time.sleep(0.002)  # as if another process had the processor
            await asyncio.sleep(0)
        done.append(True)

    async with driving(loaded=False) as d:
        task = asyncio.create_task(work())
        await d.pilot.pause()
        assert done
        await task
