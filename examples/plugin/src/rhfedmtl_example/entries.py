"""What this package adds, and where it stands: nothing numerical is imported here."""

from rhfedmtl.algorithms.registry import SGD, TUNED_STEPS, TUNED_VISITS, AlgorithmEntry
from rhfedmtl.data.registry import Dataset
from rhfedmtl.registry import Entry, Option

FEDOPT = AlgorithmEntry(
    "FedAvg whose stations take a step of their own size",
    "rhfedmtl_example.fedopt:fedopt",
    options=(*SGD, Option("station_step", float, 0.8, "Step of a station along the mean change")),
    grid={"step": TUNED_STEPS, "local_steps": TUNED_VISITS, "station_step": (0.5, 1.5)},
)
HUBER = Entry(
    "squared error that grows linearly beyond a width",
    "rhfedmtl_example.huber:Huber",
    options=(Option("width", float, 1.0, "Error from which a loss grows linearly"),),
)
DIABETES = Dataset(
    "progression of diabetes in 442 patients, men and women as two tasks",
    "rhfedmtl_example.diabetes:load",
    licence="BSD-3-Clause, as scikit-learn",
    obtain="inside scikit-learn",
)
