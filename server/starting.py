"""
What a server needs before it can serve: a certificate, its probes, sockets on one port.
"""

import datetime as dt
import errno
import os
import platform
import socket
import sys
from typing import Any

import aioquic

from server.certificate import (
    CertificateError,
    ServerCertificate,
    load_certificate,
    make_certificate,
)
from server.counters import SCHEMA
from server.exits import ExitStatus
from server.ports import find_holder
from server.probes import LoadedProvider, load_provider
from server.settings import ServerSettings
from server.udp import _native
from server.udp.model import Address
from server.udp.sockets import open_socket


class StartError(Exception):
    """The server cannot start here; one line says why and what to do."""

    def __init__(self, words: str, status: ExitStatus = ExitStatus.MACHINE_CANNOT) -> None:
        super().__init__(words)
        self.status = status


def find_certificate(settings: ServerSettings) -> ServerCertificate:
    """
    Load the user's certificate, or make one for this run.

    Raises:
        StartError: It cannot serve.
    """
    now = dt.datetime.now(dt.UTC)
    try:
        if settings.certificate_path is not None and settings.private_key_path is not None:
            return load_certificate(settings.certificate_path, settings.private_key_path, now=now)
        return make_certificate(server_name=settings.server_name, addresses=[settings.ip], now=now)
    except CertificateError as error:
        raise StartError(str(error), ExitStatus.USAGE) from error


def load_probes(settings: ServerSettings) -> LoadedProvider | None:
    """
    Map the probes into this process; without them the server runs all the same.
    """
    if not settings.is_probed:
        return None
    provider = load_provider(settings.probe_directory)
    _native.set_sites(provider.site_addresses)
    if provider.note:
        print(f"server: {provider.note}", file=sys.stderr, flush=True)
    return provider


def open_sockets(settings: ServerSettings) -> list[socket.socket]:
    """
    Bind one socket for each worker, all to the same port.

    Raises:
        StartError: The port is taken, or the address is not this machine's.
    """
    address: Address = (settings.ip, settings.port)
    if ":" in settings.ip:
        address = (settings.ip, settings.port, 0, 0)
    try:
        # Bound alone first: SO_REUSEPORT would share the port with another server of
        # this user without a word.
        first = open_socket(address, is_port_shared=False)
        if settings.worker_count == 1:
            return [first]
        address = first.getsockname()
        first.close()
        return [open_socket(address, is_port_shared=True) for _ in range(settings.worker_count)]
    except OSError as error:
        raise StartError(_explain_bind(settings, error)) from error


def _explain_bind(settings: ServerSettings, error: OSError) -> str:
    where = f"UDP port {settings.port} of {settings.ip}"
    if isinstance(error, PermissionError):
        return f"{where}: {error.strerror}; take a port from 1024, or run as root"
    if error.errno == errno.EADDRINUSE:
        holder = find_holder(settings.port)
        if holder is not None:
            return f"{where} is in use by {holder}; end it, or choose another --port"
    return f"{where} cannot be bound: {error.strerror}; choose another --ip or --port"


def describe_base(
    settings: ServerSettings,
    certificate: ServerCertificate,
    provider: LoadedProvider | None,
    address: Address,
) -> dict[str, Any]:
    """
    Write what `describe` says of the server as a whole.
    """
    is_on = provider is not None and provider.is_on
    return {
        "event": "listening",
        "schema": SCHEMA,
        "pid": os.getpid(),
        "address": [address[0], address[1]],
        "probes": {
            "is_on": is_on,
            "provider_path": str(provider.path) if provider is not None and is_on else None,
            "note": provider.note if provider is not None else "switched off by --probes off",
        },
        "asked": settings.describe(),
        "certificate": certificate.describe(),
        "certificate_pem": certificate.trust_pem,
        "server_name": certificate.server_name,
        "versions": {
            "python": platform.python_version(),
            "aioquic": aioquic.__version__,
            "libstapsdt": provider.library_version if provider is not None else "",
        },
    }
