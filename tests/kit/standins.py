"""Libraries that cannot simply be imported: they name torchvision without need, or warn of themselves."""

import warnings
from importlib import import_module
from types import ModuleType

from rankscope.sources.extras import _torchvision_standin, import_timm


def import_vit_pytorch() -> ModuleType:
    """vit-pytorch, whose self-supervised trainers name transforms of torchvision; nothing here uses them."""
    with _torchvision_standin():
        return import_module("vit_pytorch")


def import_x_transformers() -> ModuleType:
    """x-transformers, which compiles functions by TorchScript."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit", category=DeprecationWarning)
        return import_module("x_transformers")


NEEDED = {"timm": import_timm, "vit_pytorch": import_vit_pytorch, "x_transformers": import_x_transformers}
"""How libraries have to be imported first, by the name that scripts import them under."""
