"""Calibration: what the kernels that lowering can force cost on this machine.

Takes a number of threads and repetitions. Gives figures for a target file: the table of matrix kernels, the peak, the
memory's bandwidth, the time of one node, of one request and of a transposition. Promises: f32 is forced; each process
sees every kernel in turn, so that a slow spell hits all forms alike; weights are not in the cache where they would not
be in a model; of several fresh processes the median is taken, since where a buffer lies differs from one to the next.
Not here: where the figures are kept (``targets.host``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from forge_eq.errors import RunError
from forge_eq.lower.pack import GROUP
from forge_eq.ops.linalg import left
from forge_eq.run.openvino_builder import PRECISION, load_openvino
from forge_eq.run.openvino_cpu import CpuBuilder
from forge_eq.targets.kernels import FORMS

SHAPES = ((512, 512), (512, 2048), (768, 3072), (3072, 768), (896, 4864), (2048, 2048), (2048, 8192), (8192, 2048))
TOKENS = (1, 16, 128, 512)  # of each weight k x n above
REPEATS = {1: 9, 16: 7, 128: 4, 512: 2}
COLD = 1 << 25  # weights that one request streams, in elements: what a few layers have, more than a core's caches
SHORT = 1 << 22  # the same where arithmetic hides the traffic
SIDE = (1, 128, 2048)  # the value that everything but products is measured on
LARGE = (1, 16384, 128)  # what no cache of a core holds, as the results of a large last layer
PROCESSES = 3
TIMEOUT = 600  # seconds for one process; 20 on a quiet core


def calibrate(threads: int = 1, processes: int = PROCESSES, on_process: Callable[[int], None] | None = None) -> Any:
    """Measures in ``processes`` fresh processes, one after the other; about 20 s each on a quiet core.

    Raises:
        RunError: openvino is missing, or a process fails.
    """
    load_openvino()
    found = []
    for number in range(processes):
        if on_process is not None:
            on_process(number)
        found.append(_in_fresh_process(threads))
    return merge(found)


def _in_fresh_process(threads: int) -> Any:
    command = [sys.executable, "-m", "forge_eq.run.calibrate", str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        return json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as e:
        detail = str(getattr(e, "stderr", "") or e).strip().splitlines()[-1:]
        raise RunError("calibrate", "process", f"failed: {' '.join(detail)}", "try again on a quiet machine") from e


def merge(found: Sequence[Any]) -> Any:
    """The median of each figure over the processes."""
    first = found[0]
    if isinstance(first, dict):
        return {k: merge([f[k] for f in found]) for k in first}
    if isinstance(first, list):
        return [merge(parts) for parts in zip(*found, strict=True)]
    return first if all(f == first for f in found) else median(found)  # sizes are equal, and stay whole numbers


# ------------------------------------------------------------------------------------------ in one process


class _Bench:
    """Builds small models over one pool of weights and times them."""

    def __init__(self, threads: int) -> None:
        import numpy as np

        self.ov, self.np, self.threads = load_openvino(), np, threads
        self.o = self.ov.opset16
        self.core = self.ov.Core()
        self.clock = time.process_time if threads == 1 else time.perf_counter
        self.config = {**PRECISION, "INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1"}
        self.pool = np.random.default_rng(0).standard_normal(COLD + max(k * n for k, n in SHAPES), dtype=np.float32)
        self.pool *= 0.02

    def weight(self, start: int, *shape: int) -> Any:
        size = int(self.np.prod(shape))
        view = self.pool[start : start + size].reshape(shape)
        return self.o.constant(self.ov.Tensor(view, shared_memory=True), shared_memory=True)

    def packed(self, start: int, n: int, k: int) -> tuple[Any, Any]:
        """The same size in i8 with a scale for each group, the pool's bytes as integers."""
        whole = self.pool.view(self.np.int8)[start : start + n * k].reshape(n, k)
        integers = self.o.constant(self.ov.Tensor(whole, shared_memory=True), shared_memory=True)
        return integers, self.o.constant(self.np.full((n, k // GROUP), 1e-3, self.np.float32))

    def request(self, results: Sequence[Any], parameters: Sequence[Any]) -> Any:
        compiled = self.core.compile_model(self.ov.Model(list(results), list(parameters), "c"), "CPU", self.config)
        made = compiled.create_infer_request()
        for index, port in enumerate(compiled.inputs):
            made.set_input_tensor(index, self.ov.Tensor(self.np.full(list(port.shape), 0.01, self.np.float32)))
        made.infer()
        return made

    def layers(self, form: str, k: int, n: int, tokens: int, copies: int) -> Any:
        """``copies`` layers over one input, each with its own weight and result."""
        stored = form == "left"
        x = self.o.parameter([1, k, tokens] if stored else [1, tokens, k], self.np.float32)
        g, results = CpuBuilder(self.threads), []
        for i in range(copies):
            if form == "packed":
                y = g.matmul_packed(x, *self.packed(i * k * n, n, k))
            else:
                w = self.weight(i * k * n, n, k)
                y = left(g, stored, x, w, True) if stored else g.matmul(x, w, False, True)
            results.append(self.o.swish(y) if form == "act" else y)
        return self.request(results, [x])

    def chain(self, shape: Sequence[int], step: Callable[[Any], Any], count: int) -> Any:
        x = node = self.o.parameter(list(shape), self.np.float32)
        for _ in range(count):
            node = step(node)
        return self.request([node], [x])

    def time(self, requests: Sequence[Any], repeats: int) -> list[float]:
        """Median microseconds of each request, in turn.

        On one thread the processor's time counts: it equals the latency on a quiet core, and on a busy one it is what
        the other users disturb least.
        """
        times: list[list[float]] = [[] for _ in requests]
        for _ in range(repeats):
            for one, made in zip(requests, times, strict=True):
                start = self.clock()
                one.infer()
                made.append((self.clock() - start) * 1e6)
        return [median(t) for t in times]


def measure(threads: int) -> dict[str, Any]:
    """All figures, in this process."""
    bench = _Bench(threads)
    table: dict[str, Any] = {"tokens": list(TOKENS), **{form: [[k, n] for k, n in SHAPES] for form in FORMS}}
    peak = bandwidth = 0.0
    for row, (k, n) in enumerate(SHAPES):
        for tokens in TOKENS:
            copies = max(1, (COLD if tokens < 64 else SHORT) // (k * n))
            times = bench.time([bench.layers(f, k, n, tokens, copies) for f in FORMS], REPEATS[tokens])
            for form, us in zip(FORMS, times, strict=True):
                table[form][row].append(us / copies)
                peak = max(peak, 2e-3 * k * n * tokens * copies / us)
                if form != "packed":
                    bandwidth = max(bandwidth, 4e-3 * k * n * copies / us)
    rates = {"peak_gflops": peak, "bandwidth_gbps": bandwidth}
    return {**rates, **small(bench, bandwidth), "kernels": table}


def small(bench: _Bench, bandwidth: float) -> dict[str, Any]:
    """Nodes, requests, and how far norms and transpositions are from the roofline; ``bandwidth`` in 1e9 bytes/s."""
    o, np = bench.o, bench.np
    swap, last = o.constant(np.array([0, 2, 1])), o.constant(np.array([2]))
    one, eps = np.float32(1.0), np.float32(1e-6)
    gain = bench.weight(0, SIDE[-1])

    def norm(x: Any) -> Any:
        mean = o.reduce_mean(o.power(x, np.float32(2.0)), last, True)
        return o.multiply(o.multiply(x, o.divide(one, o.sqrt(o.add(mean, eps)))), gain)

    steps: list[tuple[tuple[int, ...], Callable[[Any], Any], int]] = [
        ((1, 16, 64), lambda x: o.softmax(x, 1), 1),
        ((1, 16, 64), lambda x: o.softmax(x, 1), 101),
        (SIDE, norm, 1),
        (SIDE, norm, 11),
        (SIDE, lambda x: o.softmax(x, 2), 1),
        (SIDE, lambda x: o.softmax(o.transpose(x, swap), 2), 1),
        (LARGE, lambda x: o.negative(x), 1),
        (LARGE, lambda x: o.negative(o.transpose(x, swap)), 1),
    ]
    few, many, norm_few, norm_many, plain, moved, large, far = bench.time(
        [bench.chain(shape, step, count) for shape, step, count in steps], 20
    )
    launch = max((many - few) / 100, 0.1)
    ideal = launch + 2 * 4 * SIDE[1] * SIDE[2] / (bandwidth * 1e3)
    weights = {"movement": (moved - plain) / ideal, "norm": (norm_many - norm_few) / 10 / ideal}
    bounded = {k: min(max(w, 0.1), 10.0) for k, w in weights.items()}
    reorder = 2e-3 * 4 * LARGE[1] * LARGE[2] / max(far - large, launch)
    return {
        "launch_us": launch,
        "transfer_us": max(few - launch, 1.0),
        "reorder_gbps": min(reorder, bandwidth),
        "weights": bounded,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
