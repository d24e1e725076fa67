"""A page about one run, made from its table alone. Needs the extra ``plots`` (jinja2 comes with it); no torch."""

from rankscope.report.page import page as page
from rankscope.report.scan_fragment import scan_summary_html as scan_summary_html
from rankscope.report.scan_page import scan_page as scan_page

__all__ = ["page", "scan_page", "scan_summary_html"]
