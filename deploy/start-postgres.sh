#!/bin/sh
# The entry point of the container `postgres`: sets up what lies outside its data folder, then runs the entry point of the image.
set -eu
# PostgreSQL takes a key of its own user only.
install -m 0600 "$(dirname "$POSTGRES_PASSWORD_FILE")/server.key" "${TMPDIR:-/tmp}/server.key"
if [ -s "$PGDATA/PG_VERSION" ]; then
    # The password may be another one than at the last start. A statement that fails is not logged: it holds the password.
    echo "ALTER ROLE $POSTGRES_USER PASSWORD '$(cat "$POSTGRES_PASSWORD_FILE")'" \
        | postgres --single -c log_min_error_statement=panic -D "$PGDATA" postgres > /dev/null
fi
exec docker-entrypoint.sh "$@"
