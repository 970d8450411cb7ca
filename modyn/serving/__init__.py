"""Predictions over model versions by the Open Inference Protocol, version 2. Bottom up: `signature`, `batch_queue`, `batcher`, `routing`,
`versions`, `model_server`; then `tensors` and `http_app`, `grpc_service`; then `torch_predictor`, `promoted` and `process`."""
