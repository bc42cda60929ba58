"""Names of feature maps. To add a map, write its file and add its line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhfedmtl.registry import Entry, Registry

if TYPE_CHECKING:
    from rhfedmtl.features.base import FeatureMap

NO_MAP = "none"

FEATURES: Registry[Entry[FeatureMap]] = Registry(
    "feature map",
    "features",
    Entry,
    {
        "splines": Entry("splines=8: pieces of each column between its quantiles", "rhfedmtl.features.splines:Splines"),
        "pairs": Entry("pairs=500: products of two columns on their quantile scale", "rhfedmtl.features.pairs:Pairs"),
        "fourier": Entry(
            "fourier=500 or fourier=500:laplace: random cosines of all columns, Gaussian or Laplace kernel",
            "rhfedmtl.features.fourier:Fourier",
        ),
        "sparse-fourier": Entry(
            "sparse-fourier=500: random cosines of three columns each", "rhfedmtl.features.fourier:SparseFourier"
        ),
        "onnx": Entry(
            "onnx=FILE: outputs of a frozen encoder, which ONNX Runtime runs on the terminal",
            "rhfedmtl.features.encoder:Encoder",
        ),
    },
)
"""Called with the parameters after "=", an entry makes a `FeatureMap`."""
