"""A page about one run, made from its table alone. Needs the extra ``plots`` (jinja2 comes with it); no torch."""

from rankscope.report.page import page as page

__all__ = ["page"]
