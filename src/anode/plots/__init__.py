"""Plots of training runs, flows and feature spaces, from arrays to matplotlib figures."""

from anode.extras import needs

needs("anode.plots", "plots")

from anode.plots.animate import feature_frames, gif, trajectory_frames
from anode.plots.classes import class_legend
from anode.plots.densities import density, samples
from anode.plots.features import scatter, strip
from anode.plots.flows import flow_1d, flow_2d, flow_3d, project_3d, vector_field_1d
from anode.plots.planes import colorbar, plane, regions
from anode.plots.rows import rows
from anode.plots.series import band, compared, curves, paths
from anode.plots.style import CLASS_COLORS, MODEL_COLORS, bare, clean, figure, grid, legend, save, shades, shared_legend

__all__ = [
    "CLASS_COLORS",
    "MODEL_COLORS",
    "band",
    "bare",
    "class_legend",
    "clean",
    "colorbar",
    "compared",
    "curves",
    "density",
    "feature_frames",
    "figure",
    "flow_1d",
    "flow_2d",
    "flow_3d",
    "gif",
    "grid",
    "legend",
    "paths",
    "plane",
    "project_3d",
    "regions",
    "rows",
    "samples",
    "save",
    "scatter",
    "shades",
    "shared_legend",
    "strip",
    "trajectory_frames",
    "vector_field_1d",
]
