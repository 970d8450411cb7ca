"""Create a PostgreSQL user that can use the schema of one service only: `python -m modyn.db.users SERVICE`.

Such a user is for services that run user code. Even user code that finds the password cannot read the tables of other services. The environment
variable DATABASE_URL is the URL of a user who may create users and schemas. PASSFILE is the path of a password file of PostgreSQL clients
(`pgpass`), which contains the password to set. The command can be repeated, for example to change the password. The schema may exist already.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psycopg2
from psycopg2 import sql

from modyn.config.system import SERVICES
from modyn.errors import ConfigError, UnavailableError
from modyn.rpc.retry import Retrier, RetryPolicy

WAIT_S = 60.0
"""Seconds to wait for a server that does not run yet, because some container tools do not start containers in order."""


def create_user(url: str, service: str, password: str, retrier: Retrier | None = None) -> str:
    """Create the user of `service`, or change the user's password, and make the user the owner of the service's schema.

    Args: retrier: repeats the connection while the server cannot be reached; None: do not wait for the server.
    Returns: the name of the user. Raises: UnavailableError: the server cannot be reached, or refuses the user of the URL.
    """
    name = f"modyn_{service}"
    connection = (retrier or Retrier(RetryPolicy(0.0))).call(_connect, url)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
        verb = sql.SQL("ALTER" if cursor.fetchone() else "CREATE")
        user, schema = sql.Identifier(name), sql.Identifier(service)
        cursor.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, user, sql.Literal(password)))
        cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
        cursor.execute(sql.SQL("ALTER SCHEMA {} OWNER TO {}").format(schema, user))
        # Sequences and indexes change their owner with their tables.
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (service,))
        for (table,) in cursor.fetchall():
            cursor.execute(sql.SQL("ALTER TABLE {}.{} OWNER TO {}").format(schema, sql.Identifier(table), user))
    connection.close()
    return name


def _connect(url: str) -> psycopg2.extensions.connection:
    try:
        return psycopg2.connect(url)
    except psycopg2.OperationalError as error:
        raise UnavailableError(str(error).strip()) from error


def password_of(user: str, passfile: Path) -> str:
    """Return the password of `user` in a file of lines `HOST:PORT:DATABASE:USER:PASSWORD`. In a field, a backslash escapes each colon and backslash.

    Raises: ConfigError: the file cannot be read, or has no line for this user.
    """
    try:
        lines = passfile.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"PASSFILE: {passfile} cannot be read: {error}") from error
    for line in lines:
        fields = [re.sub(r"\\(.)", r"\1", field) for field in re.findall(r"(?:\\.|[^:\\])+", line)]
        if len(fields) == 5 and fields[3] == user and not line.startswith("#"):
            return fields[4]
    raise ConfigError(f"PASSFILE: {passfile} has no line HOST:PORT:DATABASE:{user}:PASSWORD")


def main() -> int:
    """Create the user that the arguments name. Returns the exit code."""
    service = sys.argv[1] if len(sys.argv) == 2 else ""
    try:
        url, passfile = os.environ["DATABASE_URL"], Path(os.environ["PASSFILE"])
    except KeyError as error:
        sys.stderr.write(f"modyn db users: the environment has no {error.args[0]}; set DATABASE_URL and PASSFILE\n")
        return 1
    if service not in SERVICES:
        sys.stderr.write(f"modyn db users: '{service}' is not a service; name one of {', '.join(SERVICES)}\n")
        return 1
    try:
        password = password_of(f"modyn_{service}", passfile)
        name = create_user(url, service, password, Retrier(RetryPolicy(WAIT_S)))
    except ConfigError as error:
        sys.stderr.write(f"modyn db users: {error.message}\n")
        return 1
    except (psycopg2.Error, UnavailableError) as error:
        sys.stderr.write(
            f"modyn db users: the user of {service} cannot be created: {error}; is the URL that of an administrator?\n"
        )
        return 1
    sys.stdout.write(f"{name} owns the schema {service}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
