"""Report verdicts that were right only in a second run."""

import pytest

RETRIED = pytest.StashKey[list[str]]()


@pytest.fixture
def retried(request):
    """Return the list of planted problems whose first verdict was wrong; the summary of the test run shows it."""
    return request.config.stash.setdefault(RETRIED, [])


def pytest_terminal_summary(terminalreporter, config):
    wrong = config.stash.get(RETRIED, [])
    if wrong:
        terminalreporter.section("verdicts that were wrong in the first of two runs")
        for line in wrong:
            terminalreporter.write_line(line)
