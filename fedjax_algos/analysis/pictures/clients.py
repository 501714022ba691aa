"""Draws how clients are served: the accuracy and the number of dispatches of each client."""

from pathlib import Path

import numpy as np

from fedjax_algos.analysis.labels import display_names, label_text
from fedjax_algos.analysis.pictures import axes as shared
from fedjax_algos.analysis.pictures.axes import PictureStyle
from fedjax_algos.analysis.pictures.curves import method_styles
from fedjax_algos.analysis.rows import rows_by_run
from fedjax_algos.core import Row

_POINTS = 201  # of a line
_MAX_IN_A_COLUMN = 6  # of the legend


def plot_clients(rows: list[Row], path: str | Path, style: PictureStyle = "screen") -> None:
    """Draws the distribution over clients of their accuracy and dispatches to a file.

    Each line is a quantile function: at the share s of clients, the value that this share does not
    exceed. It is the mean of the quantile functions of all seeds. Equal clients give a level line.
    Without values on a seed, such as dispatches of cohorts chosen among candidates, there is no
    line.

    Args:
      rows: the rows of `clients.csv`, with `method`, `seed`, `accuracy` and `participations`.
      path: the file to write; its suffix says the format: .png, .pdf or .svg.
      style: "screen"; or "paper", which is as wide as two columns of a paper and has no titles.

    Raises:
      ValueError: for another format or style.
    """
    from matplotlib.figure import Figure  # slow to import; without pyplot's global state

    runs, shares = rows_by_run(rows), np.linspace(0, 1, _POINTS)
    names, styles = display_names(runs), method_styles(runs)
    with shared.picture_style(style) as look:
        size = (8.5, 3.6) if style == "screen" else (shared.TEXT_WIDTH, 2.6)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, 2, sharex=True)
        titles = "Accuracy of each client", "Dispatches of each client"
        for axes, column, title in zip(panels, ("accuracy", "participations"), titles, strict=True):
            for label, by_seed in runs.items():
                own = [np.array([row[column] for row in rows], float) for rows in by_seed.values()]
                known = [each[~np.isnan(each)] for each in own]
                if not all(map(len, known)):
                    continue
                found = [np.quantile(each, shares) for each in known]
                own_look = {"color": styles[label].colour, "linestyle": styles[label].line}
                own_look |= {"label": label_text(names[label]), "linewidth": 1.6 * look.lines}
                axes.plot(shares, np.mean(found, 0), **own_look)
            axes.set(xlabel="share of clients, from the lowest value", xlim=(0, 1))
            axes.set(ylabel=column, ylim=(0, 1) if column == "accuracy" else (0, None))
            axes.grid(alpha=0.25)
            shared.finish_axes(axes, style, title)
        columns = min(len(runs), _MAX_IN_A_COLUMN)
        if len(runs) > 1:
            handles, texts = panels[0].get_legend_handles_labels()
            options = {"ncols": columns, "frameon": False, "fontsize": look.small}
            figure.legend(handles, texts, loc="outside lower center", **options)
    shared.save_figure(figure, path, style)
