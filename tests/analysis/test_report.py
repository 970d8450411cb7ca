"""The report contains all documented parts, for any state of a run."""

from __future__ import annotations

import dataclasses
import json
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs_version

from benchmark.report_of_many import invented_results
from modyn.analysis.charts.bins import MAX_BINS, Bins, binned_cells, binned_triggers
from modyn.analysis.charts.checks import MAX_PANELS, checks_figure
from modyn.analysis.charts.figure import Figure
from modyn.analysis.charts.sample_sources import sources_figure, sources_note, sources_table
from modyn.analysis.page import section
from modyn.analysis.report import (
    losses_figure,
    matrix_figure,
    models_figure,
    performance_figure,
    render,
    stages_figure,
    triggers_figure,
    write_report,
)
from modyn.analysis.results import (
    RunResults,
    composite_scores,
    cost,
    evaluations_table,
    losses_table,
    series_cells,
    triggers_table,
)
from modyn.analysis.selections import SelectionTables, class_shares_table, selections_table, trained_shares_table
from modyn.evaluator.client import EvaluationResult
from modyn.records import ClassCount, EvalInterval, RunId, SelectionSummary, VersionRole
from modyn.supervisor.client import (
    CheckRecord,
    Evidence,
    Run,
    RunMode,
    RunState,
    ServedInterval,
    TriggerRecord,
    TriggerState,
)
from modyn.trainer_server.client import TrainingResult

YEAR = 365 * 86_400

result_of = TrainingResult.from_mapping


def run(state: RunState = RunState.FINISHED, **more: object) -> Run:
    fields = {"submitted_at": 100.0, "finished_at": 130.0, "num_samples": 300, "yaml": "pipeline: {name: <b>demo</b>}", **more}
    return Run(run_id=RunId("demo-0001"), pipeline_name="demo", mode=RunMode.EXPERIMENT, state=state, **fields)  # type: ignore[arg-type]


def results() -> RunResults:
    triggers = [
        TriggerRecord(
            i, i * 100, i * YEAR, (i + 1) * YEAR - 1, (i + 1) * YEAR - 1, TriggerState.TRAINED, 100.0, 110.0, 100, "c", i + 1, i or None, "ab" * 32,
            result_of({"loss": 0.25, "num_samples": 100}), {"select": 0.1, "train": 2.0, "store": 0.1, "evaluate": 1.0, "total": 3.2},
        )
        for i in range(3)
    ]  # fmt: skip
    evaluations = [
        EvaluationResult(
            RunId("r"), t, t + 1, "h", "d", EvalInterval(i * YEAR, (i + 1) * YEAR, i * YEAR), "Accuracy", 0.1 * (t + i), "", 9
        )
        for t in range(3)
        for i in range(4)
    ]
    return RunResults(run(), triggers_table(triggers), evaluations_table(evaluations))


def test_costs_are_sums_over_the_triggers() -> None:
    spent = cost(results())
    assert (spent.num_triggers, spent.num_samples, spent.wall_s) == (3, 300, 30.0)
    assert spent.by_stage_s == pytest.approx({"select": 0.3, "train": 6.0, "store": 0.3, "evaluate": 3.0})


def test_the_report_has_every_section_and_needs_no_network(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_report(results(), tmp_path / "missing" / "report.html")
    path = write_report(results(), tmp_path / "report.html")
    page = path.read_text()
    for title in (
        "Scores",
        "Evaluation matrix: Accuracy on d",
        "Over time: Accuracy on d",
        "Models",
        "Triggers",
        "Time by stage",
        "All triggers",
    ):
        assert f"<h2>{title}" in page
    plotly_js, *charts = [part.split("<script>")[-1] for part in page.split("</script>")[:-1]]
    assert len(charts) == 5
    assert all(chart.startswith("Plotly.newPlot(") for chart in charts)
    assert "src=" not in page.replace(plotly_js, "")
    assert "&lt;b&gt;demo" in page
    assert list(tmp_path.iterdir()) == [path]


def test_scores_from_before_a_deletion_are_marked_next_to_pipeline_scores_and_matrix() -> None:
    found = results()
    mixed = found.evaluations.assign(num_deleted=found.evaluations["trigger_id"].map({0: 0, 1: 0, 2: 300}).astype("Int64"))
    page, note = (
        render(dataclasses.replace(found, evaluations=mixed)),
        "300 samples of dataset &#x27;d&#x27; were deleted since it was",
    )
    head, _, matrix = page.partition("<h2>Evaluation matrix")
    assert (head.count(note), matrix.count(note)) == (1, 2), "also below the matrix and the scores over time"
    assert note not in render(found)


def test_scores_from_before_an_interval_got_samples_are_marked_where_those_before_a_deletion_are() -> None:
    found, note = results(), "dataset &#x27;d&#x27; got samples or labels in the interval"
    grown = found.evaluations.assign(num_samples=found.evaluations["trigger_id"].map({0: 9, 1: 9, 2: 12}))
    head, _, matrix = render(dataclasses.replace(found, evaluations=grown)).partition("<h2>Evaluation matrix")
    assert (head.count(note), matrix.count(note)) == (1, 2)
    assert note not in render(found)


def test_no_text_of_a_run_is_markup_on_its_page_or_in_its_charts() -> None:
    hostile = "<a href='http://evil.example'>x</a></script><img src=x onerror=alert(1)>"
    found = results()
    found = dataclasses.replace(
        found,
        run=dataclasses.replace(found.run, pipeline_name=hostile, yaml=hostile, error=hostile, message=hostile),
        triggers=found.triggers.assign(model_note=hostile),
        evaluations=found.evaluations.assign(metric=hostile, dataset_id=hostile),
    )
    page = render(found).partition("</script>")[2]  # what follows plotly.js
    assert page.count("http://evil.example") > 10
    # HTML: escaped. Charts: plotly.js would draw links and bold text of what it finds in names, axes and hover texts.
    for sign in ("<", "\\u003c"):
        assert f"{sign}a href" not in page
        assert f"{sign}img" not in page
    charts = page.split("<script>Plotly.newPlot(")[1:]
    assert any("&lt;a href" in chart.partition("</script>")[0] for chart in charts)
    own = Figure([{"hovertemplate": "%{y}<br>%{z}<extra>" + hostile + "</extra>"}], {}).html()
    assert "%{y}\\u003cbr>%{z}\\u003cextra>&lt;a href" in own


def test_what_was_served_is_a_chart_and_a_table_over_the_time_of_the_steps() -> None:
    day = 3 * YEAR
    served = [ServedInterval(day, 60, number, VersionRole.SERVING, day, day + 30.0, {8000: 5}) for number in range(600)]
    page = render(dataclasses.replace(results(), served=served))
    assert "<h2>Served predictions</h2>" in page
    assert "<h2>Versions served</h2><p class='note'>The newest 500 of 600.</p>" in page
    assert "erved" not in render(results()).partition("</script>")[2]


def with_cache(*cached: dict[str, int]) -> RunResults:
    """The results of a run in which each trigger trains on 100 samples."""
    triggers = [
        TriggerRecord(
            i, i * 100, i * YEAR, (i + 1) * YEAR - 1, (i + 1) * YEAR - 1, TriggerState.TRAINED, 100.0, 110.0, 100, "c", i + 1, i or None, "ab" * 32,
            result_of({"loss": 0.25, "num_samples": 100, **({"num_cached": counts} if counts else {})}), {"train": 2.0},
        )
        for i, counts in enumerate(cached)
    ]  # fmt: skip
    return RunResults(run(), triggers_table(triggers), evaluations_table([]))


def test_what_a_cache_served_is_drawn_by_source_where_it_served_any() -> None:
    found = with_cache({}, {"encoded": 10, "decoded": 60, "augmented": 0}, {"encoded": 0, "decoded": 120, "augmented": 0})
    table = sources_table(found.triggers)
    assert table.to_dict("list") == {
        "trigger_id": [0, 1, 2], "storage": [100, 30, 0], "encoded": [0, 10, 0], "decoded": [0, 60, 120], "augmented": [0, 0, 0],
    }  # fmt: skip
    figure = sources_figure(found.triggers)
    assert figure is not None
    assert [(bar["name"], bar["y"]) for bar in figure.data] == [
        ("storage", [100.0, 30.0, 0.0]),
        ("encoded", [0.0, 10.0, 0.0]),
        ("decoded", [0.0, 60.0, 120.0]),
    ]
    go.Figure(figure.data, figure.layout)
    assert "<h2>Cache</h2>" in render(found)
    assert "<h2>Cache</h2>" not in render(with_cache({}, {}))
    assert sources_table(results().triggers).empty


def test_a_report_counts_what_was_prepared_for_the_cache_only_and_what_was_evicted() -> None:
    table = with_cache({"encoded": 10, "decoded": 60, "augmented": 0}, {}).triggers
    assert sources_note(table).endswith(
        "0.70 samples were decoded for each served one; 0 samples were decoded only for the cache."
    )
    table = table.assign(decoded_for_cache=pd.array([1600, None], "Int64"), evicted=pd.array([2000, 1], "Int64"))
    assert sources_note(table).endswith(
        "8.70 samples were decoded for each served one; 1,600 samples were decoded only for the cache. Samplers evicted 2,001 values from the cache."
    )


def test_what_a_cache_served_to_very_many_trainings_is_drawn_in_bins() -> None:
    figure = sources_figure(with_cache(*([{"encoded": 0, "decoded": 40, "augmented": 0}] * (2 * MAX_BINS))).triggers)
    assert figure is not None
    assert [(bar["name"], bar["y"]) for bar in figure.data] == [("storage", [60.0] * MAX_BINS), ("decoded", [40.0] * MAX_BINS)]
    assert figure.data[0]["hovertext"][:2] == ["triggers 0–1", "triggers 2–3"]


def test_selections_are_tables_and_charts() -> None:
    """A report of three triggers. The second training chose half of its trigger set."""
    record = {
        "strategy": "GradNorm<",
        "num_candidates": 100,
        "num_chosen": 50,
        "class_shares": {"before": {"0": 0.5, "1": 0.5}, "after": {"0": 0.25, "1": 0.75}},
        "weight_quantiles": {"0.05": 0.5, "0.5": 1.0, "0.95": 3.25},
        "seconds": {"score": 1.5, "choose": 0.25},
        "effective_epochs": 0.5,
    }
    classes = (ClassCount(0, 75, 50), ClassCount(1, 75, 50))
    ages = (0.0, 86_400.0, 172_800.0, 259_200.0, 345_600.0)
    summaries = [SelectionSummary(i, 150, 100, 10 * i, 2, classes, ages, ages, (0.5, 1.0, 1.0, 1.0, 2.0)) for i in range(3)]

    def page_of(**more: object) -> str:
        triggers = [
            TriggerRecord(
                i,
                10,
                0,
                9,
                9,
                TriggerState.TRAINED,
                1.0,
                num_keys=100,
                model_id=1,
                training_result=result_of({"num_samples": 100}),
            )
            for i in range(3)
        ]
        triggers[1] = dataclasses.replace(
            triggers[1], training_result=result_of({"num_samples": 50, "downsampling": {**record, **more}})
        )
        tables = selections_table(summaries, triggers), class_shares_table(summaries, triggers)
        return render(results(), SelectionTables(*tables, trained_shares_table(triggers)))

    page = page_of()
    titles = [part.partition("<")[0] for part in page.split("<h2>")[1:]]
    assert titles[-9:-1] == [
        "Models", "Triggers", "Selections", "Downsampling", "Ages and overlap", "Classes", "Time by stage", "All triggers"
    ]  # fmt: skip
    row = ["1", "150", "100", "10.0%", "2.0 d", "2.0 d", "0.5 / 1 / 2", "0.50"]
    assert "".join(f"<td>{cell}</td>" for cell in row) in page
    row = ["1", "GradNorm&lt;", "100", "50", "50.0%", "0.5 / 1 / 3.25", "–", "–", "1.50", "0.25", "–"]
    assert "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" in page
    assert "Classes of the training" in page_of(transforms_labels=True)
    assert "<h2>Selections" not in render(results())


def test_losses_are_curves_of_the_trainings_in_a_row() -> None:
    per_training = {
        "loss": 0.5,
        "epoch_losses": [0.9, 0.5],
        "validation_losses": [1.0, 0.7],
        "losses": [[2, 0.8], [4, 0.4]],
        "num_batches": 4,
        "num_epochs": 2,
    }
    records = [
        TriggerRecord(i, 10, 0, 9, 9, TriggerState.TRAINED, 1.0, model_id=i + 1, training_result=result_of(result))
        for i, result in enumerate([per_training, {}, per_training])
    ]
    losses = losses_table(records)
    assert losses[losses["of"] == "epoch"][["trigger_id", "batch", "loss"]].to_numpy().tolist() == [
        *([0, 2, 0.9], [0, 4, 0.5], [2, 2, 0.9], [2, 4, 0.5])
    ]
    batches, means, held_out = losses_figure(losses).data
    assert (held_out["x"], held_out["y"]) == ([2, 4, None, 6, 8, None], [1.0, 0.7, None, 1.0, 0.7, None])
    assert (batches["x"], batches["y"]) == ([2, 4, None, 6, 8, None], [0.8, 0.4, None, 0.8, 0.4, None])
    assert (means["x"], means["customdata"]) == ([2, 4, None, 6, 8, None], [0, 0, None, 2, 2, None])
    assert "<h2>Loss</h2>" in render(RunResults(run(), triggers_table(records), evaluations_table([]), losses))
    assert "<h2>Loss</h2>" not in render(results())


def test_the_numbers_of_the_matrix_are_readable_on_each_colour() -> None:
    """Every cell has a contrast of at least 4.5 (WCAG 2.1, 1.4.3)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    (heat,) = matrix_of(models=3, intervals=2).data
    text = luminance(heat["textfont"]["color"])
    stops = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for _, colour in heat["colorscale"]]
    between = [
        np.add(np.multiply(1 - part, low), np.multiply(part, high))
        for low, high in pairwise(stops)
        for part in np.linspace(0, 1, 101)
    ]
    colours = ["#" + "".join(f"{round(value):02x}" for value in colour) for colour in between]
    assert min((luminance(colour) + 0.05) / (text + 0.05) for colour in colours) >= 4.5


def matrix_of(models: int, intervals: int) -> Figure:
    few = invented_results(models=models, intervals=intervals)
    ((series, cells),) = series_cells(few.evaluations)
    return matrix_figure(cells, composite_scores(cells, few.triggers, "active"), series)


def test_cells_too_narrow_for_their_numbers_have_none() -> None:
    assert "text" in matrix_of(models=20, intervals=11).data[0]
    assert "text" not in matrix_of(models=3, intervals=190).data[0]


def test_charts_have_a_name_for_screen_readers() -> None:
    shown = section("Cost & <waiting>", "", Figure([], {}, "'often': 3"))
    assert "<div role='img' aria-label='Cost &amp; &lt;waiting&gt;. &#x27;often&#x27;: 3'></div>" in shown
    assert "aria-label='Scores'" in section("Scores", "", Figure([], {}))


def test_pictures_of_many_triggers_are_binned() -> None:
    """Nothing on the page grows with the triggers beyond its bound: rows, columns, outlines, lines, table."""
    many = invented_results(models=1300, intervals=2)
    (series, cells), *more = series_cells(many.evaluations)
    assert not more
    active = composite_scores(cells, many.triggers, "active")
    matrix = matrix_figure(cells, active, series)
    (heat,) = matrix.data
    assert np.shape(heat["z"]) == (MAX_BINS, MAX_BINS)
    assert heat["y"][0] == "triggers 0–12"
    assert len(matrix.layout["shapes"]) <= 2 * MAX_BINS
    triggers = binned_triggers(many.triggers)
    assert (len(triggers), triggers["num_keys"].tolist()) == (MAX_BINS, [100.0] * MAX_BINS)
    assert [len(figure(triggers).data) for figure in (models_figure, triggers_figure, stages_figure)] == [2, 1, 4]
    page = render(many)
    assert page.count("<tr>") == 1 + 1 + 1 + 500
    assert "the 800 earlier ones" in page
    assert "combined into their mean" in page
    assert "combined into their mean" not in render(results())


def test_charts_are_what_plotly_draws_and_keep_gaps() -> None:
    """plotly.py, which refuses attributes unknown to plotly.js, does not change the charts: they use no short forms that only plotly.py expands."""
    shown = results()
    shown.evaluations.loc[0, "value"] = float("nan")
    ((series, cells),) = series_cells(shown.evaluations)
    active = composite_scores(cells, shown.triggers, "active")
    triggers = binned_triggers(shown.triggers)
    result = result_of({"losses": [[1, float("inf")], [2, 0.5]], "num_batches": 2})
    record = TriggerRecord(0, 10, 0, 9, 9, TriggerState.TRAINED, 1.0, training_result=result)
    figures = [figure(triggers) for figure in (models_figure, triggers_figure, stages_figure)]
    figures += [matrix_figure(cells, active, series), performance_figure({"active": active}, "Accuracy")]
    figures += [losses_figure(losses_table([record]))]
    for figure in figures:
        data, layout, _ = json.loads("[" + figure.html().split("previousElementSibling, ")[1].removesuffix(")</script>") + "]")
        parsed = json.loads(go.Figure(data, layout).to_json())
        if "colorscale" in data[0]:  # It replaces the name by the colours.
            parsed["data"][0]["colorscale"] = data[0]["colorscale"]
        assert parsed == {"data": data, "layout": layout}
    *_, matrix, _, losses = figures
    assert (matrix.data[0]["z"][0][0], losses.data[0]["y"]) == (None, [None, 0.5, None])


def test_no_name_ends_the_script_of_a_chart() -> None:
    page = Figure([{"type": "bar", "name": "</script><!--"}], {}).html()
    assert page.count("</script>") == 1
    assert "<!--" not in page


def test_the_page_loads_the_plotly_js_that_charts_are_checked_with() -> None:
    assert f"plotly.js (cartesian - minified) v{get_plotlyjs_version()}\n" in render(results())


@pytest.mark.parametrize("length", [0, 1, 3, MAX_BINS, MAX_BINS + 1, 257, 1300])
def test_bins_cover_an_axis_without_gap(length: int) -> None:
    bins = Bins(length)
    of = bins.of(np.arange(length))
    assert sorted(set(of.tolist())) == list(range(bins.number))
    assert [of[start] for start in bins.starts] == [of[end] for end in bins.ends] == list(range(bins.number))
    assert (bins.ends - bins.starts + 1).sum() == length


def test_binned_cells_are_means_of_what_is_defined() -> None:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((257, 130)) < 0.3, rng.random((257, 130)), np.nan)
    dense[:10, :10] = np.nan
    rows, columns = (axis.ravel().astype(np.int64) for axis in np.indices(dense.shape))
    r, c = Bins(257), Bins(130)
    found = binned_cells(rows, columns, dense.ravel(), r, c)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
        expected = [
            [np.nanmean(dense[r0 : r1 + 1, c0 : c1 + 1]) for c0, c1 in zip(c.starts, c.ends, strict=True)]
            for r0, r1 in zip(r.starts, r.ends, strict=True)
        ]
    np.testing.assert_allclose(found, expected)


def test_tiles_name_metric_dataset_and_handler() -> None:
    assert "<span>Accuracy · d · h · currently active</span>" in render(results())


def test_triggers_of_steps_are_told_from_trainings() -> None:
    found = results()
    assert "<th>kind</th>" not in render(found)
    found.triggers["online"] = [False, True, True]
    page = render(found)
    assert "<td>0</td><td>training</td>" in page
    assert "<td>2</td><td>steps</td>" in page


def test_a_composite_model_that_was_not_evaluated_is_a_dash() -> None:
    found = results()
    found.evaluations["value"] = np.nan
    assert "<td>–</td><td>–</td><td>0 of 4</td>" in render(found)


def test_a_run_without_triggers_and_one_that_failed_have_a_report_too() -> None:
    empty = RunResults(run(message="the stream ended and no trigger fired"), triggers_table([]), evaluations_table([]))
    assert "the stream ended and no trigger fired" in render(empty)
    failed = RunResults(
        run(RunState.FAILED, finished_at=None, error="trigger 0: <disk full>"), triggers_table([]), evaluations_table([])
    )
    page = render(failed)
    assert "trigger 0: &lt;disk full&gt;" in page
    assert cost(failed).wall_s == 0.0


def test_a_trigger_that_is_still_running_has_gaps_and_no_errors() -> None:
    half = TriggerRecord(0, 10, 0, 9, 9, TriggerState.FIRED, 100.0)
    page = render(RunResults(run(RunState.TRAINING, finished_at=None), triggers_table([half]), evaluations_table([])))
    assert "All triggers" in page
    assert np.isnan(triggers_table([half])["loss"][0])


FIRST = Evidence.flag("first_trigger")
USUAL = Evidence.flag("unusual", is_set=False)


def check(number: int, timestamp: int | None, *evidence: Evidence) -> CheckRecord:
    return CheckRecord(10 * number, False, evidence, timestamp=timestamp)


def checks_of_a_year() -> list[CheckRecord]:
    warming_up, count = Evidence.flag("warming_up"), Evidence.count("current_samples", 9)
    warm = [check(n, n * YEAR // 10, Evidence("mmd", 0.1 * n, unusual=False), USUAL, warming_up) for n in (2, 3)]
    judged = {n: Evidence("mmd", 0.1 * n, threshold=0.45, unusual=n > 4, seconds=0.5) for n in (4, 5)}
    return [check(0, YEAR // 10, FIRST), *warm, *(check(n, n * YEAR // 10, one, USUAL, count) for n, one in judged.items())]


def test_checks_are_drawn_with_thresholds_warm_up_triggers_and_the_score() -> None:
    found = dataclasses.replace(results(), checks=checks_of_a_year())
    figure = checks_figure(found)
    assert figure is not None
    measured, threshold, unusual, score = figure.data
    assert measured["y"] == [None, 0.2, pytest.approx(0.3), 0.4, 0.5]
    assert threshold["y"] == [None, None, None, 0.45, 0.45]
    assert unusual["y"] == [None, None, None, None, 0.5]
    assert [trace["yaxis"] for trace in figure.data] == ["y", "y", "y", "y2"]
    assert score["x"] == ["1970-01-01 00:00:00", "1971-01-01 00:00:00", "1972-01-01 00:00:00", "1972-12-31 00:00:00"]
    assert {trace["xaxis"] for trace in figure.data} == {"x"}
    warm_up, *fired = figure.layout["shapes"]
    assert (warm_up["x0"], warm_up["x1"]) == ("1970-02-06 12:00:00", "1970-04-20 12:00:00")
    assert len(fired) == 3
    assert [note["text"] for note in figure.layout["annotations"]] == ["mmd", "Accuracy of the active model on d (h)"]
    go.Figure(figure.data, figure.layout)
    assert "<h2>Checks of the trigger policy" in render(found)


def test_checks_of_each_policy_are_drawn_apart() -> None:
    of_steps = [dataclasses.replace(one, online=True, evidence=(Evidence("loss", 1.0),)) for one in checks_of_a_year()]
    page = render(dataclasses.replace(results(), checks=[*checks_of_a_year(), *of_steps]))
    first, second = page.partition("<h2>Checks of the trigger policy")[2].split("<h2>Checks of the policy of steps")
    second = second.partition("<h2>")[0]
    assert ['"text": "loss"' in part for part in (first, second)] == [False, True]
    assert ['"text": "mmd"' in part for part in (first, second)] == [True, False]


def test_a_run_without_checks_has_no_chart_of_them() -> None:
    assert checks_figure(results()) is None
    nothing_measured = [check(1, 10, FIRST)]
    no_times = [check(1, None, Evidence("mmd", 0.5))]
    for checks in (nothing_measured, no_times):
        assert checks_figure(dataclasses.replace(results(), checks=checks)) is None
    assert "<h2>Checks" not in render(results())


def test_very_many_checks_are_drawn_as_means_with_their_range() -> None:
    rows = [check(n, n, Evidence("mmd", n, threshold=5.0, unusual=n % 100 == 99), USUAL) for n in range(10_000)]
    many = RunResults(run(), triggers_table([]), evaluations_table([]), checks=rows)
    figure = checks_figure(many)
    assert figure is not None
    low, high, measured, threshold, unusual = figure.data
    assert [trace["y"][0] for trace in (low, high, measured, threshold, unusual)] == [0.0, 99.0, 49.5, 5.0, 99.0]
    assert {len(trace[axis]) for trace in figure.data for axis in ("x", "y")} == {MAX_BINS}
    assert figure.layout["shapes"] == []
    go.Figure(figure.data, figure.layout)
    assert "combined into their mean" in render(many)


def test_series_of_p_values_and_of_many_metrics() -> None:
    judged = Evidence("mmd", 0.5, unusual=True, p_value=0.03, level=0.05), Evidence("idle", 3.0)
    figure = checks_figure(dataclasses.replace(results(), checks=[check(1, 10, *judged)]))
    assert figure is not None
    assert [trace["y"] for trace in figure.data[:6]] == [[0.03], [0.05], [0.03], [0.5], [0.5], [3.0]]
    titles = [note["text"] for note in figure.layout["annotations"]]
    assert titles[:3] == ["mmd, p-value", "mmd", "idle"], "what was judged comes first"
    plugin = [Evidence(f"series-{n}", 0.5, subtrigger="drift") for n in range(MAX_PANELS + 2)]
    found = dataclasses.replace(results(), checks=[check(1, 10, *plugin)])
    figure = checks_figure(found)
    assert figure is not None
    titles = [note["text"] for note in figure.layout["annotations"]]
    assert titles[0] == "drift/series-0"
    assert len(titles) == MAX_PANELS + 1, "and the score"
    assert "2 more series are not drawn" in render(found)
    assert "not drawn" not in render(dataclasses.replace(found, checks=[check(1, 10, Evidence("mmd", 1.0))]))
    low, high = figure.layout[f"yaxis{MAX_PANELS + 1}"]["domain"]
    assert 0 <= low < high < 1


@pytest.mark.parametrize("path", ["", "detector/"])
def test_what_a_detector_watches_is_drawn_and_red_where_it_finds_a_change(path: str) -> None:
    rows = [check(0, 1, FIRST)]
    for n in range(5):
        watched = [Evidence("sum", 0.1 * n, threshold=0.5, unusual=n == 3), Evidence("distance", 0.01 * n)]
        found = [*watched, Evidence.count("detections", n == 3), Evidence.count("current_samples", 9), USUAL]
        rows.append(check(n + 1, n + 2, *(one.of_subtrigger("detector") if path else one for one in found)))
    figure = checks_figure(RunResults(run(), triggers_table([]), evaluations_table([]), checks=rows))
    assert figure is not None
    assert [note["text"] for note in figure.layout["annotations"]] == [f"{path}sum", f"{path}distance"], "no counts, no flags"
    names = [(trace["name"], trace["yaxis"]) for trace in figure.data]
    assert names == [("measured", "y"), ("threshold", "y"), ("unusual", "y"), ("measured", "y2"), ("unusual", "y2")]
    assert [trace["showlegend"] for trace in figure.data] == [True, True, True, False, False], "each once"
    assert figure.data[2]["y"] == [None, None, None, None, pytest.approx(0.3), None]
    assert figure.data[3]["y"] == pytest.approx([None, 0, 0.01, 0.02, 0.03, 0.04])
    assert figure.data[4]["y"] == [None, None, None, None, pytest.approx(0.03), None]
