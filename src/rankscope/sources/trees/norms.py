"""Norms of live models as norms of the tree."""

import torch
from torch import Tensor, nn

from rankscope.errors import NotTranslated
from rankscope.network import LayerNorm, Norm, RMSNorm
from rankscope.network.norms import default_eps
from rankscope.sources.trees.maps import view

_EPS = ("eps", "variance_epsilon", "epsilon")
_LAYER_NORMS = ("CohereLayerNorm", "Cohere2LayerNorm", "OlmoLayerNorm")


def norm(module: nn.Module, *, offset: float = 0.0) -> Norm:
    """The norm with the module's own gain, bias and epsilon; ``offset`` is added to the gain (Gemma keeps gain - 1).

    >>> norm(nn.LayerNorm(4)).eps
    1e-05
    """
    kind, gain = type(module).__name__, getattr(module, "weight", None)
    if isinstance(gain, Tensor) and gain.ndim != 1:
        raise NotTranslated(f"the {kind} has gains of shape {tuple(gain.shape)}, not one for all heads")
    epsilon = next((getattr(module, name) for name in _EPS if hasattr(module, name)), None)
    if "RMSNorm" in kind or "RmsNorm" in kind or kind.endswith("T5LayerNorm"):
        if epsilon is None:  # torch.nn.RMSNorm: the spacing of the type it computes in
            epsilon = default_eps(gain.dtype if isinstance(gain, Tensor) else torch.float32)
        return RMSNorm(view(gain), view(getattr(module, "bias", None)), eps=float(epsilon), offset=offset)
    if isinstance(module, nn.LayerNorm):
        if len(module.normalized_shape) != 1:
            raise NotTranslated(f"a LayerNorm over {tuple(module.normalized_shape)} mixes tokens")
        return LayerNorm(view(gain), view(module.bias), eps=module.eps, offset=offset)
    if kind in _LAYER_NORMS:  # no bias; the one without gain has no epsilon of its own either
        return LayerNorm(view(gain), eps=1e-5 if epsilon is None else float(epsilon), offset=offset)
    raise NotTranslated(f"{kind} is not a norm that the tree knows; LayerNorm and RMSNorm are")
