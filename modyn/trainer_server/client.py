"""Typed client of the trainer server. Other packages import the records of trainings from this module. Imports no torch."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from modyn.config.base import Problem
from modyn.proto import common_pb2, trainer_server_pb2, trainer_server_pb2_grpc
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_message, to_message, to_struct
from modyn.trainer_server.request.records import TrainingJob, TrainingRequest, TrainingStatus
from modyn.trainer_server.result import NO_RESULT, DownsamplingResult, ErrorRow, TrainingResult, mean_error

__all__ = [
    "NO_RESULT",
    "DownsamplingResult",
    "ErrorRow",
    "TrainerServerClient",
    "TrainingJob",
    "TrainingRequest",
    "TrainingResult",
    "TrainingStatus",
    "mean_error",
]


class TrainerServerClient(SectionClient):
    """Client of the trainer server, which uses the sections model, training, data and selection_strategy.downsampling_config."""

    _Stub = trainer_server_pb2_grpc.TrainerServerStub

    def validate(self, pipeline: Mapping[str, Any], scores: Sequence[str] = ()) -> list[Problem]:
        """List the errors in a pipeline's sections for the trainer server.

        Args: scores: names of the scores that the selection requests from trainings (`SelectorClient.asked_scores`).
        """
        reply = self._stub.ValidateSection(common_pb2.SectionRequest(pipeline=to_struct(pipeline), scores=scores))
        return [from_message(problem, Problem) for problem in reply.problems]

    def start(self, request: TrainingRequest) -> TrainingStatus:
        """Start the training of a run and trigger, or find this training if it exists.

        A running training continues. A training with a stored model is finished. A failed or stopped training is tried again.
        Raises: ConfigError: the pipeline is not valid.
        """
        return from_message(self._stub.Start(to_message(request, trainer_server_pb2.TrainingRequest)), TrainingStatus)

    def watch(self, run_id: str, trigger_id: int) -> Generator[TrainingStatus, None, None]:
        """Yield the current status of the training of trigger `trigger_id`, then each change (at most a few per second), and finally the last status.

        Raises: NotFoundError: this process of the service has not started the training.
        """
        for status in self._stub.Watch(trainer_server_pb2.TrainingId(run_id=run_id, trigger_id=trigger_id)):
            yield from_message(status, TrainingStatus)

    def stop(self, run_id: str, trigger_id: int) -> None:
        """Ask a trigger's training to stop, without waiting. The training ends as STOPPED, with a checkpoint if checkpoints are activated. Raises:
        NotFoundError.
        """
        self._stub.Stop(trainer_server_pb2.TrainingId(run_id=run_id, trigger_id=trigger_id))

    def delete_run(self, run_id: str) -> None:
        """End the trainings of a run, and remove the run's logs, checkpoints, finished trainings and states of optimizers. The call may be repeated.

        Raises: UnavailableError: a training does not end.
        """
        self._stub.DeleteRun(trainer_server_pb2.TrainedRun(run_id=run_id))
