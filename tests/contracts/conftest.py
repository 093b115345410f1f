"""Every model of the table, made anew for each test, and what builds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contracts.models import BUILDERS, Subject, every_model, network_models


@pytest.fixture(params=list(every_model()))
def subject(request) -> Subject:
    factory, family = request.param
    return factory(family, 256)


@pytest.fixture(params=list(network_models()))
def network(request) -> Subject:
    factory, family = request.param
    return factory(family, 256)


@pytest.fixture(params=list(BUILDERS))
def build(request) -> Callable[..., Any]:
    """Builds models of one path from a network."""
    return BUILDERS[request.param]
