"""What builds models of a path, and tables with the plug-ins of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from contracts.models import BUILDERS, shared_network
from contracts.table_plugins import listed

from specchat.core.seams import Model


@pytest.fixture(params=list(BUILDERS))
def build(request) -> Callable[..., Any]:
    """Builds models of one path from a network."""
    return BUILDERS[request.param]


@pytest.fixture(params=list(BUILDERS))
def make_model(request) -> Callable[[], Model]:
    """Makes models of one path, over weights that all of them share."""
    return maker(request.param)


@cache
def maker(path: str) -> Callable[[], Model]:
    """The same function for the same path, so that what its models write can be kept by it."""
    return lambda: BUILDERS[path](shared_network("llama"), 512)


@pytest.fixture
def plugins_listed() -> Iterator[None]:
    """The plug-ins of these tests stand in the tables."""
    with listed():
        yield
