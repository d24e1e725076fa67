"""Tests are stricter than use: one thread, fixed random sources, warnings are errors, shapes are checked."""

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "rankscope",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.register_profile("fuzz", settings.get_profile("rankscope"), derandomize=False, max_examples=600)
settings.load_profile("rankscope")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
