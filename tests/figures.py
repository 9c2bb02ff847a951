"""What a reader sees of a figure."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def blank_panels(figure: Figure) -> list[int]:
    """The panels that look the same without their data; a line right across a panel is none."""
    canvas = FigureCanvasAgg(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_visible(False)  # most of the time of a drawing
    canvas.draw()
    seen = np.array(canvas.buffer_rgba())
    for axes in figure.axes:
        for artist in (*axes.lines, *axes.collections, *axes.images, *axes.patches):
            along_x, along_y = artist.get_transform().contains_branch_seperately(axes.transData)
            artist.set_visible(along_x != along_y)
    canvas.draw()
    changed = (seen != np.array(canvas.buffer_rgba())).any(-1)[::-1]  # from the bottom up
    boxes = [axes.get_window_extent().extents.round().astype(int) for axes in figure.axes]
    return [
        place
        for place, (left, bottom, right, top) in enumerate(boxes)
        if not changed[bottom:top, left:right].any()
    ]
