"""TLS of a run's store and gateway (`cluster.tls`): what servers show, whom clients trust, and a check of both."""

import ssl
from collections.abc import Callable
from pathlib import Path

from chimera.config.sections.cluster import TlsConfig
from chimera.core.errors import ConfigError

STEPS = 10
"""A handshake takes three turns of each side."""


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """What a server shows to its clients.

    Raises:
        ConfigError: The certificate or the key cannot be read, or they do not belong together.
    """
    certificate, key = _file(tls.certificate, "certificate"), _file(tls.key, "key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password of its own, OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            said = f"cluster.tls.key={key} does not belong to cluster.tls.certificate={certificate}: name its own key"
        else:
            said = (
                f"cluster.tls.certificate={certificate} and cluster.tls.key={key} are no certificate and key in PEM "
                f"without a password ({_reason(error)}): make them as docs/cluster.md says"
            )
        raise ConfigError(said) from error
    return context


def client_context(authority: str | Path | None, setting: str = "cluster.tls.authority") -> ssl.SSLContext:
    """Trusts the servers whose certificates `authority` has signed; None: those that this system trusts.

    Args:
        setting: Where `authority` was set, for errors.

    Raises:
        ConfigError: It cannot be read, or holds no certificate.
    """
    if authority is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=_file(Path(authority), "authority", setting))
    except ssl.SSLError as error:
        raise ConfigError(
            f"{setting}={authority} holds no certificate in PEM ({_reason(error)}): name the authority's certificate"
        ) from error


def context_for(url: str, authority: str | None) -> ssl.SSLContext | None:
    """How a client of `url` verifies it; None if it speaks plain HTTP. Raises ConfigError as `client_context`."""
    return client_context(authority) if url.startswith("https:") else None


def trusted_files(authority: str | None) -> str | None:
    """As `client_context`, for the library requests, which takes a file or folder and by default brings its own."""
    paths = ssl.get_default_verify_paths()
    return authority or paths.cafile or paths.capath


def check_tls(tls: TlsConfig, host: str) -> None:
    """Check that a client that trusts the authority would accept the certificate for `host`.

    Raises:
        ConfigError: A file cannot be used, or the certificate is of another name or authority, or is not valid now.
    """
    if not tls.on:
        return
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(tls).wrap_bio(to_server, to_client, server_side=True)
    client = client_context(tls.authority).wrap_bio(to_client, to_server, server_hostname=host)
    try:
        for _ in range(STEPS):
            if all([_step(client.do_handshake), _step(server.do_handshake)]):
                return
    except ssl.SSLCertVerificationError as error:
        trust = "this system's authorities" if tls.authority is None else f"cluster.tls.authority={tls.authority}"
        raise ConfigError(
            f"clients that trust {trust} would refuse cluster.tls.certificate={tls.certificate} at cluster.host={host} "
            f"({error.verify_message}): make a certificate for this address that this authority signs"
        ) from error
    raise ConfigError(f"no client can speak TLS with cluster.tls.certificate={tls.certificate}: make another")


def _step(handshake: Callable[[], None]) -> bool:
    """Go on with one side's handshake; True if it is complete."""
    try:
        handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _file(path: Path | None, name: str, setting: str = "") -> str:
    setting = setting or f"cluster.tls.{name}"
    assert path is not None
    try:
        path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}={path} cannot be read ({error.strerror}): name the file of the {name}") from error
    return str(path)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
