"""A general and adaptive robust loss function: one loss, one robustness parameter."""
__version__ = "0.1.0"

from .loss import GeneralLoss as GeneralLoss, influence as influence, rho as rho
from .weights import irls_weight as irls_weight, outlier_process as outlier_process
