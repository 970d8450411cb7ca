"""The command line as a user types it, on a real stack."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from modyn.testing.stack import RunningStack, tiny_evaluation, tiny_pipeline, tiny_training, write_tiny_files
from modyn.testing.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stack(running_stack: RunningStack) -> RunningStack:
    running_stack.tiny_dataset("cli")
    return running_stack


@pytest.fixture(scope="module")
def finished(stack: RunningStack) -> str:
    """A finished run with two triggers and evaluations."""
    done = stack.modyn("run", stack.pipeline_file("cli", evaluation=tiny_evaluation("cli")), "--report", stack.folder / "r.html")
    assert done.returncode == 0, done.stderr
    return done.stderr.split()[1]


def answer(stack: RunningStack, *arguments: str) -> Any:
    """Return the JSON output of a command."""
    done = stack.modyn(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def state_of(stack: RunningStack, run_id: str) -> str:
    return str(answer(stack, "show", run_id)["run"]["state"])


def wait_for_state(stack: RunningStack, run_id: str, *states: str) -> None:
    with stack.client() as client:
        eventually(lambda: client.show(run_id).state in states, lambda: f"{run_id} is {client.show(run_id)}, not {states}")


def test_a_dataset_from_registration_to_deletion(stack: RunningStack) -> None:
    folder = stack.folder / "data" / "by hand"
    write_tiny_files(folder, num_samples=20)
    options = [part for text in ("record_size=24", "label_size=8", "byteorder=little") for part in ("-o", text)]
    register = ("data", "register", "by-hand", folder, "--format", "BinaryFileWrapper", *options, "--no-watch")
    done = stack.modyn(*register, "--no-ingest")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "modyn data ingest by-hand" in done.stderr
    assert answer(stack, "data", "show", "by-hand")["num_samples"] == 0
    assert "20 samples in 2 files" in stack.modyn("data", "ingest", "by-hand").stderr
    again = stack.modyn(*register)
    assert again.returncode == 0, again.stderr
    assert "20 samples in 2 files" in again.stderr
    shown = answer(stack, "data", "show", "by-hand")
    assert (shown["num_samples"], shown["num_files"], shown["num_problems"]) == (20, 2, 0)
    assert [d["name"] for d in answer(stack, "data", "ls") if d["name"] == "by-hand"] == ["by-hand"]
    listed = stack.modyn("data", "ls").stdout.splitlines()
    assert listed[0].split("\t") == ["dataset", "samples", "files", "problems", "first", "last", "format"]
    assert any(line.split("\t")[:3] == ["by-hand", "20", "2"] for line in listed)
    assert answer(stack, "data", "problems", "by-hand") == []
    scrubbed = stack.modyn("data", "scrub", "by-hand").stderr
    assert "all files of its index match their checksums, and 2 data files are unchanged since they were indexed" in scrubbed
    assert "2 data files were read for the first time" in scrubbed
    assert answer(stack, "data", "scrub", "by-hand") == []
    assert "deleted 2 samples" in stack.modyn("data", "delete", "by-hand", "--key", "0", "--key", "7", "--yes").stderr
    assert answer(stack, "data", "show", "by-hand")["num_deleted"] == 2
    refused = stack.modyn("data", "delete", "by-hand")
    assert refused.returncode == 1, "there was no terminal to confirm at"
    assert stack.modyn("data", "delete", "by-hand", "--yes").returncode == 0
    assert stack.modyn("data", "show", "by-hand").returncode == 1
    assert len(list(folder.iterdir())) == 2


def test_a_dataset_of_records_from_registration_to_deletion(stack: RunningStack, tmp_path: Path) -> None:
    done = stack.modyn("data", "register", "cli-records", "--records")
    assert done.returncode == 0, done.stderr
    assert "modyn data append cli-records" in done.stderr
    assert stack.modyn("data", "register", "cli-records", "--records").returncode == 0
    file = tmp_path / "records.jsonl"
    file.write_text("".join(f'{{"key": "{i}", "label": {i}, "features": {{"x": {i}}}}}\n' for i in range(30)))
    assert answer(stack, "data", "append", "cli-records", str(file)) == {
        "appended": 30,
        "duplicates": 0,
        "differing": 0,
        "differing_keys": [],
    }
    with file.open("a") as longer:
        longer.write('{"key": "new", "label": 1, "payload": "x"}\n{"key": "3", "label": 1, "payload": "other"}\n')
    done = stack.modyn("data", "append", "cli-records", str(file))
    assert "cli-records: 1 records appended, 31 existed already" in done.stderr
    assert "1 of them differ from the existing records, which are kept; keys: 3" in done.stderr
    eventually(lambda: answer(stack, "data", "show", "cli-records")["num_samples"] == 31)
    shown = answer(stack, "data", "show", "cli-records")
    assert (shown["base_path"], shown["file_wrapper"], shown["num_files"]) == ("records://", "RecordLogWrapper", 1)
    refused = stack.modyn("data", "append", "cli", file)
    assert refused.returncode == 1
    assert "is made of the files in" in refused.stderr
    for arguments in (["--records", "."], [], ["--records", "--format", "CsvFileWrapper"]):
        assert stack.modyn("data", "register", "wrong", *arguments).returncode == 2
    assert "deleted cli-records and all records in it" in stack.modyn("data", "delete", "cli-records", "--yes").stderr


def test_check_tells_valid_files_and_every_mistake_with_its_line(stack: RunningStack, tmp_path: Path) -> None:
    good = stack.pipeline_file("cli")
    done = stack.modyn("check", good)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{good} is valid\n")
    bad = tmp_path / "bad.yaml"
    text = tiny_pipeline("cli", training=tiny_training(batch_size=0, seed="one"))
    bad.write_text(text)
    done = stack.modyn("check", bad)
    assert done.returncode == 1
    line = 1 + next(number for number, found in enumerate(text.splitlines()) if "batch_size" in found)
    assert f"bad.yaml:{line}" in done.stdout
    assert "training.batch_size" in done.stdout
    assert "training.seed" in done.stdout
    assert "2 problems" in done.stderr
    found = json.loads(stack.modyn("check", bad, "--json").stdout)
    assert {(p["path"], p["line"]) for p in found} >= {("training.batch_size", line)}


def test_a_run_prints_lines_and_results(stack: RunningStack, finished: str) -> None:
    shown = stack.modyn("show", finished)
    assert shown.returncode == 0
    assert "state      finished" in shown.stdout
    assert "samples    100 of 100" in shown.stdout
    assert "# Triggers\ntrigger\tfired at\tkeys\tskipped\tmodel\tloss\ttrain s\ttotal s\tweights\n" in shown.stdout
    assert "# Accuracy on cli (daily); * = currently active model\n" in shown.stdout
    assert "# Pipeline scores\nmetric\tdataset\thandler\tcurrently active\tcurrently trained\n" in shown.stdout
    assert "cost: 2 triggers, 100 samples" in shown.stdout
    events = [json.loads(line) for line in stack.modyn("watch", finished, "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert events[-1]["detail"]["state"] == "finished"
    watched = stack.modyn("watch", finished)
    assert watched.returncode == 0
    assert "trigger 0 fired at 1970-01-01 12:00:00 after 50 samples" in watched.stderr
    assert "trigger 1 trained in" in watched.stderr
    assert watched.stdout == shown.stdout


def test_json_of_a_run_is_complete(stack: RunningStack, finished: str) -> None:
    shown = answer(stack, "show", finished)
    assert {key: shown["run"][key] for key in ("run_id", "mode", "state", "num_samples", "num_triggers", "error")} == {
        "run_id": finished, "mode": "experiment", "state": "finished", "num_samples": 100, "num_triggers": 2, "error": "",
    }  # fmt: skip
    triggers = shown["triggers"]
    assert [(t["trigger_id"], t["position"], t["num_keys"]) for t in triggers] == [(0, 50, 50), (1, 100, 50)]
    assert triggers[0]["parent_model_id"] is None
    assert triggers[1]["parent_model_id"] == triggers[0]["model_id"]
    assert len({t["weights_sha256"] for t in triggers}) == 2
    assert [(e["trigger_id"], e["start"], e["num_samples"]) for e in shown["evaluations"]] == [
        (0, 0, 50), (0, 86_400, 50), (1, 0, 50), (1, 86_400, 50),
    ]  # fmt: skip
    assert all(0.8 <= e["value"] <= 1 for e in shown["evaluations"] if e["trigger_id"] == 1)
    assert {s["metric"] for s in shown["scores"]} == {"Accuracy"}
    (listed,) = [run for run in answer(stack, "ps") if run["run_id"] == finished]
    assert (listed["state"], listed["num_triggers"]) == ("finished", 2)
    assert any(
        line.startswith(f"{finished}\ttiny\texperiment\tfinished\t100\t2\t") for line in stack.modyn("ps").stdout.splitlines()
    )


def test_the_report_has_its_sections(stack: RunningStack, finished: str) -> None:
    by_run = (stack.folder / "r.html").read_text()
    done = stack.modyn("report", finished, "-o", stack.folder / "again.html")
    assert done.stdout == f"{stack.folder / 'again.html'}\n"
    for text in (by_run, (stack.folder / "again.html").read_text()):
        assert text.lstrip().startswith("<!")
        assert text.rstrip().endswith("</html>")
        for section in ("matrix", "omposite", "rigger", "Classes", "stage", finished):
            assert section in text


@pytest.mark.slow
def test_models_are_listed_shown_and_exported_as_files_that_load(stack: RunningStack, finished: str) -> None:
    models = answer(stack, "models", "ls", finished)
    assert [m["version"]["trigger_id"] for m in models] == [0, 1]
    version = models[1]["version"]
    number = str(version["model_id"])
    shown = answer(stack, "models", "show", number)
    assert shown["model_class"] == "LogisticRegression"
    assert shown["training_result"]["num_samples"] == 50
    assert version["weights_sha256"][:12] in stack.modyn("models", "ls", finished).stdout
    text = stack.modyn("models", "show", number).stdout
    assert "weights sha256" in text
    assert "size if stored whole" in text
    target = stack.folder / "exported.safetensors"
    target.unlink(missing_ok=True)
    assert stack.modyn("models", "export", number, target).returncode == 0
    refused = stack.modyn("models", "export", number, target)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    refused = stack.modyn("models", "export", number, stack.folder / "program.pt2", "--input", "features")
    assert refused.returncode == 1
    assert f"model {number} was trained without the section `preprocessing`" in refused.stderr

    from modyn.models.weights import build_model, load_weights, weights_sha256

    assert weights_sha256(target) == version["weights_sha256"]
    about = json.loads(target.with_suffix(".json").read_text())["model"]
    load_weights(build_model(about["id"], about["config"]), target)


def test_detach_stop_and_resume(stack: RunningStack) -> None:
    folder = stack.tiny_dataset("cli-live", num_samples=50, num_files=1, watch=True)
    done = stack.modyn("run", stack.pipeline_file("cli-live"), "--production", "--detach")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    wait_for_state(stack, run_id, "waiting_for_data")
    watcher = subprocess.Popen(stack.command("watch", run_id), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stopped = stack.modyn("stop", run_id)
    assert stopped.returncode == 0
    assert run_id in stopped.stderr
    out, err = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 3, err
    assert "run stopped" in err
    assert "state      stopped" in out
    assert stack.modyn("stop", run_id).returncode == 0, "stopping twice does no harm"
    write_tiny_files(folder, num_samples=50, num_files=1, first_day=3)
    assert stack.modyn("resume", run_id, "--detach").returncode == 0
    wait_for_state(stack, run_id, "waiting_for_data", "training")
    with stack.client() as client:
        eventually(lambda: len(client.triggers(run_id)) >= 2)
    assert stack.modyn("stop", run_id).returncode == 0
    wait_for_state(stack, run_id, "stopped")
    assert [t["num_keys"] for t in answer(stack, "show", run_id)["triggers"]] == [50, 50]


@pytest.mark.slow
def test_manual_evaluations_are_made_when_asked_for(stack: RunningStack) -> None:
    file = stack.pipeline_file("cli", evaluation=tiny_evaluation("cli", handler="later", execution_time="manual"))
    run_id = stack.modyn("run", file).stderr.split()[1]
    assert answer(stack, "show", run_id)["evaluations"] == []
    done = stack.modyn("evaluate", run_id)
    assert done.returncode == 0, done.stderr
    assert "# Accuracy on cli (later); * = currently active model" in done.stdout
    assert len(answer(stack, "show", run_id)["evaluations"]) == 4
    unknown = stack.modyn("evaluate", run_id, "--handler", "latter")
    assert unknown.returncode == 1
    assert "latter" in unknown.stderr
    assert "later" in unknown.stderr


def test_the_stream_can_be_cut(stack: RunningStack) -> None:
    done = stack.modyn("run", stack.pipeline_file("cli"), "--from", "1970-01-02", "--to", "1970-01-03", "--max-triggers", "1")
    assert done.returncode == 0, done.stderr
    assert "samples    50" in done.stdout
    assert "trigger 0 fired at 1970-01-02" in done.stderr
    bad = stack.modyn("run", stack.pipeline_file("cli"), "--from", "yesterday")
    assert bad.returncode == 1
    assert (
        bad.stderr
        == "error: --from is wrong: 'yesterday' is not a timestamp; write seconds since 1970 or a date such as 2014-01-31\n"
    )


def test_logs_of_a_service_and_of_a_run(stack: RunningStack, finished: str) -> None:
    storage = stack.modyn("logs", "storage", "-n", "1000").stdout
    assert any("  info     serving  " in line for line in storage.splitlines())
    of_run = stack.modyn("logs", finished, "-n", "1000").stdout
    assert "stored" in of_run
    workers = [line for line in of_run.splitlines() if line.startswith("training-1: ")]
    assert workers, "what the worker of a training wrote is among it"
    assert all(finished in line for line in of_run.splitlines() if not line.startswith(("training-", "evaluation-")))
    as_json = [json.loads(line) for line in stack.modyn("logs", finished, "--json").stdout.splitlines()]
    assert {line["service"] for line in as_json if "service" in line} >= {"supervisor", "trainer_worker"}
    unknown = stack.modyn("logs", "storge")
    assert unknown.returncode == 1
    assert "there is no service or run 'storge', did you mean 'storage'?" in unknown.stderr
    following = subprocess.Popen(stack.command("logs", "-f", "-n", "1", "supervisor"), stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    assert following.stdout.readline()
    following.terminate()
    following.communicate(timeout=PATIENCE_S)


def test_plugins_list_every_kind(stack: RunningStack) -> None:
    found = {(p["group"], p["id"]) for p in answer(stack, "plugins")}
    assert found >= {
        ("modyn.triggers", "TimeTrigger"), ("modyn.selection", "NewDataStrategy"), ("modyn.presampling", "Random"),
        ("modyn.models", "SmallCNN"), ("modyn.metrics", "Accuracy"), ("modyn.evaluation_strategies", "SlicingEvalStrategy"),
        ("modyn.model_formats", "SafetensorsFullModel"), ("modyn.downsampling", "No"),
    }  # fmt: skip
    assert stack.modyn("plugins").stdout.startswith("kind\tid\tpackage\tfrom\n")


def test_tables_from_python(stack: RunningStack, finished: str) -> None:
    with stack.client() as client:
        datasets, models, plugins = client.datasets(), client.models(finished), client.plugins()
        assert datasets.set_index("name").loc["cli", "num_samples"] == 100
        assert models["trigger_id"].to_list() == [0, 1]
        assert str(models["parent_id"].dtype) == "Int64"
        assert client.load_model(models.iloc[-1].model_id) is not None
        assert client.problems("cli").columns.to_list() == ["path", "reason", "found_at"]
        assert client.models("no-such-run").columns.to_list() == models.columns.to_list()
        assert "TimeTrigger" in set(plugins["id"])
        assert client.schema()["title"] == "Modyn pipeline"
        assert "samples in a batch" in client.explain("training.batch_size")
        assert client.runs().set_index("run_id").loc[finished, "state"] == "finished"


def test_the_schema_accepts_the_example_and_refuses_a_typo(stack: RunningStack) -> None:
    schema = json.loads(stack.modyn("schema").stdout)
    validator = jsonschema.Draft202012Validator(schema)
    pipeline = yaml.safe_load((ROOT / "examples" / "digits" / "pipeline.yaml").read_text())
    plain = json.loads(json.dumps(pipeline, default=str))
    validator.validate(plain)
    plain["training"]["batch_sise"] = 3
    assert not validator.is_valid(plain)


def test_explain(stack: RunningStack) -> None:
    done = stack.modyn("explain", "training.batch_size")
    assert done.returncode == 0
    assert "samples in a batch" in done.stdout
    unknown = stack.modyn("explain", "training.batchsize")
    assert unknown.returncode == 1
    assert "training.batch_size" in unknown.stderr


def test_status(stack: RunningStack) -> None:
    rows = answer(stack, "status")
    assert len(rows) == 10
    assert all(row["healthy"] and row["pid"] for row in rows)
    assert stack.modyn("status").stdout.startswith("service\thealth\tprocess\trestarts\taddress\npostgres\thealthy\t")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "no-such-run"], 1, "error: there is no run 'no-such-run'"),
        (["watch", "no-such-run"], 1, "error: there is no run 'no-such-run'"),
        (["stop", "no-such-run"], 1, "error: there is no run 'no-such-run'"),
        (["resume", "no-such-run"], 1, "error: there is no run 'no-such-run'"),
        (["report", "no-such-run"], 1, "error: there is no run 'no-such-run'"),
        (["data", "show", "no-such"], 1, "error: "),
        (["models", "show", "123456"], 1, "error: there is no model 123456"),
        (["run", "no-such-file.yaml"], 1, "error: there is no pipeline file no-such-file.yaml"),
        (["check", "."], 1, "error: cannot read the pipeline file ."),
        (["run"], 2, "Missing argument"),
        (["rum"], 2, "No such command 'rum'"),
        (["data", "register", "a/b", "."], 1, "name: 'a/b' is wrong"),
        (["data", "register", "x", ".", "-o", "nonsense"], 2, "'nonsense' is not NAME=VALUE"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_what_goes_wrong_has_a_code_and_a_word(stack: RunningStack, arguments: list[str], code: int, words: str) -> None:
    done = stack.modyn(*arguments)
    assert done.returncode == code, done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_is_not_an_error(stack: RunningStack) -> None:
    command = " ".join(f"'{part}'" for part in stack.command("plugins"))
    done = subprocess.run(f"{command} | head -n 1", shell=True, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.startswith("kind\t")
    assert "Traceback" not in done.stderr


def test_without_services_commands_say_so_at_once(tmp_path: Path, stack: RunningStack) -> None:
    done = stack.modyn("--state-dir", tmp_path / "nothing", "ps")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no services run in {tmp_path / 'nothing'}: start them with `modyn up`")
    assert not (tmp_path / "nothing").exists()
    status = stack.modyn("--state-dir", tmp_path / "nothing", "status", "--json")
    assert status.returncode == 1
    assert [row["healthy"] for row in json.loads(status.stdout)] == [False] * 6
    assert "no services run in" in stack.modyn("--state-dir", tmp_path / "nothing", "down").stderr


def test_what_triggers_chose_is_shown(stack: RunningStack, finished: str) -> None:
    found = answer(stack, "show", finished, "--selections")
    assert [row["num_chosen"] for row in found["selections"]] == [row["num_candidates"] for row in found["selections"]]
    assert sum(row["chosen"] for row in found["class_shares"]) == sum(row["num_chosen"] for row in found["selections"])
    lines = stack.modyn("show", finished, "--selections").stdout.strip().splitlines()
    assert lines[0] == "# Selections"
    assert lines[1].split("\t")[:3] == ["trigger", "candidates", "chosen"]
    assert any(line.startswith("# Class shares") for line in lines)
    refused = stack.modyn("show", finished, "--selections", "--checks")
    assert refused.returncode == 2


@pytest.mark.parametrize(
    ("sample_then_batch", "keep_scores"),
    [(True, False), *(pytest.param(False, keep, marks=pytest.mark.exhaustive) for keep in (True, False))],
)
def test_what_downsampling_chose_is_shown_and_listed(stack: RunningStack, sample_then_batch: bool, keep_scores: bool) -> None:
    """Each of two epochs trains on half of 50 and 100 candidates; a run without stored choices reports this."""
    config = {"strategy": "GradNorm", "ratio": 50, "sample_then_batch": sample_then_batch}
    selection = {
        "name": "CoresetStrategy",
        "maximum_keys_in_memory": 30,
        "downsampling_config": config,
        "keep_scores": keep_scores,
    }
    training = tiny_training(epochs_per_trigger=2, drop_last_batch=False)
    pipeline = stack.pipeline_file("cli", selection_strategy=selection, training=training)
    report = stack.folder / f"downsampled-{sample_then_batch}-{keep_scores}.html"
    done = stack.modyn("run", pipeline, "--report", report)
    assert done.returncode == 0, done.stderr
    run_id = done.stderr.split()[1]
    shown = answer(stack, "show", run_id, "--selections")
    rows = shown["selections"]
    assert [(row["num_candidates"], row["downsampling_chosen"], row["effective_epochs"]) for row in rows] == [
        (50, 50, 1.0), (100, 100, 1.0)
    ]  # fmt: skip
    assert [row["chosen_before"] for row in rows] == [0.0, 0.5]
    assert all(0 < row["downsampling_weight_5"] <= row["downsampling_weight_50"] <= row["downsampling_weight_95"] for row in rows)
    assert {row["trigger_id"] for row in shown["trained_class_shares"]} == {0, 1}
    printed = stack.modyn("show", run_id, "--selections").stdout
    assert (
        "trigger\tpolicy\tsamples\ttrained on\tkept\tweights\tlargest weight\teffective\tscore s\tchoose s\tirreducible s\n"
        "0\tGradNorm\t100\t50\t50.0%\t" in printed
    )
    assert "<td>GradNorm</td><td>200</td><td>100</td><td>50.0%</td>" in report.read_text()

    listed = stack.modyn("data", "show", "--run", run_id, "--trigger", "1", "--json")
    chosen = json.loads(listed.stdout)
    known = sample_then_batch or keep_scores
    assert len({row["key"] for row in chosen}) == len(chosen) == (50 if known else 100)
    assert ("did not keep its choice" in listed.stderr) is not known
    assert all(row["chosen"] is (True if known else None) for row in chosen)
    if known:
        assert all(row["downsampling_score"] > 0 and row["downsampling_weight"] > 0 for row in chosen)
        everything = answer(stack, "data", "show", "--run", run_id, "--trigger", "1", "--all")
        assert [row["key"] for row in everything if row["chosen"]] == [row["key"] for row in chosen]
        assert len(everything) == 100
    cut = stack.modyn("data", "show", "--run", run_id, "--trigger", "1", "--limit", "2")
    assert f"the first 2 of {len(chosen)} samples" in cut.stderr
    assert len(cut.stdout.splitlines()) == 3


@pytest.mark.slow
def test_chosen_samples_are_listed(stack: RunningStack, finished: str) -> None:
    (summary, *_) = answer(stack, "show", finished, "--selections")["selections"]
    chosen = answer(stack, "data", "show", "--run", finished, "--trigger", "0")
    assert len(chosen) == len({row["key"] for row in chosen}) == summary["num_chosen"]
    assert all(row["weight"] == 1.0 and row["path"] for row in chosen)
    lines = stack.modyn("data", "show", "--run", finished, "--trigger", "0", "--limit", "3").stdout.strip().splitlines()
    assert lines[0].split("\t")[:5] == ["key", "weight", "timestamp", "label", "path"]
    assert [int(line.split("\t")[0]) for line in lines[1:]] == [row["key"] for row in chosen[:3]]
    assert stack.modyn("data", "show", "--run", finished, "--trigger", "99").returncode == 1
    for wrong in (("--run", finished), ("cli", "--run", finished, "--trigger", "0"), ()):
        assert stack.modyn("data", "show", *wrong).returncode == 2


@pytest.mark.slow
def test_a_run_is_removed_with_all_that_it_left(stack: RunningStack, finished: str) -> None:
    done = stack.modyn("run", stack.pipeline_file("cli", evaluation=tiny_evaluation("cli")), "--tag", "throwaway")
    run_id = done.stderr.split()[1]
    assert [run["run_id"] for run in answer(stack, "ps", "--tag", "throwaway")] == [run_id]
    assert answer(stack, "show", run_id, "--checks") == []
    first, *_ = answer(stack, "models", "ls", run_id)
    assert stack.modyn("models", "rm", first["version"]["model_id"], "--yes").returncode == 0
    assert len(answer(stack, "models", "ls", run_id)) == 1
    assert list(stack.config.state_dir.rglob(f"*{run_id}*")), "files of its trainings"
    removed = stack.modyn("rm", run_id, "--yes")
    assert (removed.returncode, removed.stderr) == (0, f"removed {run_id}\n")
    assert answer(stack, "ps", "--tag", "throwaway") == answer(stack, "models", "ls", run_id) == []
    assert not list(stack.config.state_dir.rglob(f"*{run_id}*"))
    assert stack.modyn("rm", run_id, "--yes").returncode == 1
    assert state_of(stack, finished) == "finished"
