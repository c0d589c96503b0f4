"""Made-up data to plot: points of a disc within an annulus, and smooth flows of them."""

import numpy as np

TIMES = np.linspace(0, 1, 31)


def disc_and_annulus(inner=60, outer=120, seed=0):
    """Points [points, 2] and their labels, 0 in the disc and 1 around it."""
    generator = np.random.default_rng(seed)
    radii = np.sqrt(np.concatenate([generator.uniform(0, 0.25, inner), generator.uniform(1, 2.25, outer)]))
    angles = generator.uniform(0, 2 * np.pi, inner + outer)
    labels = np.repeat([0, 1], [inner, outer])
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], -1), labels


def turning_flow(points, times=TIMES):
    """Rotation that grows inwards, and expansion: [times, points, 2]."""
    t = times[:, None]
    radii, angles = np.linalg.norm(points, axis=1), np.arctan2(points[:, 1], points[:, 0])
    turned = angles + 1.6 * t / (0.6 + radii)
    grown = radii * (1 + 0.5 * t)
    return np.stack([grown * np.cos(turned) + 0.6 * t, grown * np.sin(turned)], -1)


def lifting_flow(points, labels, times=TIMES):
    """Both classes leave the plane, in opposite directions: [times, points, 3]."""
    t = times[:, None, None]
    height = np.where(labels == 1, 1.0, -1.0) * (1 + 0.15 * np.sin(3 * points[:, 0]))
    squeezed = points * (1 - 0.4 * t)
    return np.concatenate([squeezed, t**1.3 * np.broadcast_to(height[:, None], (len(times), len(points), 1))], -1)
