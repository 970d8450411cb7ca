"""`docs/datasets.md`: how data is registered, and every file format with its options, generated from the configuration classes."""

from __future__ import annotations

from modyn.config.system import DatasetConfig
from modyn.reference.explain import tables
from modyn.reference.schema import of_model, one_of, policies
from modyn.storage.formats import REGISTRY

_HEAD = """\
# Datasets

The tables are made from the configuration classes by `python -m modyn.reference.schema --datasets`; edit these, not this file.

A dataset is a folder of files, a format that says how samples are cut from them, and where a sample's time stands. Storage indexes the
files (key, label, timestamp, place of the payload) and reads payloads from them when they are asked for. It never writes to them.

## Register
From the terminal, from Python, or in the system file, where storage registers it when it starts:

```
modyn data register photos /data/photos -o file_extension=.jpg -o label_file_extension=.label
modyn data register clicks /data/clicks --format CsvFileWrapper -o label_index=0 --timestamp-source column:1
```

```python
client.register_dataset(
    DatasetConfig(
        name="clicks",
        base_path="/data/clicks",
        file_wrapper="CsvFileWrapper",
        file_wrapper_config={"label_index": 0},
        timestamp_source="column:1",
    )
)
client.ingest("clicks")
```

```yaml
storage:
  datasets:
    - name: clicks
      base_path: /data/clicks
      file_wrapper: CsvFileWrapper
      file_wrapper_config: {label_index: 0}
      timestamp_source: column:1
```

Repeating a registration changes nothing; one with other options is refused: delete the dataset first, or take another name.
`DatasetConfig` is in `modyn.config.system`.

"""
_PLACES = """\
## Where the files lie
`base_path` is a folder of the machine that storage runs on, searched with all folders in it, or a prefix of a bucket. Symbolic links are
followed where they stay under `storage.dataset_roots`. A folder is looked into once, however many links lead to it; a link to a file is a
file of its own, and beside the file that it points to, every sample is there twice.

```yaml
base_path: s3://bucket/prefix?region=eu-central-1
base_path: s3://bucket/prefix?endpoint_override=minio.example.org:9000&scheme=https
```

| option | meaning |
|---|---|
| `region` | of the bucket; default: what the environment or the profile says |
| `endpoint_override` | host:port of a server that speaks S3, in place of Amazon's |
| `scheme` | `https` (the default) or `http` |
| `anonymous` | `true`: ask without credentials, for public buckets |

Credentials are those of storage's own process: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, a profile, or the machine's role. A URL
that holds some is refused: it is kept and shown.

All formats are read from buckets. An object is copied to a temporary folder (`TMPDIR`) once, when it is indexed; of single-sample files
only the labels are. Room for twice `storage.num_threads` of the largest objects is enough; an object for which there is none is listed
among the problems and tried again. What a killed process left there goes when the next one copies something. Payloads are read by ranges,
neighbours with one request, several requests at once. Objects that are rewritten, grow or vanish are noticed by size and time, whole
seconds in S3, when the bucket is listed and when they are opened to be read; one that stays open for reading, or a Parquet object, not
before the next listing. Each look of a watched dataset lists the whole prefix: `--no-watch`, or a longer `storage.poll_interval_s`, asks
less of large buckets. Trainers read buckets through storage and never directly: there is no short cut. With `storage.dataset_roots`,
buckets are listed there like folders, with the options of their URLs.

"""
_TIMES = """\
## Where a sample's time stands
Timestamps are seconds since 1970; a time without a zone is UTC. `timestamp_source` takes one of these forms:

| `timestamp_source` | a sample's time is | formats |
|---|---|---|
| `''` (the default) | the modification time of its file | all |
| `name:REGEX` | group 1 of REGEX, searched in the file's name: whole seconds if it is all digits, else ISO 8601. \
The group `(?P<date>...)` is always read as ISO 8601. \
Example: `name:(?P<date>\\d{4}-\\d\\d-\\d\\d)` | all |
| `column:N` | column N of its row, from 0: whole seconds or ISO 8601 | `CsvFileWrapper` |
| `column:NAME` | the column of this name: whole seconds, ISO 8601, a date or a timestamp | `ParquetFileWrapper` |
| `field:OFFSET` or `field:OFFSET:SIZE` | the signed integer of SIZE bytes (1 to 8; 8 unless given) \
at byte OFFSET of its record, in the record's byte order | `BinaryFileWrapper` |
| `field:NAME` or `field:OUTER.INNER` | the field of this name, or of an inner object: whole seconds or ISO 8601 \
| `JsonLinesFileWrapper`; `TarFileWrapper` with `label_field` |

## File formats
Packages of yours add formats through the entry-point group `modyn.file_formats` ([`plugins.md`](plugins.md)). With `modyn data register`
the format is `--format`, and each option is one `-o NAME=VALUE`.

"""
_TAIL = """\
## Watching
With `watch` (the default; `--no-watch` turns it off) storage looks at the folder every `storage.poll_interval_s` seconds and indexes what
is new: a production run sees it at once. A file is taken when it has not changed for `storage.settle_s` seconds; one whose label file is
missing waits for it, and is listed among the problems after some seconds. A file that changes while it is indexed is left to the next look.
A label file is read once, with its sample: a label that is corrected later changes nothing; delete the dataset and register it again, or
give sample and label under another name and delete the old key. Rows and records that are appended to a file are indexed as new
samples. Without `watch`, `modyn data ingest NAME` indexes what is new; both may be done at any time, and every sample is indexed exactly
once.

## Problems
A file that cannot be used (cut, not readable, a label that is no finite number, a name without a time) is set aside and disturbs no other.
`modyn data problems NAME`, or `client.problems(name)`, lists these files and why; correct the file and it is looked at again. One that could
not be read at all (no permission, too many open files, a disk out of order, a format that failed) is tried again by itself, after pauses of
up to five minutes. `modyn data ingest NAME` tries all that were set aside. A file that was indexed must keep its bytes: one that was cut,
rewritten or removed is listed there as well. When all of them are gone, the folder is listed, once: most likely it is not mounted.

Every read compares size and time of the file with those at indexing. Samples of a file that was replaced, written again
or touched since are refused with an error, until storage has looked at it again: with the next look at a watched folder, or with
`modyn data ingest NAME`. Only of CSV, JSON Lines and binary files that became longer is this not known before that look: they may have been
appended to, which does no harm, and one that was replaced by a longer file is read at the old places until then. That a touched file is
unchanged is decided by its first and last 64 KiB and 64 blocks of 4 KiB between, all of it up to 384 KiB: a rewrite that keeps the size
and all of these is taken for a touch. Of files of one sample nothing is kept but size and time: one with another time is refused until the
file is put back with the time that it had (`cp -p`). A rewrite that keeps size and time is not noticed.

## Deletion
`modyn data delete NAME --key KEY` deletes single samples for good: they leave every later stream, count, training and evaluation, and
their keys are not used again. The keys of samples that cannot be read are named in the errors of requests for them.
`modyn data delete NAME` forgets the dataset and its index. The files themselves are never touched.
"""


def dataset_reference() -> str:
    """The whole document as Markdown, without plug-ins."""
    lines = ["## Fields", "", *tables(of_model(DatasetConfig), "###", "")]
    formats = list(tables(one_of(policies(REGISTRY, plugins=False), "file_wrapper"), "###", "file_wrapper_config"))
    return _HEAD + "\n".join(lines) + "\n" + _PLACES + _TIMES + "\n".join(formats) + "\n" + _TAIL
