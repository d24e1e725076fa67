"""A toy command, as somebody would add it: it counts the tokens of texts. This half needs no torch."""

from typing import ClassVar

from rankscope.charts import Bar, Bars, Chart
from rankscope.core.words import count
from rankscope.document import Column, Document, Figure, Section, Tabular, Verdict
from rankscope.findings.asked import CommandConfig, option
from rankscope.findings.base import Finding, Value


class CountConfig(CommandConfig):
    """Count the tokens of texts, cut at spaces."""

    group = "Texts"
    text: tuple[str, ...] = option((), "A text; may be given several times.", many=True, min_length=1)
    longest: int | None = option(None, "Count at most so many tokens of a text.", ge=1, shown="all")


class Counted(Value):
    """The tokens of one text."""

    text: str
    tokens: int


class CountFinding(Finding):
    command: ClassVar[str] = "count"
    texts: tuple[Counted, ...]

    @property
    def words(self) -> tuple[str, ...]:
        total = sum(one.tokens for one in self.texts)
        return (f"There are {count(total, 'token')} in {count(len(self.texts), 'text')}.",)

    def document(self) -> Document:
        rows = [[one.text, str(one.tokens)] for one in self.texts]
        table = Tabular(columns=[Column("text", "words"), Column("tokens")], rows=rows)
        pictures = [Figure(picture) for picture in self.chart().pictures]
        return Document(
            title="Tokens of texts",
            command=self.command,
            blocks=[Verdict("Counted", self.words, "good"), table, Section("Picture", pictures)],
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        bars = [Bar(one.text, float(one.tokens), str(one.tokens)) for one in self.texts]
        return Chart([Bars(title="Tokens of every text", bars=bars, value="tokens")])
