"""The kernel that numba compiles: the functions of `kernel.Kernel` for any number of terminals and threads."""

from rhfedmtl.maths.kernels.sdca import run_profiles as profiles
from rhfedmtl.maths.kernels.sdca import run_round as ascend
from rhfedmtl.maths.kernels.sdca import run_shares as shares
from rhfedmtl.maths.kernels.sdca import run_sums as sums
from rhfedmtl.maths.kernels.sdca import settle
from rhfedmtl.maths.kernels.sgd import run_round as descend

__all__ = ["ascend", "descend", "profiles", "settle", "shares", "sums"]
