"""A general and adaptive robust loss function: one loss, one robustness parameter."""
__version__ = "0.1.0"

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from .loss import GeneralLoss as GeneralLoss, influence as influence, rho as rho
from .weights import irls_weight as irls_weight, outlier_process as outlier_process

# The rest is imported when it is first asked for: `import robust_general` costs little more than `import torch`.
_LAZY = {
    "spline": "log_partition",
    "distribution": "General GeneralNLLLoss general",
    "color": "rgb_to_yuv yuv_to_rgb",
    "dct": "dct2 idct2",
    "wavelet": "wavelet_decompose wavelet_flatten wavelet_reconstruct wavelet_unflatten",
    "adaptive": "AdaptiveLoss StudentTLoss",
    "imageloss": "AdaptiveImageLoss",
    "annealing": "AlphaSchedule anneal irls",
    "regression": "RobustRegressor",
    "adapters": "scipy_loss statsmodels_norm",
    "registration": "register",
    "clustering": "RobustContinuousClustering",
}
_HOME = {name: module for module, names in _LAZY.items() for name in names.split()}

if _TYPE_CHECKING:
    from .adapters import scipy_loss as scipy_loss, statsmodels_norm as statsmodels_norm
    from .adaptive import AdaptiveLoss as AdaptiveLoss, StudentTLoss as StudentTLoss
    from .annealing import AlphaSchedule as AlphaSchedule, anneal as anneal, irls as irls
    from .clustering import RobustContinuousClustering as RobustContinuousClustering
    from .color import rgb_to_yuv as rgb_to_yuv, yuv_to_rgb as yuv_to_rgb
    from .dct import dct2 as dct2, idct2 as idct2
    from .distribution import General as General, GeneralNLLLoss as GeneralNLLLoss
    from .imageloss import AdaptiveImageLoss as AdaptiveImageLoss
    from .registration import register as register
    from .regression import RobustRegressor as RobustRegressor
    from .spline import log_partition as log_partition
    from .wavelet import (
        wavelet_decompose as wavelet_decompose, wavelet_flatten as wavelet_flatten,
        wavelet_reconstruct as wavelet_reconstruct, wavelet_unflatten as wavelet_unflatten)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*(n for n in globals() if not n.startswith("_")), *_HOME])
