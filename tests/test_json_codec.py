"""Every document comes back from PostgreSQL as it went in, also one with numbers that JSON does not have."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, make_url, select, text
from sqlalchemy.dialects.postgresql import JSONB

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.json_codec import from_json, sanitize, to_json

TEXT = st.text(st.characters())  # also NUL and lone surrogates
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
DOCUMENTS = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10)
ODD_TEXT = [
    "a NUL \0",
    "/data/\udcff.png",
    "\ud83d\ude00",
    "$text:a",
    "$text:\\x00",
    "$int:7",
    "$float:nan",
    "$float:-inf",
    "$float:no",
    r"\u0000",
    "käse 😀",
]


def same(a: Any, b: Any) -> bool:
    match a, b:
        case dict(), dict():
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        case list(), list():
            return len(a) == len(b) and all(map(same, a, b))
        case float(), float() if math.isnan(a):
            return math.isnan(b)
    return type(a) is type(b) and bool(a == b)


@given(DOCUMENTS)
def test_a_document_survives(document: Any) -> None:
    written = to_json(document)
    assert same(from_json(written), document)
    assert same(from_json(written.encode()), document)
    assert "NaN" not in written or "NaN" in str(document)


def test_postgres_takes_what_json_does_not(system_config: SystemConfig) -> None:
    document = {
        "loss": float("nan"),
        "epoch_losses": [1.5, float("inf"), float("-inf")],
        "text": "$float: no number",
        "odd": {text: [text] for text in ODD_TEXT},
    }
    database = open_database(system_config, "supervisor", "modyn.supervisor.migrations")
    documents = Table("documents", MetaData(schema="supervisor"), Column("id", Integer), Column("document", JSONB))
    documents.create(database.engine)
    with database.session() as session:
        session.execute(insert(documents).values(id=1, document=document))
    with database.session() as session:
        assert same(session.execute(select(documents.c.document)).scalar_one(), document)
    database.close()
    plain = create_engine(make_url(system_config.resolved_database_url()).set(drivername="postgresql+psycopg2"))
    with plain.connect() as connection:
        assert connection.scalar(text("SELECT document->>'loss' FROM supervisor.documents")) == "$float:nan"
    plain.dispose()


@given(st.text(st.characters()))
def test_any_text_becomes_storable(text: str) -> None:
    stored = sanitize(text)
    assert "\0" not in stored
    stored.encode()
    assert sanitize(stored) == stored


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_what_is_storable_stays_as_it_is(text: str) -> None:
    assert sanitize(text) == text
