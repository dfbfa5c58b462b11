"""A general and adaptive robust loss function: one loss, one robustness parameter."""
__version__ = "0.1.0"

from .loss import GeneralLoss as GeneralLoss, influence as influence, rho as rho
