# One image for server, client and tracer, so that all three see the same Python,
# the same libraries and the same kernel headers.
#
# Plain steps only: the classic builder and BuildKit both build this file. Few
# steps, too: on some storage drivers each one costs seconds, metadata included,
# in proportion to the files below it; hence the early ENV and the scratch stage.
#   BASE            any Debian that has bpftrace and Python 3.11 or newer; its apt sources are used
#   KERNEL_HEADERS  a package with a distribution's kernel headers, for scripts that include more
#                   than the kernel's user-space interface (linux-libc-dev, always there)
#   target lab      what is traced and what traces it: the default of `invoke build`
#   target interop  lab plus QUIC clients that nobody here wrote, for tests
ARG BASE=debian:trixie-slim

FROM ${BASE} AS runtime
ARG KERNEL_HEADERS=""
LABEL quiclab.image="stage"
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /opt/quiclab
CMD ["python", "-m", "server", "--ip", "0.0.0.0", "--port", "4433"]
COPY docker/extra-ca/ /usr/local/share/ca-certificates/
COPY docker/trust-extra-ca /usr/local/sbin/
RUN trust-extra-ca \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      bpftrace iproute2 linux-libc-dev python3 ${KERNEL_HEADERS} \
 && rm -rf /var/lib/apt/lists/* \
 && mkdir -p /var/lib/quiclab /run/quiclab

# Compiler and pip stay in this stage and those made from it.
FROM runtime AS dependencies
COPY docker/install-requirements docker/collect-versions server/requirements.lock /opt/build/
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      gcc libc6-dev python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/pip \
 && python3 -m venv --without-pip /opt/venv \
 && /opt/build/install-requirements /opt/build/requirements.lock \
 && python /opt/build/collect-versions > /opt/venv/versions.json

FROM scratch AS sources
COPY server/ /opt/quiclab/server/
COPY client/ /opt/quiclab/client/
COPY bpftrace/ /opt/quiclab/bpftrace/
COPY docker/held docker/courier docker/timed docker/tracer-entry docker/client-by-hand \
     docker/tracer-by-hand /opt/quiclab/docker/

FROM dependencies AS build
COPY --from=sources / /
# Compiled modules carry a hash instead of a time, which a copy between stages may change.
RUN python -m server.build \
 && python -m compileall -q --invalidation-mode unchecked-hash server client

FROM runtime AS lab
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=build /opt/quiclab /opt/quiclab

FROM dependencies AS interop-dependencies
COPY tests/interop/requirements.lock /opt/build/interop.lock
RUN /opt/build/install-requirements /opt/build/interop.lock

FROM lab AS interop
COPY --from=interop-dependencies /opt/venv /opt/venv
