"""A headless Chromium for tests of pages: the system's, or the one playwright brings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Error, expect, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
LIMIT_MS = 120_000  # until a page does what a test waits for; a busy machine takes a while
expect.set_options(timeout=LIMIT_MS)
MISSING = "a headless Chromium is needed to look at pages: sh tools/system-packages.sh"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own. The sandbox is off: tests also run as root in containers."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error as error:
            pytest.fail(f"{MISSING} ({error.message.splitlines()[0]})")
        yield browser
        browser.close()
