"""Fixtures that several files of tests share: OpenSSH servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support_sshd import Server, running_sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_sshd(tmp_path_factory.mktemp("server") / "s") as s:
        yield s


@pytest.fixture(scope="module")
def sftp_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_sshd(tmp_path_factory.mktemp("sftp_only") / "s", extra="ForceCommand internal-sftp") as s:
        yield s


@pytest.fixture(scope="module")
def shell_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_sshd(tmp_path_factory.mktemp("shell_only") / "s", sftp=False) as s:
        yield s


@pytest.fixture(params=["server", "sftp_only", "shell_only"])
def any_server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of whoever runs the tests signs in nowhere."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
