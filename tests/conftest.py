"""Fixtures shared by our own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.probes import default_cache

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def probe_cache() -> Path:
    """Where probes are kept; made once, and safe to share between workers."""
    return default_cache()
