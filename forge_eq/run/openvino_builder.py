"""The builder that kernels are written against: OpenVINO's opset with the helpers that ``ops`` names.

Takes nothing but calls: ``Kernel.openvino(g, *inputs, *attrs)`` with ``g`` a :class:`NodeBuilder`. Gives nodes of an
``ov.Model``. Promises: a number beside a tensor takes the tensor's element type; the result equals ``Op.torch`` also on
NaN, infinities and signed zeros, where OpenVINO's own operation does not (each such place says so); friendly names are
unique and name the instruction; weights are shared with torch, never copied.
Not here: which instructions form a model (``run.model``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forge_eq.errors import RunError
from forge_eq.run import openvino_merged
from forge_eq.run.openvino_attention import attention, attention_parts

# Config of every compiled model. The CPU plugin otherwise computes f32 models in bf16 where the processor can.
# It would also round the activations before a packed weight to eight bits, in groups.
PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
_NUMPY = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}
_OV = {name: name for name in _NUMPY} | {"bool": "boolean", "bf16": "bf16"}
_TORCH_BITS = {torch.bfloat16: torch.int16}  # NumPy has no bf16: the bits travel as integers
_SMALL = 1024  # bytes; below this a copy of a constant is cheaper than keeping an alias alive
_MERGED = 512  # elements; the plugin merges products whose sizes are at most 256
# Operations whose operands must agree in element type, so that a Python number can take its neighbour's.
_MIXING = frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "power",
        "maximum",
        "minimum",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "logical_and",
        "logical_or",
    ]
)


def load_openvino() -> Any:
    """The openvino package. Raises RunError when it is not installed."""
    try:
        import openvino
    except ImportError as e:
        raise RunError(
            "run",
            "openvino",
            f"the package cannot be imported: {e}",
            "install forge_eq[openvino], or compile with the torch target",
        ) from e
    return openvino


def element_type(dtype: str) -> Any:
    """OpenVINO's element type for one of ours. Raises RunError for a dtype that it lacks (complex numbers)."""
    if dtype not in _OV:
        raise RunError("run", dtype, "OpenVINO has no such element type", "keep the instruction on the host")
    return getattr(load_openvino().Type, _OV[dtype])


def shared_tensor(value: torch.Tensor) -> Any:
    """An ``ov.Tensor`` over the memory of a contiguous CPU tensor; the caller keeps ``value`` alive."""
    ov = load_openvino()
    value = value.detach()
    if value.dtype is torch.bfloat16:
        return ov.Tensor(value.view(_TORCH_BITS[value.dtype]).numpy(), list(value.shape), ov.Type.bf16)
    return ov.Tensor(value.numpy(), shared_memory=True)


@dataclass(frozen=True)
class Weight:
    """A constant that is a parameter of its model: which register's, whether stored the other way, in which shape."""

    register: int
    turned: bool
    shape: tuple[int, ...]


class NodeBuilder:
    """Builds nodes; an unknown attribute is the opset function of that name.

    ``kept`` holds the memory that shared constants point to: keep it as long as the model lives. ``threads`` is the
    number that the model will run on.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.ov = load_openvino()
        self.opset = self.ov.opset16
        self.kept: dict[str, torch.Tensor] = {}  # name of a constant's node -> its memory
        self.weights: dict[str, tuple[Weight, Any]] = {}  # name of a parameter's node -> its weight, and it
        self._scope = ""
        self._made: list[Any] = []
        self.ways: dict[int, bool] = {}  # address of a square weight -> whether it is read transposed
        self._causal: dict[tuple[int, int], Any] = {}
        self._copies: dict[int, tuple[Any, Any]] = {}  # id of a row's node -> it, and a copy of it for each thread

    # ------------------------------------------------------------------------------------------ plumbing

    @contextmanager
    def instruction(self, name: str) -> Iterator[None]:
        """Names the nodes made inside ``name.0``, ``name.1``, ...; ``name`` must be unique in the model."""
        outer = self._scope, self._made
        self._scope, self._made = name, []
        try:
            yield
        finally:
            self._scope, self._made = outer

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.opset, name, None)
        if name.startswith("_") or function is None:
            raise AttributeError(f"no opset function or helper is called {name!r}")

        def call(*args: Any, **options: Any) -> Any:
            operands = self._alike(args) if name in _MIXING else args
            return self._named(function(*operands, **options))

        return call

    def _named(self, node: Any) -> Any:
        node.set_friendly_name(f"{self._scope}.{len(self._made)}")
        self._made.append(node)
        return node

    def _alike(self, operands: Sequence[Any]) -> list[Any]:
        """The operands with numbers turned into constants of the tensors' element type."""
        tensor = next((o for o in operands if not isinstance(o, int | float)), None)
        if tensor is None:
            raise RunError("run", self._scope, "an operation of numbers only", "fold it before lowering")
        return [self.number(o, tensor) if isinstance(o, int | float) else o for o in operands]

    def number(self, value: float, like: Any) -> Any:
        """A scalar constant of the element type of ``like``."""
        if math.isinf(value) and self.type(like) in (self.ov.Type.bf16, self.ov.Type.f16):
            return self._named(self.opset.convert(self.opset.constant(value, dtype=np.float32), self.type(like)))
        return self._named(self.opset.constant(value, dtype=self.type(like)))

    @staticmethod
    def type(x: Any) -> Any:
        """The element type of a node or output."""
        return (x.output(0) if hasattr(x, "output") else x).get_element_type()

    @staticmethod
    def shape(x: Any) -> list[int]:
        """The static shape of a node or output, in elements."""
        return list((x.output(0) if hasattr(x, "output") else x).get_shape())

    def rank(self, x: Any) -> int:
        return len(self.shape(x))

    def i64(self, values: int | Sequence[int]) -> Any:
        """Axes, a shape or a permutation as a constant operand."""
        return self._named(self.opset.constant(np.array(values, dtype=np.int64)))

    def constant(self, value: torch.Tensor) -> Any:
        """A constant that shares the tensor's memory.

        A dense tensor that is merely permuted (``weight.t()``) becomes its storage order and a transpose, which
        OpenVINO absorbs into the matrix product. Anything else that is not contiguous costs one copy.
        """
        value = value.detach()
        strides = value.stride()
        order = sorted(range(value.dim()), key=lambda axis: (-strides[axis], axis))
        if not value.is_contiguous() and value.permute(order).is_contiguous():
            stored = self.constant(value.permute(order))
            return self.transpose(stored, self.i64([order.index(axis) for axis in range(value.dim())]))
        value = value.contiguous()
        small = value.numel() * value.element_size() < _SMALL and value.dtype is not torch.bfloat16
        if small:
            return self._named(self.opset.constant(value.numpy()))
        made = self._named(self.opset.constant(shared_tensor(value), shared_memory=True))
        self.kept[made.get_name()] = value
        return made

    def weight(self, weight: Weight, dtype: Any) -> Any:
        """A parameter for a constant, of one of our dtypes or of OpenVINO's."""
        kind = element_type(dtype) if isinstance(dtype, str) else dtype
        made = self._named(self.opset.parameter(list(weight.shape), kind))
        self.weights[made.get_name()] = weight, made
        return made

    # ------------------------------------------------------------------------------------------ elementwise

    def select(self, condition: Any, x: Any, y: Any) -> Any:
        x, y = self._alike((x, y))
        return self._named(self.opset.select(condition, x, y))

    def greater(self, a: Any, b: Any) -> Any:
        """OpenVINO computes a > b as the negation of a <= b, which holds for NaN."""
        return self.less(b, a)

    def greater_equal(self, a: Any, b: Any) -> Any:
        """As :meth:`greater`."""
        return self.less_equal(b, a)

    def _is_float(self, x: Any) -> bool:
        return not isinstance(x, int | float) and bool(self.type(x).is_real())

    def maximum(self, a: Any, b: Any) -> Any:
        """NaN wins. OpenVINO's maximum drops a NaN in the first operand."""
        return self._extremum(self.less_equal, "maximum", a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        """As :meth:`maximum`."""
        return self._extremum(lambda x, y: self.less_equal(y, x), "minimum", a, b)

    def _extremum(self, loses: Any, name: str, a: Any, b: Any) -> Any:
        a, b = self._alike((a, b))
        if not self._is_float(a):
            return self._named(getattr(self.opset, name)(a, b))
        # Every comparison with NaN fails, so "b where a loses, else a" keeps a NaN of a, and drops that of b.
        kept = self.select(loses(a, b), b, a)
        return self.select(self.not_equal(b, b), b, kept)

    def clip(self, x: Any, low: float | None, high: float | None) -> Any:
        """Keeps NaN, which OpenVINO's clamp turns into ``low``."""
        if low is not None and high is not None and low > high:
            low = high  # torch lets the upper bound win
        for bound, outside in ((low, self.less), (high, self.greater)):
            x = x if bound is None else self.select(outside(x, bound), bound, x)
        return x

    def relu(self, x: Any) -> Any:
        """Keeps NaN and -0.0; OpenVINO's ReLU gives 0 for both."""
        return self.select(self.less(x, 0), 0, x)

    def exp(self, x: Any) -> Any:
        """Keeps NaN, which OpenVINO turns into infinity."""
        return self.select(self.not_equal(x, x), x, self._named(self.opset.exp(x)))

    def subtract(self, a: Any, b: Any) -> Any:
        """0 - 0 is 0; OpenVINO takes 0 - x for -x, which gives -0."""
        if isinstance(a, int | float) and a == 0 and math.copysign(1.0, a) > 0 and self._is_float(b):
            return self.select(self.equal(b, 0.0), 0.0, self.negative(b))
        return self._named(self.opset.subtract(*self._alike((a, b))))

    def divide(self, a: Any, b: Any) -> Any:
        return self._named(openvino_merged.divide(self, *self._alike((a, b))))

    def reciprocal(self, x: Any) -> Any:
        return self.divide(1.0, x)

    def rsqrt(self, x: Any) -> Any:
        return self.divide(1.0, self.sqrt(x))

    def gelu(self, x: Any, approximate: str) -> Any:
        """The plugin's own, which it takes into a product before it (and runs that product on another kernel)."""
        return self._named(self.opset.gelu(x, approximate))

    def gelu_apart(self, x: Any) -> Any:
        """The tanh form as x sigmoid(2 u): the same values in a spelling that the plugin leaves apart from a product.

        The erf form has none that also gives torch's NaN at infinity.
        """
        c = math.sqrt(8.0 / math.pi)
        cube = self.multiply(self.multiply(self.multiply(x, x), x), c * 0.044715)
        return self.multiply(x, self.sigmoid(self.add(self.multiply(x, c), cube)))

    def silu_apart(self, x: Any) -> Any:
        """As :meth:`gelu_apart`. Any spelling with a sigmoid, or x over 1 + exp(-x), is taken into the product."""
        grown = self._named(self.opset.exp(self.negative(x)))  # infinity for NaN, and x keeps that
        return self.multiply(x, self._named(self.opset.divide(*self._alike((1.0, self.add(grown, 1.0))))))

    def cast(self, x: Any, dtype: str) -> Any:
        """Numbers to bool is "differs from 0", and floats round toward zero to integers, as in torch."""
        if dtype == "bool":
            return x if str(self.type(x)) == str(element_type(dtype)) else self.not_equal(x, 0)
        return self._named(self.opset.convert(x, element_type(dtype)))

    # ------------------------------------------------------------------------------------------ reductions, norms

    def _reduce(self, name: str, x: Any, axes: Any, keepdim: bool) -> Any:
        made = openvino_merged.reduce(self, name, x, axes, keepdim)
        return made if made is x else self._named(made)

    def reduce_sum(self, x: Any, axes: Any, keepdim: bool) -> Any:
        return self._reduce("reduce_sum", x, axes, keepdim)

    def reduce_mean(self, x: Any, axes: Any, keepdim: bool) -> Any:
        return self._reduce("reduce_mean", x, axes, keepdim)

    def reduce_max(self, x: Any, axes: Any, keepdim: bool) -> Any:
        """NaN wins and a row of -inf stays; OpenVINO skips NaN and starts from the lowest finite number."""
        top = self._reduce("reduce_max", x, axes, keepdim)
        lowest = self._reduce("reduce_logical_and", self.equal(x, -math.inf), axes, keepdim)
        undefined = self._reduce("reduce_logical_or", self.not_equal(x, x), axes, keepdim)
        return self.select(undefined, math.nan, self.select(lowest, -math.inf, top))

    def softmax(self, x: Any, axis: int) -> Any:
        """A row with NaN, or whose largest value is infinite, is NaN everywhere; OpenVINO gives 0 in places."""
        weights = self.plain_softmax(x, axis)
        total = self._named(self.opset.reduce_sum(weights, self.i64([axis]), True))
        return self.select(self.not_equal(total, total), math.nan, weights)

    def plain_softmax(self, x: Any, axis: int) -> Any:
        """OpenVINO's own: undefined rows are partly 0. For use where a product with the row follows."""
        return self._named(self.opset.softmax(x, axis))

    def mvn(self, x: Any, axes: Sequence[int], eps: float) -> Any:
        """Zero mean and unit variance over ``axes``."""
        return self._named(self.opset.mvn(x, self.i64(axes), True, eps, "inside_sqrt"))

    def rms_norm(self, x: Any, w: Any, axes: Sequence[int], eps: float) -> Any:
        """The spelling that the CPU plugin replaces by its RMS kernel when ``w`` is a constant."""
        power = self.power(x, 2.0)
        mean = self._named(self.opset.reduce_mean(power, self.i64(axes), True))
        scale = self._named(self.opset.divide(self.number(1.0, x), self.sqrt(self.add(mean, eps))))
        return self.multiply(self.multiply(x, scale), w)

    # ------------------------------------------------------------------------------------------ matrices, heads

    def matmul(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        """The matrix product.

        The CPU plugin merges chains of small products of matrices on one thread, and crashes (2026.4) where the chain
        meets a residual. It looks at matrices only, so a small weight gets a third axis.
        """
        b = openvino_merged.weight(self, b, transpose_b)
        small = self.rank(a) == self.rank(b) == 2 and max(*self.shape(a)[1:], *self.shape(b)) <= _MERGED
        if not small:
            return self._named(self.opset.matmul(a, b, transpose_a, transpose_b))
        b = self.reshaped(b, [1, *self.shape(b)])
        y = self.opset.matmul(a, b, transpose_a, transpose_b)
        return self.reshaped(self._named(y), self.shape(y)[1:])

    def row_product(self, x: Any, w: Any, transposed: bool) -> Any:
        """x of one row times a weight on the left, read where it lies: the row, as [.., 1, n].

        A single column after it would make all that follows run element by element. The kernel hands out 512 rows of
        the weight at a time, so that two threads share 768 as two to one; a batch of equal parts they share evenly. The
        row has to be there for each part: a broadcast one is read as one product again.
        """
        size, parts = self.shape(w)[0 if transposed else 1], self.threads
        *outer, _, _ = self.shape(x)
        row = self.reshaped(x, [1, 1, math.prod(self.shape(x))])
        if transposed and parts > 1 and size % parts == 0:
            if id(x) not in self._copies:
                self._copies[id(x)] = x, self._named(self.opset.concat([row] * parts, 0))
            row, w = self._copies[id(x)][1], self.reshaped(w, [parts, size // parts, self.shape(w)[1]])
        y = self._named(self.opset.matmul(w, row, not transposed, True))
        return self.reshaped(y, [*outer, 1, size])

    def matmul_packed(self, x: Any, q: Any, s: Any, z: Any = None) -> Any:
        """x times a weight [n, k] of integers, scales and offsets [n, groups], spelt so that the kernel unpacks it."""
        rows, groups = self.shape(s)
        grouped = self.reshaped(q, [rows, groups, self.shape(q)[1] // groups])
        whole = self._named(self.opset.convert(grouped, np.float32))
        if z is not None:
            whole = self._named(self.opset.subtract(whole, self.reshaped(z, [rows, groups, 1])))
        weight = self.multiply(whole, self.reshaped(s, [rows, groups, 1]))
        return self._named(self.opset.matmul(x, self.reshaped(weight, self.shape(q)), False, True))

    def rotate_half(self, x: Any) -> Any:
        """The spelling from which the CPU plugin makes its rotary kernel; it insists on axis -1."""
        size = self.shape(x)[-1] // 2
        low, high = self.variadic_split(x, self.i64(-1), self.i64([size, size])).outputs()
        return self.concat([self.negative(high), low], -1)

    def rope(self, x: Any, cos: Any, sin: Any) -> Any:
        return self.add(self.multiply(x, cos), self.multiply(self.rotate_half(x), sin))

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        return x if self.shape(x) == list(shape) else self.reshape(x, self.i64(shape), False)

    def repeat_heads(self, x: Any, n: int) -> Any:
        *outer, heads, tokens, size = self.shape(x)
        spread = self.reshaped(x, [*outer, heads, 1, tokens, size])
        wide = self.broadcast(spread, self.i64([*outer, heads, n, tokens, size]))
        return self.reshaped(wide, [*outer, heads * n, tokens, size])

    def causal_mask(self, queries: int, keys: int) -> Any:
        """A constant bool [queries, keys]: query i looks at keys 0 to i. Built once per size."""
        if (queries, keys) not in self._causal:
            self._causal[queries, keys] = self.constant(torch.ones(queries, keys, dtype=torch.bool).tril())
        return self._causal[queries, keys]

    def attention(self, *args: Any, **options: Any) -> Any:
        """See :func:`forge_eq.run.openvino_attention.attention`."""
        return attention(self, *args, **options)

    def attention_parts(self, *args: Any) -> Any:
        """See :func:`forge_eq.run.openvino_attention.attention_parts`."""
        return attention_parts(self, *args)
