"""Whatever text goes in, the elements that come out are ours."""

from hypothesis import given
from hypothesis import strategies as st

from kit.html_reader import Reader
from rankscope.plots.markup import Fragment, joined, tag, void

# Carriage returns are line ends to a browser, whatever the escape.
TEXT = st.text(st.characters(exclude_characters="\r\x00", exclude_categories=["Cs"]))


@given(TEXT, TEXT)
def test_text_and_attributes_come_back_as_they_went_in(text, value):
    read = Reader(tag("p", text, title=value))
    assert read.elements == [("p", {"title": value})]
    assert "".join(read.text) == text


@given(TEXT)
def test_fragments_are_put_in_as_they_are_and_texts_are_not(text):
    read = Reader(tag("p", tag("b", text), text))
    assert [name for name, _ in read.elements] == ["p", "b"]
    assert "".join(read.text) == text + text


def test_attributes_are_left_out_or_stand_alone():
    assert tag("td", class_=None, hidden=True, lang=False) == "<td hidden></td>"
    assert void("input", type="radio", name="g") == '<input type="radio" name="g">'


def test_a_fragment_is_text_and_says_that_it_is_html():
    found = joined("<", Fragment("<b>"))
    assert found == "&lt;<b>"
    assert found.__html__() == found
    assert isinstance(found, str)
