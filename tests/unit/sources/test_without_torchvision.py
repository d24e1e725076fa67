"""Model libraries where torchvision is missing or does not fit torch: they work, and nobody else sees a torchvision."""

import importlib
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import transformers

from kit import checkpoint_folders as folders
from rankscope.sources.extras import _torchvision_standin, _torchvision_works

BROKEN = "import torchvision.helper\nraise RuntimeError('operator torchvision::nms does not exist')\n"
METADATA = "Metadata-Version: 2.1\nName: torchvision\nVersion: 9.9\n"
PROGRAM = """
import sys
from importlib.util import find_spec
from rankscope.sources.extras import import_timm
finders = list(sys.meta_path)
timm = import_timm()
assert timm is import_timm()
assert sys.meta_path == finders
model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=12, num_heads=2, num_classes=0)
left = sorted(name for name in sys.modules if name.partition(".")[0] == "torchvision")
print(type(model).__name__, left, find_spec("torchvision") is not None)
from rankscope.sources import load_model
print(*(type(load_model(folder).model).__name__ for folder in sys.argv[1:]))
print("torchvision" in sys.modules, find_spec("torchvision") is not None)
"""


@pytest.fixture
def wheel(tmp_path):
    """A function that installs a torchvision with this content."""

    def install(content: str) -> str:
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "__init__.py").write_text(content)
        (tmp_path / "torchvision" / "helper.py").write_text("import torchvision\n")
        (tmp_path / "torchvision-9.9.dist-info").mkdir()
        (tmp_path / "torchvision-9.9.dist-info" / "METADATA").write_text(METADATA)
        return str(tmp_path)

    return install


@pytest.fixture
def without_torchvision(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "torchvision":
            monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed: pip install 'rankscope[timm]'")
def test_a_torchvision_that_does_not_fit_is_not_missed(wheel, tmp_path):
    """Every look-up finds such a wheel, and importing it fails half way through. transformers fails with it as well."""
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    vit = transformers.ViTModel(transformers.ViTConfig(**small, image_size=16, patch_size=8))
    models = [folders.save(model, tmp_path / type(model).__name__) for model in (folders.bert(), vit)]
    (models[1] / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor"}')
    paths = [wheel(BROKEN), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", PROGRAM, *map(str, models)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["VisionTransformer [] True", "BertModel ViTModel", "False True"]


@pytest.mark.usefixtures("without_torchvision")
def test_a_torchvision_that_works_is_taken_and_stays(wheel, monkeypatch):
    monkeypatch.syspath_prepend(wheel("import warnings\nwarnings.warn('no codec')\n"))
    importlib.invalidate_caches()
    assert _torchvision_works()
    assert sys.modules["torchvision"].__file__


@pytest.mark.usefixtures("without_torchvision")
def test_a_failed_attempt_leaves_nothing_behind(wheel, monkeypatch):
    monkeypatch.syspath_prepend(wheel(BROKEN))
    importlib.invalidate_caches()
    before = set(sys.modules)
    assert not _torchvision_works()
    assert set(sys.modules) == before


@pytest.mark.usefixtures("without_torchvision")
def test_the_standin_has_every_name_and_is_gone_afterwards():
    finders, before = list(sys.meta_path), set(sys.modules)
    with _torchvision_standin():
        found = importlib.import_module("torchvision.transforms.functional")
        assert isinstance(found.InterpolationMode, type)
        assert found.InterpolationMode.BICUBIC == "BICUBIC"
    assert sys.meta_path == finders
    assert set(sys.modules) == before
