"""Long work in small tasks: given to processes or to a cluster, and written down as it is done.

``run`` computes tasks here, in processes of this machine (joblib's loky) or on a Ray cluster, and yields each as it is
done, in any order. ``Ledger`` keeps what is done in a folder, so that a run that was killed goes on where it was. Both
know nothing of what is computed. A study uses them together::

    with Ledger.open(folder, kind="sweep", asked=spec_as_json) as ledger:
        left = [Task(key, argument) for key, argument in everything if key not in ledger]
        for done in run(compute, left, workers=4):      # or cluster="ray"; compute is a function of a module
            ledger.record([Entry(done.key, part=done.value, failure=done.failure)])
        parts = [ledger.read(key) for key, _ in everything]  # in the order of the question, whoever was first

The worker function takes one argument and returns one value; both are pickled. It runs with one thread, wherever it
runs, so that numbers are the same bit for bit. An exception that it raises is a ``failure`` of that task, in words. A
process that dies costs its tasks one retry each. ``WorkerUnfit`` ends the run: this machine lacks something.
"""

from rankscope.work.ledger import Entry as Entry
from rankscope.work.ledger import Ledger as Ledger
from rankscope.work.run import run as run
from rankscope.work.run import task_key as task_key
from rankscope.work.scheduler import Done as Done
from rankscope.work.scheduler import Task as Task
from rankscope.work.worker import WorkerUnfit as WorkerUnfit
from rankscope.work.worker import one_thread as one_thread

__all__ = ["Done", "Entry", "Ledger", "Task", "WorkerUnfit", "one_thread", "run", "task_key"]
