"""The ways to keep a cache of keys and values that ``decode_cache`` compares: one attention layer, one new token.

Each way is a function of a :class:`Layer` that gives a step; a step gives the layer's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

WIDTHS = {"gpt2": (768, 12, 12, 64), "smollm2": (576, 9, 3, 64), "llama-1b": (2048, 32, 8, 64)}  # hidden, q, kv, size
FLOOR = "floor: nothing kept"


class Layer:
    """Weights and a cache of ``past`` rows, with room for one more, for all candidates."""

    def __init__(self, hidden: int, heads: int, groups: int, size: int, past: int, threads: int) -> None:
        import openvino as ov

        self.ov, self.op = ov, ov.opset16
        self.hidden, self.heads, self.groups, self.size, self.past = hidden, heads, groups, size, past
        self.threads, self.room, random = threads, past + 1, np.random.default_rng(0)
        wide, narrow = heads * size, groups * size

        def weight(rows: int, columns: int) -> Any:
            return (random.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)

        self.weights = [weight(wide, hidden), weight(narrow, hidden), weight(narrow, hidden), weight(hidden, wide)]
        self.x = random.standard_normal((1, hidden)).astype(np.float32)
        self.rows = [self.cache(), self.cache()]
        for cache in self.rows:
            cache[:, :, :past] = random.standard_normal((1, groups, past, size))
        self.place = np.array([past], dtype=np.int64)
        self.kept: list[Any] = []

    def cache(self) -> Any:
        return np.zeros((1, self.groups, self.room, self.size), dtype=np.float32)

    # ---------------------------------------------------------------------------------------------- graph parts

    def constant(self, values: Any) -> Any:
        return self.op.constant(np.asarray(values))

    def heads_of(self, x: Any, which: int, heads: int) -> Any:
        y = self.op.matmul(x, self.op.constant(self.weights[which], shared_memory=True), False, True)
        return self.op.reshape(y, self.constant(np.array([1, heads, 1, self.size])), False)

    def project(self, x: Any) -> tuple[Any, Any, Any]:
        return self.heads_of(x, 0, self.heads), self.heads_of(x, 1, self.groups), self.heads_of(x, 2, self.groups)

    def grouped(self, q: Any) -> Any:
        shape = np.array([1, self.groups, self.heads // self.groups, self.size])
        scale = np.float32(1 / math.sqrt(self.size))
        return self.op.multiply(self.op.reshape(q, self.constant(shape), False), self.constant(scale))

    def finish(self, mixed: Any) -> Any:
        flat = self.op.reshape(mixed, self.constant(np.array([1, self.heads * self.size])), False)
        return self.op.matmul(flat, self.op.constant(self.weights[3], shared_memory=True), False, True)

    def attend(self, q: Any, k: Any, v: Any, rows: int | None = None) -> Any:
        """Attention over the first ``rows`` rows, by a mask, or over all."""
        op = self.op
        scores = op.matmul(self.grouped(q), k, False, True)
        if rows is not None:
            seen = np.arange(self.room) < rows
            scores = op.select(self.constant(seen), scores, self.constant(np.float32(-math.inf)))
        return self.finish(op.matmul(op.softmax(scores, 3), v, False, False))

    def split(self, q: Any, old: tuple[Any, Any], new: tuple[Any, Any]) -> Any:
        """Attention over the cache and the new row without joining them: scores are joined, weights are split."""
        op, q = self.op, self.grouped(q)
        seen = self.constant(np.arange(self.room) < self.past)
        before = op.select(seen, op.matmul(q, old[0], False, True), self.constant(np.float32(-math.inf)))
        weights = op.softmax(op.concat([before, op.matmul(q, new[0], False, True)], 3), 3)
        parts = op.variadic_split(weights, self.constant(np.int64(3)), self.constant(np.array([self.room, 1])))
        mixed = [op.matmul(parts.output(i), v, False, False) for i, v in enumerate((old[1], new[1]))]
        return self.finish(op.add(*mixed))

    # ---------------------------------------------------------------------------------------------- running

    def parameter(self, shape: list[int], kind: Any = np.float32) -> Any:
        return self.op.parameter(shape, kind)

    def request(self, results: list[Any], parameters: list[Any], sinks: list[Any] | None = None) -> Any:
        made = [self.op.result(r) for r in results]
        model = self.ov.Model(made, sinks or [], parameters, "step")
        config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
        config |= {"INFERENCE_NUM_THREADS": str(self.threads), "KV_CACHE_PRECISION": "f32"}
        return self.ov.Core().compile_model(model, "CPU", config).create_infer_request()

    def tensor(self, array: Any) -> Any:
        self.kept.append(array)  # a shared tensor does not keep what it shares
        return self.ov.Tensor(array, shared_memory=True)

    def bind(self, request: Any, inputs: list[Any], outputs: list[Any]) -> None:
        for index, array in enumerate(inputs):
            request.set_input_tensor(index, self.tensor(array))
        for index, array in enumerate(outputs):
            request.set_output_tensor(index, self.tensor(array))

    def out(self) -> Any:
        return np.empty((1, self.hidden), dtype=np.float32)

    def row(self) -> Any:
        return np.empty((1, self.groups, 1, self.size), dtype=np.float32)


Step = Callable[[], Any]


def floor(layer: Layer) -> Step:
    """Reads the cache and a new row that no one keeps."""
    x, k, v = layer.parameter([1, layer.hidden]), *(layer.parameter(list(c.shape)) for c in layer.rows)
    q, new_k, new_v = layer.project(x)
    request = layer.request([layer.split(q, (k, v), (new_k, new_v))], [x, k, v])
    y = layer.out()
    layer.bind(request, [layer.x, *layer.rows], [y])
    return lambda: (request.infer(), y)[1]


def host_write(layer: Layer) -> Step:
    """Scores over old and new rows; the new rows leave the model and the host stores them."""
    x, k, v = layer.parameter([1, layer.hidden]), *(layer.parameter(list(c.shape)) for c in layer.rows)
    q, new_k, new_v = layer.project(x)
    request = layer.request([layer.split(q, (k, v), (new_k, new_v)), new_k, new_v], [x, k, v])
    y, rows, place = layer.out(), [layer.row(), layer.row()], layer.past
    layer.bind(request, [layer.x, *layer.rows], [y, *rows])

    def step() -> Any:
        request.infer()
        for cache, row in zip(layer.rows, rows, strict=True):
            cache[:, :, place : place + 1] = row
        return y

    return step


def bound_output(layer: Layer) -> Step:
    """The same, and the new rows are written where they belong: the output is bound to a slice of the cache.

    The cache lies token by token, so that a row is one piece of memory; it is bound anew at each step.
    """
    op = layer.op
    shape = [layer.room, layer.groups, layer.size]
    x, k, v = layer.parameter([1, layer.hidden]), layer.parameter(shape), layer.parameter(shape)
    order = layer.constant(np.array([1, 0, 2]))
    old = [op.unsqueeze(op.transpose(c, order), layer.constant(np.int64(0))) for c in (k, v)]
    q, new_k, new_v = layer.project(x)
    kept = [op.reshape(n, layer.constant(np.array([1, layer.groups, layer.size])), False) for n in (new_k, new_v)]
    request = layer.request([layer.split(q, (old[0], old[1]), (new_k, new_v)), *kept], [x, k, v])
    caches = [np.ascontiguousarray(c[0].transpose(1, 0, 2)) for c in layer.rows]
    y, place = layer.out(), layer.past
    layer.bind(request, [layer.x, *caches], [y])

    def step() -> Any:
        for index, cache in enumerate(caches):
            request.set_output_tensor(index + 1, layer.ov.Tensor(cache[place : place + 1], shared_memory=True))
        request.infer()
        return y

    return step


def two_segments(layer: Layer) -> Step:
    """Projections, the host's write, attention over the written cache: two models a layer."""
    x = layer.parameter([1, layer.hidden])
    first = layer.request(list(layer.project(x)), [x])
    q = layer.parameter([1, layer.heads, 1, layer.size])
    k, v = (layer.parameter(list(c.shape)) for c in layer.rows)
    second = layer.request([layer.attend(q, k, v)], [q, k, v])
    y, rows, place = layer.out(), [layer.row(), layer.row()], layer.past
    query = np.empty((1, layer.heads, 1, layer.size), dtype=np.float32)
    layer.bind(first, [layer.x], [query, *rows])
    layer.bind(second, [query, *layer.rows], [y])

    def step() -> Any:
        first.infer()
        for cache, row in zip(layer.rows, rows, strict=True):
            cache[:, :, place : place + 1] = row
        second.infer()
        return y

    return step


def _scattered(layer: Layer, aliased: bool) -> Step:
    x, k, v = layer.parameter([1, layer.hidden]), *(layer.parameter(list(c.shape)) for c in layer.rows)
    place = layer.parameter([1], np.int64)
    q, *new = layer.project(x)
    axis = layer.constant(np.int64(2))
    full = [layer.op.scatter_update(c, place, n, axis) for c, n in zip((k, v), new, strict=True)]
    request = layer.request([layer.attend(q, *full), *full], [x, k, v, place])
    y = layer.out()
    kept = layer.rows if aliased else [layer.cache(), layer.cache()]
    layer.bind(request, [layer.x, *layer.rows, layer.place], [y, *kept])
    return lambda: (request.infer(), y)[1]


def scatter(layer: Layer) -> Step:
    """ScatterUpdate in the model into a second cache; the two change places."""
    return _scattered(layer, aliased=False)


def scatter_aliased(layer: Layer) -> Step:
    """ScatterUpdate in the model, its output bound to the memory of its input."""
    return _scattered(layer, aliased=True)


def concat(layer: Layer) -> Step:
    """What an export with a growing cache does: old and new rows joined into a fresh cache."""
    shape = [1, layer.groups, layer.past, layer.size]
    x, k, v = layer.parameter([1, layer.hidden]), layer.parameter(shape), layer.parameter(shape)
    q, *new = layer.project(x)
    full = [layer.op.concat([c, n], 2) for c, n in zip((k, v), new, strict=True)]
    request = layer.request([layer.attend(q, *full), *full], [x, k, v])
    y = layer.out()
    old = [np.ascontiguousarray(c[:, :, : layer.past]) for c in layer.rows]
    layer.bind(request, [layer.x, *old], [y, layer.cache(), layer.cache()])
    return lambda: (request.infer(), y)[1]


def state_scatter(layer: Layer) -> Step:
    """OpenVINO's state of fixed size: ReadValue, ScatterUpdate, Assign."""
    op, x, place = layer.op, layer.parameter([1, layer.hidden]), layer.parameter([1], np.int64)
    q, *new = layer.project(x)
    axis, full, sinks = layer.constant(np.int64(2)), [], []
    for name, initial, row in zip("kv", layer.rows, new, strict=True):
        read = op.read_value(op.constant(initial), name, np.float32, list(initial.shape))
        full.append(op.scatter_update(read, place, row, axis))
        sinks.append(op.assign(full[-1], name))
    request = layer.request([layer.attend(q, *full)], [x, place], sinks)
    y = layer.out()
    layer.bind(request, [layer.x, layer.place], [y])
    return lambda: (request.infer(), y)[1]


def state_concat(layer: Layer) -> Step:
    """OpenVINO's state as its own language models use it: ReadValue, Gather, Concat, attention, Assign.

    The plugin fuses these and appends a row to memory of its own. The state grows with each step; it is set back
    to ``past`` rows outside the timed part.
    """
    op, ov = layer.op, layer.ov
    x, beam = layer.parameter([1, layer.hidden]), layer.parameter([1], np.int32)
    q, *new = layer.project(x)
    full, sinks = [], []
    for name, row in zip("kv", new, strict=True):
        shape = ov.PartialShape([1, layer.groups, -1, layer.size])
        empty = op.constant(np.zeros((1, layer.groups, 0, layer.size), dtype=np.float32))
        read = op.read_value(empty, name, np.float32, shape)
        full.append(op.concat([op.gather(read, beam, layer.constant(np.int64(0))), row], 2))
        sinks.append(op.assign(full[-1], name))
    n, spread = layer.heads // layer.groups, []
    for c in full:  # the spelling of grouped heads that the plugin knows
        ones = layer.constant(np.ones((1, 1, n, 1, 1), dtype=np.float32))
        wide = op.multiply(op.unsqueeze(c, layer.constant(np.int64(2))), ones)
        shape = layer.constant(np.array([0, layer.heads, -1, layer.size]))
        spread.append(op.reshape(wide, shape, True) if n > 1 else c)
    mixed = op.scaled_dot_product_attention(q, spread[0], spread[1], causal=False)
    request = layer.request([layer.finish(mixed)], [x, beam], sinks)
    y = layer.out()
    layer.bind(request, [layer.x, np.zeros(1, dtype=np.int32)], [y])
    old = {n: np.ascontiguousarray(c[:, :, : layer.past]) for n, c in zip("kv", layer.rows, strict=True)}

    def reset() -> None:
        for state in request.query_state():
            state.state = ov.Tensor(old[state.name])

    def step() -> Any:
        request.infer()
        return y

    step.reset = reset  # type: ignore[attr-defined]
    return step


CANDIDATES: dict[str, Callable[[Layer], Step]] = {
    FLOOR: floor,
    "new row out, host write, split scores": host_write,
    "new row bound to the cache's slice": bound_output,
    "two segments, host write between": two_segments,
    "ScatterUpdate into a second cache": scatter,
    "ScatterUpdate aliased": scatter_aliased,
    "concat into a fresh cache": concat,
    "state: ReadValue, ScatterUpdate, Assign": state_scatter,
    "state: ReadValue, Concat, Assign": state_concat,
}
