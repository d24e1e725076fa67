"""Checkpoints of the Hugging Face Hub that are already on this machine; nothing here uses the network."""

from importlib.util import find_spec
from pathlib import Path

NEEDED = ("model.safetensors", "config.json")


def cached_folder(*names: str, files: tuple[str, ...] = ()) -> Path | None:
    """The folder of the first of these Hub ids that is in the local cache, or None.

    Its config and weights as safetensors must be there, and the other ``files`` that are asked for.
    """
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    for name in names:
        found = [try_to_load_from_cache(name, file) for file in (*files, *NEEDED)]
        if all(isinstance(path, str) for path in found):
            return Path(str(found[-1])).parent
    return None
