"""Names of dumps in a report, where the user gives none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def default_labels(dumps: Sequence[tuple[Mapping[str, Any], str | Path]]) -> list[str]:
    """The device's name of each (platform, file); dumps of one device are told apart by their files' names, else by numbers."""
    devices = [str(platform.get("label") or _slug(Path(file).stem)) for platform, file in dumps]
    names = [_slug(Path(file).stem) if devices.count(name) > 1 else name for name, (_, file) in zip(devices, dumps, strict=True)]
    return [name if names.index(name) == i else f"{name}-{names[: i + 1].count(name)}" for i, name in enumerate(names)]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "dump"
