"""The tree of errors. A server turns one into a gRPC status once, a client turns the status back into the same class once.

Every message names what is wrong, where, and what to do. `reason` is the machine-readable name that travels with the status.
"""

from __future__ import annotations

from typing import ClassVar


class ModynError(Exception):
    """Root of everything Modyn raises on purpose. `str(error)` is meant for the user."""

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(ModynError):
    """A configuration value is wrong. The message names the YAML path, the value, what is allowed and the nearest valid name."""

    reason = "CONFIG"


class InvalidArgumentError(ModynError):
    """A call was made with arguments that cannot be served, whatever the state of the system."""

    reason = "INVALID_ARGUMENT"


class NotFoundError(ModynError):
    """Something that was named does not exist: a dataset, a key, a run, a model version."""

    reason = "NOT_FOUND"


class AlreadyExistsError(ModynError):
    """Something with this name exists already and is different from what was asked for."""

    reason = "ALREADY_EXISTS"


class ConflictError(ModynError):
    """The state of the system does not allow this now: a gap in a stream, a run that is finished, a version others depend on."""

    reason = "CONFLICT"


class UnavailableError(ModynError):
    """A service, database or disk cannot be reached. Trying again later may help."""

    reason = "UNAVAILABLE"


class DeadlineError(UnavailableError):
    """A call did not answer within its deadline."""

    reason = "DEADLINE"


class CancelledError(ModynError):
    """The work was stopped on request."""

    reason = "CANCELLED"


class DataError(ModynError):
    """The user's data is not what was declared. The message names file and offset, or sample key."""

    reason = "DATA"


class UserCodeError(ModynError):
    """A function of the user raised. The message names the function, the sample key and the line."""

    reason = "USER_CODE"


class TrainingError(ModynError):
    """A training failed. The message names run, trigger and worker, and says where the log is."""

    reason = "TRAINING"


class CorruptStateError(ModynError):
    """A file of ours does not have the content its header or checksum promises. The message names the file."""

    reason = "CORRUPT_STATE"


class SecurityError(ModynError):
    """A request or a configuration is refused for safety: no token, no TLS off loopback, a path outside the roots."""

    reason = "SECURITY"


def _tree(root: type[ModynError]) -> list[type[ModynError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


BY_REASON: dict[str, type[ModynError]] = {error.reason: error for error in _tree(ModynError)}
