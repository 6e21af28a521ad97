"""Signing in to a host: keys of files and of the agent, then answers of the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy_eval.errors import TransferError
from accuracy_eval.transfer import hostkeys
from accuracy_eval.transfer.configuration import Target
from accuracy_eval.transfer.locations import Options

if TYPE_CHECKING:
    import paramiko

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


def sign_in(transport: paramiko.Transport, target: Target, options: Options) -> None:
    """Keys without a passphrase, the agent's, keys with one, then a password; what the server has refused is listed on failure."""
    import paramiko

    attempt = _Attempt(transport, target, options)
    files = [f for f in target.identity_files or tuple(Path.home() / ".ssh" / n for n in DEFAULT_KEYS) if f.is_file()]
    open_keys, locked = attempt.load(files)
    agent = paramiko.Agent()
    try:
        if attempt.by([*open_keys, *_agent_keys(agent, target, files)], locked):
            return
    finally:
        agent.close()
    raise TransferError(
        f"{target.label}: not signed in; tried {', '.join(attempt.tried) or 'nothing: no key file and no agent'}; the server takes "
        f"{', '.join(sorted(attempt.allowed))}. Add a key to the agent or name one (IdentityFile)."
    )


class _Attempt:
    """What was tried on a server, and the methods it allows as far as it has said."""

    def __init__(self, transport: paramiko.Transport, target: Target, options: Options) -> None:
        self._transport, self._target, self._options = transport, target, options
        self.tried: list[str] = []
        self.allowed: set[str] = set()

    def load(self, files: Sequence[Path]) -> tuple[list[tuple[str, paramiko.PKey]], list[Path]]:
        """The keys that need no passphrase, by name, and the files of those that do."""
        import paramiko

        keys, locked = [], []
        for path in files:
            try:
                keys.append((str(path), _load_key(path, None)))
            except paramiko.PasswordRequiredException:
                locked.append(path)
            except (paramiko.SSHException, ValueError, OSError) as e:
                self.tried.append(f"{path} (unreadable: {e or type(e).__name__})")
        return keys, locked

    def by(self, keys: Sequence[tuple[str, paramiko.PKey]], locked: Sequence[Path]) -> bool:
        """Whether any of it signed in."""
        import paramiko

        if any(self._offer(name, key) for name, key in keys):
            return True
        try:  # after the keys: the answer costs a round trip, and is needed where none of them will do
            self._transport.auth_none(self._target.user)
            return True
        except paramiko.BadAuthenticationType as e:
            self.allowed.update(e.allowed_types)
        for path in locked:
            key = self._unlock(path)
            if key is not None and self._offer(str(path), key):
                return True
        return self._ask(self.allowed)

    def _offer(self, name: str, key: paramiko.PKey) -> bool:
        """Whether the key signed in. Notes what the server allows; a second factor the server wants is asked for."""
        import paramiko

        try:
            further = self._transport.auth_publickey(self._target.user, key)
        except paramiko.BadAuthenticationType as e:
            self.allowed = set(e.allowed_types)
            self.tried.append(name)
            return False
        except paramiko.AuthenticationException:
            self.tried.append(name)
            if not self._transport.is_active():
                raise
            return False
        if not further:
            return True
        self.tried.append(f"{name} (accepted, but the server also wants {', '.join(further)})")
        return self._ask(set(further))

    def _unlock(self, path: Path) -> paramiko.PKey | None:
        import paramiko

        ask = self._options.ask
        passphrase = ask(f"Passphrase of {path}: ") if ask else None
        if passphrase is None:
            self.tried.append(f"{path} (needs its passphrase)")
            return None
        try:
            return _load_key(path, passphrase)
        except (paramiko.SSHException, ValueError):
            self.tried.append(f"{path} (wrong passphrase)")
            return None

    def _ask(self, allowed: set[str]) -> bool:
        """Whether answers of the user signed in: to the server's own questions (a password, a code, both), else to one for a password."""
        import paramiko

        ask, label = self._options.ask, self._target.label
        if ask is None:
            return False

        def answers(title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
            return [ask(f"{label}: {prompt}") or "" for prompt, _ in prompts]

        for method in ("keyboard-interactive", "password"):
            if method not in allowed:
                continue
            try:
                if method == "keyboard-interactive":
                    return not self._transport.auth_interactive(self._target.user, answers)
                answer = ask(f"Password of {label}: ")
                return answer is not None and not self._transport.auth_password(self._target.user, answer, fallback=False)
            except paramiko.AuthenticationException:
                self.tried.append(method)
        return False


def _load_key(path: Path, passphrase: str | None) -> paramiko.PKey:
    """The private key in a file of any kind, with the certificate beside it; PKey.from_path cannot tell a locked key from a bad one."""
    import paramiko

    problem: Exception = ValueError("not a private key")
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            key = kind.from_private_key_file(str(path), passphrase)
        except paramiko.PasswordRequiredException:
            raise
        except (paramiko.SSHException, ValueError, IndexError) as e:
            problem = e
            continue
        certificate = path.with_name(f"{path.name}-cert.pub")
        if certificate.is_file():
            key.load_certificate(str(certificate))
        return key
    raise paramiko.SSHException(str(problem))


def _agent_keys(agent: paramiko.Agent, target: Target, files: Sequence[Path]) -> list[tuple[str, paramiko.PKey]]:
    import paramiko

    try:
        keys = list(agent.get_keys())
    except (paramiko.SSHException, OSError):
        return []
    if target.identities_only:
        wanted = {words[1] for f in files for words in [_public(f)] if len(words) > 1}
        keys = [k for k in keys if k.get_base64() in wanted]
    return [(f"agent key {hostkeys.fingerprint(k)}", k) for k in keys]


def _public(path: Path) -> list[str]:
    public = path.with_name(f"{path.name}.pub")
    return public.read_text(errors="replace").split() if public.is_file() else []
