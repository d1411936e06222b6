"""The toy traces of the replay's tests."""

from tests.replay.conftest import toy  # noqa: F401
