"""Models on a stream: one that it has carried is named, and of one that is rounded only what has changed is sent.

Both ends remember the same: the models of the last message of each kind, and v of the last report. A stream that begins
anew remembers nothing, so that nobody has to know what a peer has forgotten. A model between the two that were asked
about last is told by its share, one to be tried on test rows by the combination of them. What comes out is what went
in, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from rhfedmtl.data.centring import with_intercepts
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.mixtures import SHARE_STEP, between, combined, share_between

KINDS = ("order", "probe", "assign", "sums")
"""Messages that carry models. A base counts those that are remembered, in this order, from 1."""

NOTHING_REPORTED: tuple[int, codec.Vector] = 0, np.empty(0)


class ModelMemory:
    """What one end of a stream remembers."""

    __slots__ = ("_models", "_reported")

    def __init__(self) -> None:
        self._models: dict[str, list[codec.Vector]] = {}
        self._reported = NOTHING_REPORTED

    def heard(self, message: Any) -> None:
        """Remember v of a report that went up."""
        if message.WhichOneof("body") == "answer" and message.answer.WhichOneof("body") == "report":
            self._reported = message.answer.id, codec.array(message.answer.report.v, "v")

    def shortened(self, message: Any, dtype: np.dtype[Any]) -> Any:
        """The message with models as short as this type makes them without a loss; the same where it has none."""
        kind, tensors = _models_in(message)
        if not tensors:
            return message
        short = type(message)()
        short.CopyFrom(message)
        models = [_shared(each.SerializeToString()) for each in tensors]
        for each, model in zip(_models_in(short)[1], models, strict=True):
            each.CopyFrom(self._mixture(each, model) if kind == "trial" else self._shortest(model, dtype))
        self._remember(kind, models)
        return short

    def restore(self, message: Any) -> None:
        """Put models back into a message as they were before `shortened`."""
        kind, tensors = _models_in(message)
        if not tensors:
            return
        models = [self._whole(each) for each in tensors]
        for each, model in zip(tensors, models, strict=True):
            if not each.data:
                each.data = model.tobytes()
            elif each.base:
                each.CopyFrom(codec.tensor(model))
        self._remember(kind, models)

    def _remember(self, kind: str, models: list[codec.Vector]) -> None:
        if kind in KINDS:
            self._models[kind] = models

    def _known(self) -> Iterator[codec.Vector]:
        for kind in KINDS:
            yield from self._models.get(kind, ())

    def _shortest(self, model: codec.Vector, dtype: np.dtype[Any]) -> wire.Tensor:
        for base, known in enumerate(self._known(), 1):
            if np.array_equal(known, model):
                return wire.Tensor(shape=model.shape, base=base)
        if np.array_equal(self._reported[1], model):
            return wire.Tensor(shape=model.shape, reported=self._reported[0])
        if (share := share_between(model, np.array(self._asked()))) is not None:
            return wire.Tensor(shape=model.shape, share=round(share / SHARE_STEP))
        for base, known in enumerate(self._known(), 1) if dtype in codec.STEPS else ():
            if known.shape == model.shape:
                step, multiples = codec.in_steps(model - known, dtype)
                if np.array_equal(known + step * multiples, model):
                    data, precision = multiples.tobytes(), codec.STEPS[dtype]
                    return wire.Tensor(shape=model.shape, precision=precision, data=data, step=step, base=base)
        return codec.tensor(model, dtype)

    def _mixture(self, given: wire.Tensor, model: codec.Vector) -> wire.Tensor:
        """What the model is made of, if it is what the weights say."""
        short = wire.Tensor(shape=given.shape, weights=given.weights, shift=given.shift, constant=given.constant)
        asked = self._asked()
        known = 0 < len(asked) == len(given.weights)
        return short if known and np.array_equal(_combined(short, asked), model) else codec.tensor(model)

    def _asked(self) -> list[codec.Vector]:
        return self._models.get("probe") or self._models.get("sums") or []

    def _between(self, given: wire.Tensor) -> codec.Vector:
        asked = np.array(self._asked())
        if len(asked) != 2 or asked.shape[1:] != tuple(given.shape):
            raise PeerError(f"a model of shape {tuple(given.shape)} between two, of which {asked.shape} is known here")
        return between(given.share * SHARE_STEP, asked)

    def _told(self, given: wire.Tensor) -> codec.Vector:
        number, v = self._reported
        if given.reported != number or tuple(given.shape) != v.shape:
            raise PeerError(f"v of shape {tuple(given.shape)} as of answer {given.reported}: the last was {number}")
        return v

    def _whole(self, given: wire.Tensor) -> codec.Vector:
        if given.weights and not given.data:
            return _combined(given, self._asked())
        if given.reported:
            return self._told(given)
        if given.HasField("share"):
            return self._between(given)
        if not given.base:
            return codec.array(given, "a model")
        shape, known = codec.shape_of(given, "a model"), list(self._known())
        if given.base > len(known) or known[given.base - 1].shape != shape:
            raise PeerError(f"model {given.base} of shape {shape}: {[model.shape for model in known]} are known here")
        base = known[given.base - 1]
        return base + codec.array(given, "what has changed of a model") if given.data else base


@lru_cache(maxsize=8)
def _shared(written: bytes) -> codec.Vector:
    """A model that is sent to many: their streams remember one array, and not each its own."""
    model = codec.array(wire.Tensor.FromString(written), "a model")
    model.setflags(write=False)
    return model


def _combined(given: wire.Tensor, models: list[codec.Vector]) -> codec.Vector:
    if len(given.weights) != len(models) or not np.isfinite([*given.weights, given.shift, given.constant]).all():
        raise PeerError(f"a combination of {len(given.weights)} models, of which {len(models)} are known here")
    made = combined(np.array(given.weights), np.array(models))
    if made.shape != tuple(given.shape):
        raise PeerError(f"a combination of shape {tuple(given.shape)}, of models of {made.shape}")
    (whole,) = with_intercepts(made[None], given.constant or 1.0, np.array([given.shift]))
    return np.asarray(whole)


def _models_in(message: Any) -> tuple[str, Any]:
    """Kind of a message, and the models in it."""
    kind, content = codec.body(message)
    if kind == "request":
        kind, content = codec.body(content)
    if kind in ("order", "trial"):
        return kind, [content.model]
    if kind == "assign":
        return kind, [content.center, *([content.origin] if content.HasField("origin") else [])]
    return kind, content.models if kind in KINDS else ()
