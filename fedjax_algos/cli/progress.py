"""What the commands' bars of progress have in common."""

from rich.console import RenderableType
from rich.progress import ProgressColumn, Task, TaskID
from rich.text import Text

from fedjax_algos.engine.compilation import Compilation


class StatusColumn(ProgressColumn):
    """The status of each task, or `compiling` for the current one while a program is compiled.

    Attributes:
      current: the task that runs now, set by the command; None before the first one.
    """

    def __init__(self, compiled: Compilation):
        super().__init__()
        self._compiled = compiled
        self.current: TaskID | None = None

    def render(self, task: Task) -> RenderableType:
        """Rich's hook: the text beside a bar.

        Args:
          task: of the bar.
        """
        runs = task.id == self.current and not task.finished
        is_compiling = runs and self._compiled.is_compiling
        return Text("compiling" if is_compiling else task.fields.get("status", ""))
