"""Libraries that name torchvision without need, imported where it is missing or does not fit."""

from importlib import import_module
from types import ModuleType

from rankscope.sources.extras import _torchvision_standin, import_timm


def import_vit_pytorch() -> ModuleType:
    """vit-pytorch, whose self-supervised trainers name transforms of torchvision; nothing here uses them."""
    with _torchvision_standin():
        return import_module("vit_pytorch")


NEEDED = {"timm": import_timm, "vit_pytorch": import_vit_pytorch}
"""How libraries have to be imported first, by the name that scripts import them under."""
