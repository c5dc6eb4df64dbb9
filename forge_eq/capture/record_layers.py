"""Layer templates: of layers that are alike, one is traced and the others are written down as repeats of it.

Takes the module of a recording. Gives wrapped ``forward`` functions on the children of its containers. Promises: a
repeat stands only for a layer whose class, settings, tensors' types, arguments and ties are those of the traced one;
the second layer of each group and the last are traced as well and compared, call by call; anything else, and any layer
that takes or returns what is not a tensor, a tuple or a plain value, is traced in full. A last layer that differs
raises Unlike. Not here: which layers are alike (``capture.record_alike``), Python state outside the layers
(``capture.record_state``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from forge_eq.capture.record_alike import PLAIN, Watched, groups
from forge_eq.capture.recorder import DENSE, Recorder
from forge_eq.capture.tape import Body, Call, Repeat, Unlike, inputs_of, unlike


@dataclass
class _Group:
    """Layers that are alike; ``templates`` are what was traced, by the form of the call."""

    last: torch.nn.Module
    used: list[str]  # uses of a watched number
    templates: dict[Any, _Template] = field(default_factory=dict)


@dataclass
class _Template:
    body: Body | None  # None: no template, trace in full
    outputs: Any = None
    compared: bool = False  # with a second layer
    open: bool = False  # repeats stand on the tape that no comparison followed


class Layers:
    """The wrappers on one module; ``with`` installs and removes them."""

    def __init__(self, module: torch.nn.Module, recorder: Recorder) -> None:
        self.recorder = recorder
        self.groups: list[_Group] = []
        self.traced: list[tuple[Body, frozenset[Call]]] = []  # layers that others repeat, and what they return
        self._undo: list[Callable[[], None]] = []
        for layers, numbers in groups(module):
            self._install(layers, numbers)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def check(self) -> None:
        """Raises Unlike where repeats are not enclosed by layers that were compared."""
        for group in self.groups:
            if any(t.open for t in group.templates.values()):
                raise Unlike("the last layer of a group was not called like the ones before it")
        for body, returned in self.traced if self.repeats else ():
            own = {*body.calls}
            if any(user not in own for c in own - returned for user in c.users):
                raise Unlike(f"a value inside {body.prefix} is read outside it")

    @property
    def repeats(self) -> int:
        return sum(type(i) is Repeat for i in self.recorder.tape)

    def _install(self, layers: list[torch.nn.Module], numbers: list[tuple[str, str]]) -> None:
        group = _Group(layers[-1], [])
        self.groups.append(group)
        parts = [dict(layer.named_modules(remove_duplicate=False)) for layer in layers]
        for path, name in numbers:
            if len({p[path].__dict__[name] for p in parts}) > 1:
                for part in parts:
                    self._watch(part[path], name, group.used)
        for layer in layers:
            layer.__dict__["forward"] = _Forward(layer, group, self)
            self._undo.append(lambda d=layer.__dict__: d.pop("forward"))  # type: ignore[misc]

    def _watch(self, part: torch.nn.Module, name: str, used: list[str]) -> None:
        value = part.__dict__[name]
        if type(value) is int:  # a part that layers share is met more than once
            part.__dict__[name] = Watched(value, used)
            self._undo.append(lambda: part.__dict__.__setitem__(name, value))


# ------------------------------------------------------------------------------------ calls


class _Opaque(Exception):
    """An argument or result that may hold more than it shows."""


class _Forward:
    """Stands for a layer's ``forward`` during the recording."""

    def __init__(self, layer: torch.nn.Module, group: _Group, layers: Layers) -> None:
        self.layer, self.original, self.group, self.layers = layer, layer.forward, group, layers
        self.recorder = layers.recorder
        self.prefix = self.recorder.paths[id(layer)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves: list[torch.Tensor] = []
        try:
            form = [_form(a, leaves) for a in args], [(k, _form(v, leaves)) for k, v in kwargs.items()]
        except _Opaque:
            return self.original(*args, **kwargs)
        reads = [self.recorder.call_of(t) for t in leaves]
        reads += [self.recorder.call_of(t) for t in _tensors(self.layer)]
        first: dict[Call, int] = {}
        ties = tuple(first.setdefault(c, k) for k, c in enumerate(reads))
        key = repr((form, ties, torch.is_grad_enabled(), torch.get_default_dtype()))
        found = self.group.templates.get(key)
        if found is not None and found.body is None:
            return self.original(*args, **kwargs)
        if found is not None and found.compared and self.layer is not self.group.last:
            return self.repeat(found, leaves, tuple(reads))
        out, body = self.traced(args, kwargs, tuple(reads))
        if found is None:
            self.group.templates[key] = self.template(out, body, leaves)
        else:
            self.compare(found, out, body, leaves)
        if body is not None and self.group.templates[key].body is not None:
            self.layers.traced.append((body, frozenset(_calls(self.outputs(out, body, leaves)))))
        return out

    def traced(self, args: Any, kwargs: Any, reads: tuple[Call, ...]) -> tuple[Any, Body | None]:
        """The layer's result and its calls; None when they cannot be a template."""
        del self.group.used[:]
        start, recorder = len(self.recorder.tape), self.recorder
        out = self.original(*args, **kwargs)
        calls = recorder.tape[start:]
        if self.group.used or any(type(c) is not Call for c in calls):
            return out, None
        own = tuple(c for c in calls if type(c) is Call)
        used = frozenset(r for c in own for r in inputs_of(c)) - set(own)
        closed = all(r.constant is not None for r in used.difference(reads))
        return out, Body(own, reads, used, self.prefix) if closed else None

    def template(self, out: Any, body: Body | None, leaves: Sequence[torch.Tensor]) -> _Template:
        if body is None:
            return _Template(None)
        try:
            return _Template(body, self.outputs(out, body, leaves))
        except _Opaque:
            return _Template(None)

    def compare(self, template: _Template, out: Any, body: Body | None, leaves: Sequence[torch.Tensor]) -> None:
        """Keeps the template when this layer computes as it says."""
        assert template.body is not None
        why = "it uses its own number or reads from elsewhere"
        if body is not None:
            with self.recorder.pause():
                why, pairs = unlike(template.body, body)
            try:
                if not why and not _match(template.outputs, self.outputs(out, body, leaves), pairs):
                    why = "it returns something else"
            except _Opaque:
                why = "it returns something else"
        if not why:
            template.compared, template.open = True, False
        elif template.open:
            raise Unlike(f"{self.prefix} does not compute as {template.body.prefix}: {why}")
        else:
            template.body = None

    def outputs(self, out: Any, body: Body, leaves: Sequence[torch.Tensor]) -> Any:
        """The result as a tree of argument numbers, (call, value) and plain values."""
        if isinstance(out, torch.Tensor):
            for k, leaf in enumerate(leaves):
                if leaf is out:
                    return ("argument", k)
            call = self.recorder.call_of(out)
            if call in body.reads:
                return ("read", body.reads.index(call))
            return ("call", call, out)
        if type(out) is tuple:
            return ("tuple", tuple(self.outputs(v, body, leaves) for v in out))
        if type(out) in PLAIN:
            return ("plain", type(out), out)
        raise _Opaque

    def repeat(self, template: _Template, leaves: Sequence[torch.Tensor], reads: tuple[Call, ...]) -> Any:
        assert template.body is not None
        results: dict[Call, tuple[Call, torch.Tensor]] = {}
        out = self.stamped(template.outputs, leaves, reads, results)
        pairs = tuple((made, token) for made, (token, _) in results.items())
        self.recorder.tape.append(Repeat(template.body, reads, pairs, self.prefix))
        for mine, call in zip(template.body.reads, reads, strict=True):
            if mine in template.body.used:
                call.users.append(self)
        template.open = True
        return out

    def stamped(self, tree: Any, leaves: Sequence[torch.Tensor], reads: Sequence[Call], results: dict[Any, Any]) -> Any:
        if tree[0] == "argument":
            return leaves[tree[1]]
        if tree[0] == "plain":
            return tree[2]
        if tree[0] == "tuple":
            return tuple(self.stamped(t, leaves, reads, results) for t in tree[1])
        if tree[0] == "read":
            return self.fresh(reads[tree[1]].meta["val"], reads[tree[1]])
        _, call, value = tree
        if call not in results:
            token = Call(None, (), {}, value)
            results[call] = token, self.fresh(value, token)
        return results[call][1]

    def fresh(self, value: torch.Tensor, call: Call) -> torch.Tensor:
        made = self.recorder.fresh(value)
        self.recorder.bind(made, call)
        return made


def _calls(tree: Any) -> list[Call]:
    """The calls in a tree of results."""
    if tree[0] == "tuple":
        return [c for part in tree[1] for c in _calls(part)]
    return [tree[1]] if tree[0] == "call" else []


def _match(a: Any, b: Any, pairs: dict[Call, Call]) -> bool:
    if a[0] != b[0]:
        return False
    if a[0] == "call":
        return pairs[a[1]] is b[1] if a[1] in pairs else a[1] is b[1]
    if a[0] == "tuple":
        return len(a[1]) == len(b[1]) and all(_match(x, y, pairs) for x, y in zip(a[1], b[1], strict=True))
    return repr(a) == repr(b)


def _form(value: Any, leaves: list[torch.Tensor]) -> Any:
    """An argument without its tensors' identities; those are appended to ``leaves``. Raises _Opaque."""
    kind = type(value)
    if kind in DENSE:
        leaves.append(value)
        return "tensor", tuple(value.shape), value.dtype, value.stride(), value.requires_grad
    if kind in PLAIN:
        return kind.__name__, value
    if kind is tuple:
        return "tuple", [_form(v, leaves) for v in value]
    raise _Opaque


def _tensors(layer: torch.nn.Module) -> list[torch.Tensor]:
    """The layer's parameters and buffers, each place once."""
    return [
        t
        for part in layer.modules()
        for tensors in (part._parameters, part._buffers)
        for t in tensors.values()
        if t is not None
    ]
