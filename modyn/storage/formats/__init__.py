"""File formats, by the id that a dataset gives as its `file_wrapper`."""

from __future__ import annotations

from collections.abc import Mapping

from modyn.config.base import load_section
from modyn.config.system_sections.buckets import RECORD_LOG
from modyn.registry import Registry
from modyn.storage.formats.base import FileFormat

FILE_FORMATS: dict[str, str] = {
    "image_folder": "modyn.storage.formats.image_folder:ImageFolderFormat",
    "SingleSampleFileWrapper": "modyn.storage.formats.single_sample:SingleSampleFormat",
    "BinaryFileWrapper": "modyn.storage.formats.binary:BinaryFormat",
    "CsvFileWrapper": "modyn.storage.formats.csv:CsvFormat",
    "JsonLinesFileWrapper": "modyn.storage.formats.json_lines:JsonLinesFormat",
    "ParquetFileWrapper": "modyn.storage.formats.parquet:ParquetFormat",
    "TarFileWrapper": "modyn.storage.formats.tar:TarFormat",
}

REGISTRY: Registry[type[FileFormat]] = Registry("modyn.file_formats", "file format", FILE_FORMATS)


def build_format(id_: str, config: Mapping[str, object], timestamp_source: str = "") -> FileFormat:
    """Build the format `id_` from the `file_wrapper_config` and `timestamp_source` of a dataset.

    Args: config: options of the format, checked here.
    Raises: ConfigError.
    """
    if id_ == RECORD_LOG:  # Only storage writes such files, so the format is in no list to choose from.
        from modyn.storage.formats.record_file import RecordLogFormat

        return RecordLogFormat(load_section(RecordLogFormat.Config, config, "file_wrapper_config"), timestamp_source)
    found = REGISTRY.get(id_)
    built = found(load_section(found.Config, config, "file_wrapper_config"), timestamp_source)
    built.names()  # Raises an error if an ending is invalid, also for formats of plug-ins.
    return built
