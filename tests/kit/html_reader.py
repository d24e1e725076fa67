"""Reads HTML as a browser would take it apart: elements, attributes, and the text outside of style elements."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "input", "link", "hr"}


class Reader(HTMLParser):
    """Elements with their attributes in order, and the words; every element must be closed in its place."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def of(self, tag, **attributes):
        """Attributes of the elements of that name that have those attributes."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [one for name, one in self.elements if name == tag and wanted.items() <= one.items()]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    @property
    def handlers(self):
        return [name for _, attributes in self.elements for name in attributes if name.startswith("on")]
