"""Citations of statements, not of papers: where a formula or a bound comes from, and where we depart from it."""

from dataclasses import dataclass

PAPERS = {
    "dong2021": "Dong, Cordonnier, Loukas. Attention is not all you need: pure attention loses rank doubly "
    "exponentially with depth. ICML 2021, arXiv:2103.03404",
    "wu2024": "Wu, Ajorlou, Wang, Jegelka, Jadbabaie. On the role of attention masks and LayerNorm in "
    "transformers. NeurIPS 2024, arXiv:2405.18781",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ref:
    """One statement of one paper. ``key`` is a key of ``PAPERS`` or a self-contained citation."""

    key: str
    where: str
    differs: str = ""

    def __str__(self) -> str:
        text = f"{self.key}, {self.where}"
        return f"{text} ({self.differs})" if self.differs else text
