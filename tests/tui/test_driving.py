"""Waiting for the app in a test ends when the app has nothing left to do, however busy the machine is."""

from __future__ import annotations

import asyncio
import inspect
import time
from functools import partial

import textual._callback
from driving import driving
from textual.widget import Widget

from specchat.tui.app import SpecchatApp


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


async def test_parameters_of_callbacks_are_counted_as_textual_counts_them():
    def of_several(a, /, b, *more, c, d=1, **others): ...

    class Methods:
        def plain(self, a, b=2): ...

        def any(*all): ...

        @classmethod
        def of_class(cls, a): ...

    callbacks = [
        of_several,
        lambda: None,
        Methods().plain,
        Methods().any,
        Methods.of_class,
        partial(of_several, 1),
        len,
    ]
    callbacks += [value for kind in (SpecchatApp, Widget) for value in vars(kind).values() if inspect.isfunction(value)]
    count = textual._callback._count_parameters
    assert count.__module__ == "conftest"
    wrong = [callback for callback in callbacks if count(callback) != len(inspect.signature(callback).parameters)]
    assert not wrong
