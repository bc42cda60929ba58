"""Shorten the models in the messages of a stream, without any loss.

`node.link` and `node.acceptor` keep a `ModelMemory` at each end of a stream. `ModelMemory.shortened` is called before a
message is sent, and `ModelMemory.restore` after it is received. The restored model equals the original to the bit.

Theory of operation. Both ends remember the same models: those in the last message of each kind, and v of the last
report. A model is then sent in the first form that reproduces it exactly:

1. a reference to a remembered model (``base``) or to the last report (``reported``);
2. a point between the two models of the last probe (``share``), or a combination of its models (``weights``);
3. the rounded difference from a remembered model;
4. the numbers themselves.

A new stream starts with an empty memory at both ends, so the ends never disagree after a disconnection.
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

STREAM_KINDS = ("order", "probe", "assign", "sums")
"""Kinds of messages whose models are remembered. ``base`` numbers the remembered models in this order, from 1."""

NOTHING_REPORTED: tuple[int, codec.Vector] = 0, np.empty(0)


class ModelMemory:
    """The models that an end of a stream remembers."""

    __slots__ = ("_models", "_reported")

    def __init__(self) -> None:
        self._models: dict[str, list[codec.Vector]] = {}
        self._reported = NOTHING_REPORTED

    def heard(self, message: Any) -> None:
        """Remember v of a report that was sent to the cloud."""
        if message.WhichOneof("body") == "answer" and message.answer.WhichOneof("body") == "report":
            self._reported = message.answer.id, codec.array(message.answer.report.v, "v")

    def shortened(self, message: Any, dtype: np.dtype[Any]) -> Any:
        """Return the message with its models in their shortest exact form; unchanged if it has no models.

        ``dtype`` is the type to which the channel rounds models.
        """
        kind, tensors = _models_in(message)
        if not tensors:
            return message
        short = type(message)()
        short.CopyFrom(message)
        models = [_shared(tensor.SerializeToString()) for tensor in tensors]
        for tensor, model in zip(_models_in(short)[1], models, strict=True):
            tensor.CopyFrom(self._mixture(tensor, model) if kind == "trial" else self._shortest(model, dtype))
        self._remember(kind, models)
        return short

    def restore(self, message: Any) -> None:
        """Put the complete models back into a message: the inverse of `shortened`."""
        kind, tensors = _models_in(message)
        if not tensors:
            return
        models = [self._restored(tensor) for tensor in tensors]
        for tensor, model in zip(tensors, models, strict=True):
            if not tensor.data:
                tensor.data = model.tobytes()
            elif tensor.base:
                tensor.CopyFrom(codec.tensor(model))
        self._remember(kind, models)

    def _remember(self, kind: str, models: list[codec.Vector]) -> None:
        if kind in STREAM_KINDS:
            self._models[kind] = models

    def _remembered(self) -> Iterator[codec.Vector]:
        for kind in STREAM_KINDS:
            yield from self._models.get(kind, ())

    def _shortest(self, model: codec.Vector, dtype: np.dtype[Any]) -> wire.Tensor:
        """Return the shortest exact form of a model."""
        for base, remembered in enumerate(self._remembered(), 1):
            if np.array_equal(remembered, model):
                return wire.Tensor(shape=model.shape, base=base)
        if np.array_equal(self._reported[1], model):
            return wire.Tensor(shape=model.shape, reported=self._reported[0])
        if (share := share_between(model, np.array(self._probed()))) is not None:
            return wire.Tensor(shape=model.shape, share=round(share / SHARE_STEP))
        for base, remembered in enumerate(self._remembered(), 1) if dtype in codec.STEPS else ():
            if remembered.shape == model.shape:
                step, multiples = codec.in_steps(model - remembered, dtype)
                if np.array_equal(remembered + step * multiples, model):
                    data, precision = multiples.tobytes(), codec.STEPS[dtype]
                    return wire.Tensor(shape=model.shape, precision=precision, data=data, step=step, base=base)
        return codec.tensor(model, dtype)

    def _mixture(self, tensor: wire.Tensor, model: codec.Vector) -> wire.Tensor:
        """Return only the weights of a combination if they give the model exactly, otherwise the numbers."""
        short = wire.Tensor(shape=tensor.shape, weights=tensor.weights, shift=tensor.shift, constant=tensor.constant)
        models = self._probed()
        complete = 0 < len(models) == len(tensor.weights)
        return short if complete and np.array_equal(_combined(short, models), model) else codec.tensor(model)

    def _probed(self) -> list[codec.Vector]:
        """Return the models of the last probe (at a terminal's stream) or request of sums (at a station's)."""
        return self._models.get("probe") or self._models.get("sums") or []

    def _restored(self, tensor: wire.Tensor) -> codec.Vector:
        """Return the complete model of a shortened tensor."""
        shape = tuple(tensor.shape)
        if tensor.weights and not tensor.data:
            return _combined(tensor, self._probed())
        if tensor.reported:
            number, v = self._reported
            if tensor.reported != number or shape != v.shape:
                raise PeerError(f"v of shape {shape} as of answer {tensor.reported}: the last was {number}")
            return v
        if tensor.HasField("share"):
            ends = np.array(self._probed())
            if len(ends) != 2 or ends.shape[1:] != shape:
                raise PeerError(f"a model of shape {shape} between two models: the stream has {ends.shape}")
            return between(tensor.share * SHARE_STEP, ends)
        if not tensor.base:
            return codec.array(tensor, "a model")
        shape, models = codec.shape_of(tensor, "a model"), list(self._remembered())
        if tensor.base > len(models) or models[tensor.base - 1].shape != shape:
            raise PeerError(f"model {tensor.base} of shape {shape}: the stream has {[m.shape for m in models]}")
        base = models[tensor.base - 1]
        return base + codec.array(tensor, "the change of a model") if tensor.data else base


@lru_cache(maxsize=8)
def _shared(serialised: bytes) -> codec.Vector:
    """Return the array of a model; streams that send the same model remember the same array, to save memory."""
    model = codec.array(wire.Tensor.FromString(serialised), "a model")
    model.setflags(write=False)
    return model


def _combined(tensor: wire.Tensor, models: list[codec.Vector]) -> codec.Vector:
    """Return the combination of models by the weights of a tensor, with its shift of the intercepts."""
    if len(tensor.weights) != len(models) or not np.isfinite([*tensor.weights, tensor.shift, tensor.constant]).all():
        raise PeerError(f"a combination of {len(tensor.weights)} models: the stream has {len(models)}")
    combination = combined(np.array(tensor.weights), np.array(models))
    if combination.shape != tuple(tensor.shape):
        raise PeerError(f"a combination of shape {tuple(tensor.shape)}, of models of {combination.shape}")
    (model,) = with_intercepts(combination[None], tensor.constant or 1.0, np.array([tensor.shift]))
    return np.asarray(model)


def _models_in(message: Any) -> tuple[str, Any]:
    """Return the kind of a message, and its models."""
    kind, content = codec.body(message)
    if kind == "request":
        kind, content = codec.body(content)
    if kind in ("order", "trial"):
        return kind, [content.model]
    if kind == "assign":
        return kind, [content.center, *([content.origin] if content.HasField("origin") else [])]
    return kind, content.models if kind in STREAM_KINDS else ()
