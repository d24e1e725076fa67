"""Tasks on which small transformers are trained: ``TASKS`` holds them, ``rankscope train TASK`` trains one."""

# Each file registers its task when it is imported; they are listed in this order.
# isort: off
from rankscope.studies.tasks import sort as sort
from rankscope.studies.tasks import hull as hull
from rankscope.studies.tasks import memorize as memorize
from rankscope.studies.tasks import circle as circle
from rankscope.studies.tasks import long_paths as long_paths

# isort: on
from rankscope.studies.tasks.checkpoint import Epoch as Epoch
from rankscope.studies.tasks.checkpoint import Trained as Trained
from rankscope.studies.tasks.checkpoint import initial_model as initial_model
from rankscope.studies.tasks.checkpoint import load_trained as load_trained
from rankscope.studies.tasks.checkpoint import save_trained as save_trained
from rankscope.studies.tasks.circle import CircleConfig as CircleConfig
from rankscope.studies.tasks.hull import HullConfig as HullConfig
from rankscope.studies.tasks.memorize import MemorizeConfig as MemorizeConfig
from rankscope.studies.tasks.sort import SortConfig as SortConfig
from rankscope.studies.tasks.task import TASKS as TASKS
from rankscope.studies.tasks.task import Task as Task
from rankscope.studies.tasks.task import TaskConfig as TaskConfig
from rankscope.studies.tasks.training import train as train

__all__ = [
    "TASKS",
    "CircleConfig",
    "Epoch",
    "HullConfig",
    "MemorizeConfig",
    "SortConfig",
    "Task",
    "TaskConfig",
    "Trained",
    "initial_model",
    "load_trained",
    "save_trained",
    "train",
]
