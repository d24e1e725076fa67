"""Tasks on which small transformers are trained: ``TASKS`` holds them, ``rankscope train TASK`` trains one."""

# Each file registers its task when it is imported; they are listed in this order.
# isort: off
from rankscope.papers.tasks import sort as sort
from rankscope.papers.tasks import hull as hull
from rankscope.papers.tasks import memorize as memorize
from rankscope.papers.tasks import circle as circle
from rankscope.papers.tasks import long_paths as long_paths

# isort: on
from rankscope.papers.tasks.checkpoint import Epoch as Epoch
from rankscope.papers.tasks.checkpoint import Trained as Trained
from rankscope.papers.tasks.checkpoint import initial_model as initial_model
from rankscope.papers.tasks.checkpoint import load_trained as load_trained
from rankscope.papers.tasks.checkpoint import save_trained as save_trained
from rankscope.papers.tasks.circle import CircleConfig as CircleConfig
from rankscope.papers.tasks.hull import HullConfig as HullConfig
from rankscope.papers.tasks.memorize import MemorizeConfig as MemorizeConfig
from rankscope.papers.tasks.sort import SortConfig as SortConfig
from rankscope.papers.tasks.study import train as train
from rankscope.papers.tasks.task import TASKS as TASKS
from rankscope.papers.tasks.task import Task as Task
from rankscope.papers.tasks.task import TaskConfig as TaskConfig
from rankscope.papers.tasks.training import train_task as train_task

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
    "train_task",
]
