"""What the report of a run shows of what its triggers chose."""

from __future__ import annotations

import html

from modyn.analysis.page import html_table, section
from modyn.analysis.selection_charts import (
    AGES_NOTE,
    SHARES_NOTE,
    TRAINED_SHARES_NOTE,
    ages_figure,
    class_shares_figure,
    trained_shares_figure,
)
from modyn.analysis.selection_rows import (
    DOWNSAMPLING_CELLS,
    DOWNSAMPLING_NOTE,
    SELECTION_CELLS,
    SELECTION_NOTE,
    cells_of,
    downsampled,
    selection_notes,
)
from modyn.analysis.selections import SelectionTables


def selection_sections(tables: SelectionTables) -> list[str]:
    """The sections of a report on what triggers chose: tables, what is probably not as it is meant, and charts."""
    parts = []
    for title, note, cells, table in (
        ("Selections", SELECTION_NOTE, SELECTION_CELLS, tables.selections),
        ("Downsampling", DOWNSAMPLING_NOTE, DOWNSAMPLING_CELLS, downsampled(tables.selections)),
    ):
        if len(table):
            parts.append(
                f"<h2>{title}</h2><p class='note'>{html.escape(note)}</p>{html_table(list(cells), cells_of(cells, table))}"
            )
    parts += [f"<p class='note'>{html.escape(note)}</p>" for note in selection_notes(tables.selections)]
    charts = (
        ("Ages and overlap", AGES_NOTE, ages_figure(tables.selections)),
        ("Classes", SHARES_NOTE, class_shares_figure(tables.class_shares)),
        ("Classes of the training", TRAINED_SHARES_NOTE, trained_shares_figure(tables.other_shares)),
    )
    return parts + [section(title, note, figure) for title, note, figure in charts if figure is not None]
