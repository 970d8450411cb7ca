"""Access rights of calls. Each call needs a role, and the token of a call has a role.

The token of the system file has the role of an admin. Tokens of lower roles are derived from this token, so no user makes or distributes tokens of
lower roles. A process that runs user code gets a derived token, and the digests of the tokens that it accepts.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from typing import Final

from modyn.config.system import SystemConfig
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import ConfigError, SecurityError
from modyn.rpc.logs import get_logger
from modyn.rpc.security import version_of


class Role(IntEnum):
    """Rights of a token. Each role includes the rights of all lower roles."""

    READER = 1
    """Read samples, keys, models, results and states, as evaluation workers do."""
    WORKER = 2
    """Store a trained model and the scores of its samples, as training workers do."""
    WRITER = 3
    """Register datasets and runs, start and stop work."""
    ADMIN = 4
    """Delete data."""


NEEDED: Final[dict[str, Role]] = {
    f"/{service}/{call}": role
    for service, calls in {
        "grpc.health.v1.Health": {Role.READER: "Check Watch"},
        "grpc.reflection.v1alpha.ServerReflection": {Role.READER: "ServerReflectionInfo"},
        "inference.GRPCInferenceService": {
            Role.READER: "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer"
        },
        "modyn.Storage": {
            Role.READER: "ListPlugins ListDatasets GetDataset ListProblems CountSamples SamplesInInterval NewSamples NewLabels SamplesByKey "
            "LocateSamples DeletedKeys OfferShortCut CheckColumn ListColumns ColumnValues",
            Role.WRITER: "RegisterDataset ChangeDataset Ingest ScrubDataset AppendRecords SetLabels",
            Role.ADMIN: "DeleteDataset DeleteSamples ForgetFile RebuildDataset",
        },
        "modyn.Selector": {
            Role.READER: "ListPlugins GetRun GetSamples GetTriggerSet GetKeys GetSelectionSummary ListFeedback GetFeedback",
            Role.WORKER: "PutFeedback",
            Role.WRITER: "ValidateSection RegisterRun Inform InformLabels Trigger",
            Role.ADMIN: "DeleteRun",
        },
        "modyn.ModelStorage": {
            Role.READER: "ListPlugins Get GetOptimizers Describe Find List Current Promotions",
            Role.WORKER: "Put",
            Role.WRITER: "ValidateSection Promote RefusePromotion Rollback",
            Role.ADMIN: "Delete",
        },
        "modyn.TrainerServer": {
            Role.READER: "ListPlugins Watch",
            Role.WRITER: "ValidateSection Start Stop",
            Role.ADMIN: "DeleteRun",
        },
        "modyn.Evaluator": {
            Role.READER: "ListPlugins Watch Results",
            Role.WRITER: "ValidateSection Start Stop Measure MeasureDrift",
            Role.ADMIN: "DeleteRun",
        },
        "modyn.Supervisor": {
            Role.READER: "ListPlugins ListRuns GetRun GetEvaluation ListEvaluations Watch ListTriggers ListChecks "
            "GetServing ListServed",
            Role.WRITER: "Validate Submit StopRun ResumeRun FinishRun EvaluateRun CancelEvaluation ReportLoad",
            Role.ADMIN: "RemoveRun RemoveModel TellOfDeletion",
        },
    }.items()
    for role, names in calls.items()
    for call in names.split()
}
"""Role that each gRPC method needs. A method that is not listed needs an admin. Payloads over Flight need a reader."""


def derived_token(secret: str, role: Role) -> str:
    """Derive the token of `role` from the admin's token `secret`: the HMAC-SHA256 of a text such as `modyn reader`, in hexadecimal."""
    if role is Role.ADMIN:
        return secret
    return hmac.new(secret.encode(), f"modyn {role.name.lower()}".encode(), hashlib.sha256).hexdigest()


def digest(token: str) -> str:
    """Return the SHA-256 of a token, in the form that `security.accepted_file` contains."""
    return hashlib.sha256(token.encode()).hexdigest()


class AccessTokens:
    """Tokens that a server accepts. After a change of the token file, the file is read again. Thread-safe.

    Raises: ConfigError: the file cannot be read, or has wrong content. A later error is logged, and the last good content stays in use.
    """

    def __init__(self, security: SecurityConfig) -> None:
        self._security = security
        self._file = security.accepted_file or security.token_file
        # Version of the file, and the role of each digest. The tuple is replaced as a whole, so that readers need no lock.
        self._read = (self._version(), _accepted(security))

    @property
    def required(self) -> bool:
        """Whether a call needs a token."""
        return bool(self._read[1])

    def role(self, presented: str | bytes | None) -> Role | None:
        """Return the role of a presented text `Bearer TOKEN`; None: the token is not accepted."""
        given = presented.decode(errors="replace") if isinstance(presented, bytes) else presented or ""
        scheme, _, token = given.partition(" ")
        # The lookup is by digest, so that its time reveals nothing about a token.
        return self._roles().get(digest(token)) if scheme == "Bearer" else None

    def check(self, presented: str | bytes | None, needed: Role, what: str) -> None:
        """Raise SecurityError unless `presented` has the role `needed`.

        Args: presented: token of the call; None: the call has no token. what: name of the call in the error.
        """
        if not self.required:
            return
        role = self.role(presented)
        if role is None:
            raise SecurityError("the call carries no valid token; set security.token as in the service's system file")
        if role < needed:
            raise SecurityError(
                f"{what} needs the role {needed.name.lower()}, and the token that came with the call is one of a {role.name.lower()}"
            )

    def _roles(self) -> dict[str, Role]:
        version = self._version()
        if version != self._read[0]:
            try:
                self._read = (version, _accepted(self._security))
            except ConfigError as error:
                get_logger("access").warning("tokens_not_read_again", error=error.message)
                self._read = (version, self._read[1])
        return self._read[1]

    def _version(self) -> tuple[tuple[int, ...], ...]:
        return () if self._file is None else version_of(self._file)


def _accepted(security: SecurityConfig) -> dict[str, Role]:
    """Return the roles of all accepted tokens by their digests; empty only if no token is configured."""
    if security.accepted_file is None:
        return {digest(derived_token(secret, role)): role for secret in security.secrets() for role in Role}
    accepted = {}
    for line in security.accepted_lines():
        name, _, hexdigits = line.partition(" ")
        if name.upper() not in Role.__members__ or len(hexdigits) != 64:
            raise ConfigError(
                f"security.accepted_file: {security.accepted_file} has a line that is not ROLE SHA256, with the role reader, worker, writer or admin"
            )
        accepted[hexdigits] = Role[name.upper()]
    if not accepted:  # an empty file must not switch off tokens: a file that is written in place is empty for a moment
        raise ConfigError(
            f"security.accepted_file: {security.accepted_file} names no token, so that no call could be accepted; write a line ROLE SHA256 "
            "for each token into a new file, and rename it to this one"
        )
    return accepted


def for_workers(config: SystemConfig, role: Role) -> SystemConfig:
    """Return the configuration for worker processes: without databases, and with a token of the role `role`.

    The copy has no private key, unless clients need one. If this process has a lower role, the token has this lower role. Raises ConfigError: a token
    file cannot be read.
    """
    security = config.security
    secret = security.secret()
    if secret is not None and (security.accepted_file is None or _accepted(security).get(digest(secret)) is Role.ADMIN):
        secret = derived_token(secret, role)
    limited = SecurityConfig(tls_ca=security.tls_ca or security.tls_cert, token=secret)
    if security.client_ca is not None:  # services then refuse connections without a client certificate
        shown = {"tls_cert": security.tls_cert, "tls_key": security.tls_key, "client_ca": security.client_ca}
        limited = limited.model_copy(update=shown)
    return config.without_databases().model_copy(update={"security": limited})
