"""Write a linear model as an ONNX graph: scaling, scores and predictions in a file that other runtimes read.

`TaskModels.to_onnx` calls `save`. Inputs are raw rows ``X``. If the models were trained on a table with gaps or texts,
``X`` holds its columns of numbers (NaN for a gap) and ``text`` its columns of text (an empty text for a gap); the
metadata has the column names. Feature maps add their own nodes (`FeatureMap.add_nodes`). Outputs are ``scores``, for
classes also ``label``, and ``probabilities`` if the model has a curve or scores that are log odds. The graph uses only
operators that every runtime has; text columns need operators of ``ai.onnx.ml``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.preparation import Preparation
from rhfedmtl.data.scaling import RowMap, Scaler
from rhfedmtl.errors import ConfigError, MissingExtraError
from rhfedmtl.maths.probabilities import ProbabilityCurves, pieces

OPSET = 18
ML_OPSET = 2
IR_VERSION = 9
DTYPES = ("float64", "float32")


class Linear(NamedTuple):
    """A linear model with its scaling: weights (column, feature), intercept, labels.

    ``curves`` gives the probabilities, by the curve of the first task; without it, ``log_odds`` says that scores are
    log odds.
    """

    scaler: Scaler
    weights: npt.NDArray[np.float64]
    intercept: npt.NDArray[np.float64]
    classes: npt.NDArray[Any]
    log_odds: bool
    preparation: Preparation | None = None
    curves: ProbabilityCurves | None = None

    @property
    def columns(self) -> tuple[int, int]:
        """Number of columns of numbers and of text that the model takes."""
        preparation, mapping = self.preparation, self.scaler.mapping
        if preparation is not None:
            return len(preparation.numbers), len(preparation.texts)
        return self.weights.shape[1] if mapping is None else mapping.statistics.n_columns, 0


def inputs(model: Linear, feature_names: Sequence[str]) -> dict[str, str]:
    """Return the names of the columns of ``X`` and of ``text``, as metadata."""
    preparation = model.preparation
    if preparation is None:
        return {"features": json.dumps(feature_names)} if feature_names else {}
    parts = {"features": preparation.numbers, "text": preparation.texts}
    return {name: json.dumps([preparation.columns[j] for j in indices]) for name, indices in parts.items() if indices}


def save(model: Linear, path: Path, *, dtype: str = "float64", facts: Mapping[str, str] | None = None) -> None:
    """Write the model in the precision ``dtype``; ``facts`` become metadata of the file."""
    if dtype not in DTYPES:
        raise ConfigError(f"unknown precision {dtype!r}: choose one of {', '.join(DTYPES)}")
    try:
        from onnx import TensorProto, checker, helper
    except ImportError as error:
        raise MissingExtraError("export to ONNX needs onnx: pip install 'rhfedmtl[onnx]'") from error
    graph = _Graph(np.dtype(dtype))
    graph.add_model(model)
    number = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    columns = zip(("X", "text"), (number, TensorProto.STRING), model.columns, strict=True)
    domains = {"": OPSET} | ({"ai.onnx.ml": ML_OPSET} if model.columns[1] else {}) | graph.domains
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "rhfedmtl",
            [helper.make_tensor_value_info(name, kind, ["rows", width]) for name, kind, width in columns if width],
            [helper.make_tensor_value_info(name, kind or number, shape) for name, kind, shape in graph.outputs],
            graph.constants,
        ),
        producer_name="rhfedmtl",
        opset_imports=[helper.make_opsetid(domain, number) for domain, number in domains.items()],
        ir_version=graph.ir_version,
        functions=graph.functions,
    )
    helper.set_model_props(proto, dict(facts or {}))
    checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString())


class _Graph:
    """Nodes, constants and outputs of a graph. An output with element type None has the type of the rows.

    ``domains`` are the versions of operators that embedded encoders need, and ``functions`` their functions.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.functions: list[Any] = []
        self.outputs: list[tuple[str, int | None, list[Any]]] = []
        self.domains: dict[str, int] = {}
        self.ir_version = IR_VERSION
        self._names: dict[str, int] = {}

    def add_model(self, model: Linear) -> None:
        """Add all nodes from ``X`` to the outputs."""
        rows = self._scaled(model.scaler, "X" if model.preparation is None else self._prepared(model.preparation))
        weights = self._constant("weights", np.ascontiguousarray(model.weights.T))
        products = self._node("MatMul", [rows, weights], "products")
        self._node("Add", [products, self._constant("intercept", model.intercept)], "scores")
        self.outputs.append(("scores", None, ["rows", len(model.weights)]))
        if len(model.classes):
            # The class with the largest score; of two classes, the second class if its score is above 0.
            if len(model.classes) > 2:
                code = self._node("ArgMax", ["scores"], "code", axis=1, keepdims=0)
            else:
                column = self._node("Squeeze", ["scores", self._integers("column", [1])], "score")
                above = self._node("Greater", [column, self._constant("threshold", np.zeros(1))], "above")
                code = self._node("Cast", [above], "code", to=_element(np.dtype(np.int64)))
            labels = model.classes  # in a type of ONNX: text, truth values, whole numbers or floating point
            if labels.dtype.kind in "iuf":
                labels = labels.astype(np.float64 if labels.dtype.kind == "f" else np.int64)
            elif labels.dtype.kind != "b":
                labels = labels.astype(str).astype(object)
            self._tensor("labels", labels)
            self._node("Gather", ["labels", code], "label", axis=0)
            self.outputs.append(("label", _element(labels.dtype), ["rows"]))
        if model.curves is not None or model.log_odds:
            n_classes, logits = len(model.classes), "scores"
            if model.curves is not None:
                curve = model.curves.curves[0]
                rising = self._bent(model.curves.bend)
                products = self._node("Mul", [rising, self._constant("slope", curve[:1])], "steep")
                logits = self._node("Add", [products, self._constant("offsets", curve[1:])], "logits")
            if n_classes > 2 and model.curves is not None:
                self._node("Softmax", [logits], "probabilities", axis=1)
                self.outputs.append(("probabilities", None, ["rows", n_classes]))
                return
            # σ(score) of every column. Several columns are divided by their sum, as each was trained separately.
            odds = self._node("Sigmoid", [logits], "odds")
            if n_classes > 2:
                total = self._node("ReduceSum", [odds, self._integers("across", [1])], "all", keepdims=1)
                self._node("Div", [odds, total], "probabilities")
            else:
                first = self._node("Sigmoid", [self._node("Neg", [logits], "opposite")], "other")
                self._node("Concat", [first, odds], "probabilities", axis=1)
            self.outputs.append(("probabilities", None, ["rows", n_classes]))

    def _prepared(self, preparation: Preparation) -> str:
        """Add the features of `Preparation.encode`: numbers, columns that mark gaps, and columns for each text."""
        parts = []
        if preparation.numbers:
            gaps = self._node("IsNaN", ["X"], "gaps")
            fill = self._constant("fill", preparation.fill[preparation.numbers])
            parts.append(self._node("Where", [gaps, fill, "X"], "filled"))
        if preparation.indicated:
            indices = self._integers("gappy", [preparation.numbers.index(j) for j in preparation.indicated])
            some = self._node("Gather", ["gaps", indices], "some", axis=1)
            parts.append(self._node("Cast", [some], "missing", to=_element(self.dtype)))
        for k, j in enumerate(preparation.texts):
            column = self._node("Gather", ["text", self._integers(f"text_{k}", [k])], f"column_{k}", axis=1)
            # A 0/1 column for each known value; all columns are 0 for an unknown value.
            values = list(preparation.values[j] or ())
            hot = self._node("OneHotEncoder", [column], f"hot_{k}", domain="ai.onnx.ml", cats_strings=values, zeros=1)
            flat = self._node("Reshape", [hot, self._integers(f"width_{k}", [-1, len(values)])], f"flat_{k}")
            parts.append(self._node("Cast", [flat], f"values_{k}", to=_element(self.dtype)))
        return self._node("Concat", parts, "features", axis=1)

    def _bent(self, bend: npt.NDArray[np.float64]) -> str:
        """Add the bend of scores (`maths.probabilities.bent`)."""
        if bend.shape[1] == 0:
            return "scores"
        start, end, zero = (
            self._constant(f"piece_{name}", values)
            for name, values in zip(("start", "end", "zero"), pieces(bend[0]), strict=True)
        )
        inside = self._node("Min", [self._node("Max", ["scores", start], "raised"), end], "inside")
        parts = self._node("Sub", [inside, zero], "parts")
        return self._node("MatMul", [parts, self._constant("piece_slopes", bend[1][:, None])], "bent")

    def _scaled(self, scaler: Scaler, rows: str) -> str:
        if scaler.mapping is not None:
            # Quantiles may be close to each other, so single precision is not enough before and in the map.
            dtype, self.dtype = self.dtype, np.dtype(np.float64)
            rows = self._mapped(scaler.mapping, self._node("Cast", [rows], "wide", to=_element(self.dtype)))
            rows = self._scaled(replace(scaler, mapping=None), rows)
            self.dtype = dtype
            return self._node("Cast", [rows], "mapped_rows", to=_element(dtype))
        if scaler.mean is not None and scaler.scale is not None:
            centred = self._node("Sub", [rows, self._constant("mean", scaler.mean)], "centred")
            rows = self._node("Div", [centred, self._constant("scale", scaler.scale)], "standard")
        if scaler.unit:
            squares = self._node("Mul", [rows, rows], "squares")
            total = self._node("ReduceSum", [squares, self._integers("axis", [1])], "total", keepdims=1)
            norm = self._node("Sqrt", [total], "norm")
            zero, one = self._constant("zero", np.zeros(1)), self._constant("one", np.ones(1))
            positive = self._node("Greater", [norm, zero], "positive")
            divisor = self._node("Where", [positive, norm, one], "divisor")
            rows = self._node("Div", [rows, divisor], "unit")
        return rows

    def _mapped(self, mapping: RowMap, rows: str) -> str:
        """Add the columns of `RowMap.transform`."""
        return mapping.features.add_nodes(self, self._scaled(mapping.first, rows), mapping.statistics)

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        """Add an operator, for feature maps (`features.base.Graph`)."""
        return self._node(kind, inputs, kind.lower(), **attributes)

    def constant(self, values: npt.NDArray[np.float64]) -> str:
        """Add numbers in the precision of the rows."""
        return self._constant("numbers", values)

    def integers(self, values: list[int]) -> str:
        """Add whole numbers."""
        return self._integers("integers", values)

    def embed(self, encoder: bytes, rows: str) -> str:
        """Add the graph of an ONNX file with one input and return its first output, in the precision of the rows."""
        from onnx import compose, load_model_from_string, version_converter

        model = load_model_from_string(encoder)
        versions = {"" if part.domain == "ai.onnx" else part.domain: part.version for part in model.opset_import}
        if versions[""] < OPSET:
            try:
                model = version_converter.convert_version(model, OPSET)
            except RuntimeError as error:
                raise ConfigError(
                    f"an encoder cannot be exported: convert its file to opset {OPSET}: {error}"
                ) from None
            versions[""] = OPSET
        for domain, version in versions.items():
            if self.domains.setdefault(domain, version) != version:
                raise ConfigError(
                    f"encoders of opset {self.domains[domain]} and {version} cannot be exported together: save them "
                    "with the same opset"
                )
        self.ir_version = max(self.ir_version, model.ir_version)
        model = compose.add_prefix(model, self._unique("encoder") + "/")
        held = {constant.name for constant in model.graph.initializer}
        source = next(value for value in model.graph.input if value.name not in held)
        self._node("Cast", [rows], source.name, to=source.type.tensor_type.elem_type)
        self.nodes += model.graph.node
        self.constants += model.graph.initializer
        self.functions += model.functions
        return self._node("Cast", [model.graph.output[0].name], "encoded", to=_element(self.dtype))

    def _unique(self, name: str) -> str:
        """Return the name, with a number if another value has it."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        output = self._unique(output)
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, name: str, values: npt.NDArray[np.float64]) -> str:
        return self._tensor(name, np.asarray(values).astype(self.dtype))

    def _integers(self, name: str, values: list[int]) -> str:
        return self._tensor(name, np.array(values, dtype=np.int64))

    def _tensor(self, name: str, values: npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = self._unique(name)
        self.constants.append(numpy_helper.from_array(values, name))
        return name


def _element(dtype: np.dtype[Any]) -> int:
    from onnx import TensorProto, helper

    return int(TensorProto.STRING if dtype.kind == "O" else helper.np_dtype_to_tensor_dtype(dtype))
