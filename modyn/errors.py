"""The tree of errors. A server converts one to a gRPC status, a client converts the status back to the same class.

Every message names what is wrong, where, and what to do. `reason` is the machine-readable name that travels with the status.
"""

from __future__ import annotations

from typing import ClassVar


class ModynError(Exception):
    """Root of all errors that Modyn raises deliberately. `str(error)` is written for the user."""

    reason: ClassVar[str] = "INTERNAL"

    sample_key: int | None = None
    """The sample that the error is about, where it is one; known only in the process that read it."""

    def __init__(self, message: str, sample_key: int | None = None) -> None:
        """Args: sample_key: of the sample that the error is about; None: it is about none, or about more than one."""
        super().__init__(message)
        self.message = message
        self.sample_key = sample_key


class ConfigError(ModynError):
    """A configuration value is wrong. The message names the YAML path, the value, what is allowed and the nearest valid name."""

    reason = "CONFIG"


class InvalidArgumentError(ModynError):
    """The arguments of a call are invalid, whatever the state of the system."""

    reason = "INVALID_ARGUMENT"


class NotFoundError(ModynError):
    """A named object does not exist: a dataset, a key, a run, a model version."""

    reason = "NOT_FOUND"


class AlreadyExistsError(ModynError):
    """An object with this name exists and differs from the requested one."""

    reason = "ALREADY_EXISTS"


class ConflictError(ModynError):
    """The state of the system does not allow the call: a gap in a stream, a finished run, a version that others depend on."""

    reason = "CONFLICT"


class UnavailableError(ModynError):
    """A service, database or disk cannot be reached. Trying again later may help."""

    reason = "UNAVAILABLE"


class DeadlineError(UnavailableError):
    """A call did not answer within its deadline."""

    reason = "DEADLINE"


class OverloadedError(UnavailableError):
    """A queue is full, so that the call was refused at once. Trying again a little later may help."""

    reason = "OVERLOADED"


class StreamExpiredError(DeadlineError):
    """A stream that its server had accepted has lasted until its deadline. Its followers open it again."""

    reason = "STREAM_EXPIRED"


class CancelledError(ModynError):
    """The work was stopped on request."""

    reason = "CANCELLED"


class DataError(ModynError):
    """The user's data differs from its declaration. The message names file and offset, or sample key."""

    reason = "DATA"


class UserCodeError(ModynError):
    """A function of the user raised. The message names the function, the sample key and the line."""

    reason = "USER_CODE"


class TrainingError(ModynError):
    """A training failed. The message names run, trigger, worker and the path of the log."""

    reason = "TRAINING"


class WorkerDiedError(ModynError):
    """A worker process was killed or crashed in the middle of its work, which may succeed in another one: memory ran out, say."""

    reason = "WORKER_DIED"


class CorruptStateError(ModynError):
    """A file that Modyn wrote does not match its header or checksum. The message names the file."""

    reason = "CORRUPT_STATE"


class SecurityError(ModynError):
    """A request or a configuration is refused for safety: no token, no TLS off loopback, a path outside the roots."""

    reason = "SECURITY"


def _tree(root: type[ModynError]) -> list[type[ModynError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


BY_REASON: dict[str, type[ModynError]] = {error.reason: error for error in _tree(ModynError)}
