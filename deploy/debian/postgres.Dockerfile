# PostgreSQL from Debian's packages, if the official image is not available. It has the same name of the entry point as the official image, and
# reads the variables that docker-compose.yml sets: POSTGRES_USER, POSTGRES_PASSWORD_FILE, POSTGRES_DB.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends postgresql-15 \
 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/15 /etc/postgresql/15 \
 && install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data
COPY --chmod=0755 postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
USER postgres
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
