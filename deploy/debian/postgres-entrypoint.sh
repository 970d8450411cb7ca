#!/bin/sh
# Initialises an empty data folder, then replaces itself by the server.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl --wait start --options="-c listen_addresses='' -c unix_socket_directories=/tmp"
    createdb --host=/tmp --username="$POSTGRES_USER" "$POSTGRES_DB" || [ "$POSTGRES_DB" = postgres ]
    pg_ctl --wait --mode=fast stop
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/tmp
