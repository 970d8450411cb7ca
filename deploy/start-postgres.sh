#!/bin/sh
# The entry point of the container `postgres`: installs the key and the current password, then runs the entry point of the image.
set -eu
# PostgreSQL accepts the key only if its own user owns the file.
install -m 0600 "$(dirname "$POSTGRES_PASSWORD_FILE")/server.key" "${TMPDIR:-/tmp}/server.key"
if [ -s "$PGDATA/PG_VERSION" ]; then
    # The password may differ from the last start. A failed statement is not logged, because it contains the password.
    echo "ALTER ROLE $POSTGRES_USER PASSWORD '$(cat "$POSTGRES_PASSWORD_FILE")'" \
        | postgres --single -c log_min_error_statement=panic -D "$PGDATA" postgres > /dev/null
fi
exec docker-entrypoint.sh "$@"
