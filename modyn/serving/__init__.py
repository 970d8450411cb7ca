"""Predictions over model versions by the Open Inference Protocol, version 2.

Bottom up: `signature`, `predictor`; `batch_queue`, `batcher`; `routing`, `versions`, `shadow`, `model_server`; `json_tensors`, `http_app`,
`http_server`, `grpc_service`; `observation_join`, `observations`; `torch_predictor`, `promoted`, `process`.
"""
