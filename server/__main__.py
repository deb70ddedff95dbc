"""
`python -m server`: a QUIC perf server whose socket I/O can be traced.
"""

import logging
import sys

from server.exits import ExitStatus
from server.settings import parse_settings


def main(argv: list[str] | None = None) -> ExitStatus:
    """
    Run the server; errors that a user can meet are one line.
    """
    settings = parse_settings(argv)
    # aioquic warns of every connection that a peer's error ends, one line each, and quotes
    # the peer: a flood would fill the disk. The report counts the reasons.
    logging.getLogger("quic").addHandler(logging.NullHandler())
    try:
        # The native module is built at set-up; without it nothing below can be imported.
        from server import supervisor  # noqa: PLC0415
        from server.starting import StartError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "server.udp._native":
            raise
        print(
            "server: server/udp/_native was not built for this Python; run python -m server.build",
            file=sys.stderr,
        )
        return ExitStatus.MACHINE_CANNOT
    try:
        return supervisor.serve(settings)
    except StartError as error:
        print(f"server: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED  # before there was anything to end in order


if __name__ == "__main__":
    sys.exit(main())
