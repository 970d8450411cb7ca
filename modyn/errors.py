"""The tree of errors. A server converts an error to a gRPC status, and a client converts the status back to the same class.

Every message names what is wrong, where, and what to do. `reason` is the machine-readable name that is sent with the status.
"""

from __future__ import annotations

from typing import ClassVar


class ModynError(Exception):
    """Root of all errors that Modyn raises deliberately. `str(error)` is written for the user."""

    reason: ClassVar[str] = "INTERNAL"

    sample_key: int | None = None
    """Key of the sample that caused the error; known only in the process that read the sample. None: no single sample caused it."""

    def __init__(self, message: str, sample_key: int | None = None) -> None:
        """Args: sample_key: key of the sample that caused the error; None: no single sample caused it."""
        super().__init__(message)
        self.message = message
        self.sample_key = sample_key


class ConfigError(ModynError):
    """A configuration value is wrong. The message names the YAML path, the value, what is allowed and the nearest valid name."""

    reason = "CONFIG"


class InvalidArgumentError(ModynError):
    """The arguments of a call are invalid in every state of the system."""

    reason = "INVALID_ARGUMENT"


class NotFoundError(ModynError):
    """A named object does not exist: a dataset, a key, a run, a model version."""

    reason = "NOT_FOUND"


class AlreadyExistsError(ModynError):
    """An object with this name exists and differs from the requested object."""

    reason = "ALREADY_EXISTS"


class ConflictError(ModynError):
    """The state of the system does not allow the call: a gap in a stream, a finished run, a version that other versions depend on."""

    reason = "CONFLICT"


class UnavailableError(ModynError):
    """A service, database or disk cannot be reached. A later attempt may succeed."""

    reason = "UNAVAILABLE"


class DeadlineError(UnavailableError):
    """A call did not answer within its deadline."""

    reason = "DEADLINE"


class OverloadedError(UnavailableError):
    """A queue is full, so the call was refused immediately. An attempt a little later may succeed."""

    reason = "OVERLOADED"


class StreamExpiredError(DeadlineError):
    """A stream reached its deadline after the server had accepted it. Clients that follow the stream open it again."""

    reason = "STREAM_EXPIRED"


class CancelledError(ModynError):
    """The work was stopped on request."""

    reason = "CANCELLED"


class DataError(ModynError):
    """The user's data differs from its declaration. The message names file and offset, or sample key."""

    reason = "DATA"


class UserCodeError(ModynError):
    """A function of the user raised an exception. The message names the function, the sample key and the line."""

    reason = "USER_CODE"


class TrainingError(ModynError):
    """A training failed. The message names run, trigger, worker and the path of the log."""

    reason = "TRAINING"


class WorkerDiedError(ModynError):
    """A worker process was killed or crashed during its work, for example because memory ran out. Another worker may succeed."""

    reason = "WORKER_DIED"


class CorruptStateError(ModynError):
    """A file that Modyn wrote does not match its header or checksum. The message names the file."""

    reason = "CORRUPT_STATE"


class SecurityError(ModynError):
    """A request or a configuration is refused for safety: no token, no TLS beyond loopback, a path outside the roots."""

    reason = "SECURITY"


def _tree(root: type[ModynError]) -> list[type[ModynError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


BY_REASON: dict[str, type[ModynError]] = {error.reason: error for error in _tree(ModynError)}
