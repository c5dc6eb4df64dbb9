"""Measured side by side with what people run today: eager, torch.compile, OpenVINO, ONNX Runtime.

Takes models, cases (tokens, or one decode step over a cache) and backends. Gives tables of set-up, latency, tail,
memory and difference, with intervals. Promises: one precision, the same threads, a fresh process per backend,
backends in turn, our own program twice so that the noise is known; a failure is a row. Not here: what should be
measured of the compiler alone (``bench/`` of the repository).
"""
