"""Every model of the table, made anew for each test."""

from __future__ import annotations

import pytest
from contracts.models import Subject, every_model, network_models


@pytest.fixture(params=list(every_model()))
def subject(request) -> Subject:
    factory, family = request.param
    return factory(family, 256)


@pytest.fixture(params=list(network_models()))
def network(request) -> Subject:
    factory, family = request.param
    return factory(family, 256)
