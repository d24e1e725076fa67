"""Names of ``statistics`` under which figures that are not declared yet import them."""

from rankscope.papers.figures.statistics import all_within as all_within
from rankscope.papers.figures.statistics import side as side
from rankscope.papers.figures.statistics import together as together
from rankscope.papers.figures.statistics import within as within
