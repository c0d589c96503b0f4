// The features at time t: points and lattice where the flow has carried them, and the cut between both classes.

import { Camera, boxOf, polygon } from "./camera.js";
import { colours, css, dot, pen, tint } from "./canvas.js";

const FOLLOW = 0.12; // how fast the view follows what it shows
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Features {
  constructor(canvas, plane) {
    Object.assign(this, { canvas, plane, model: null, bounds: null });
    this.camera = new Camera(canvas);
  }

  show(model) {
    this.model = model;
    this.canvas.classList.toggle("solid", model.paths.axes > 2);
    this.camera.enabled = model.paths.axes > 2;
  }

  draw(t, seconds) {
    const { draw, wide, high } = pen(this.canvas);
    if (!wide) return;
    draw.clearRect(0, 0, wide, high);
    if (!this.model?.paths.known) return;
    this.follow();
    if (this.model.paths.axes > 2) {
      if (!still.matches) this.camera.drift(seconds);
      this.drawSolid(draw, wide, high, t);
    } else {
      this.drawFlat(draw, wide, high, t);
    }
  }

  /** Let the view follow the points, on all of their way. */
  follow() {
    const { paths } = this.model, low = [Infinity, Infinity, Infinity], high = [-Infinity, -Infinity, -Infinity];
    for (let time = 0; time < paths.times; time++) {
      for (let path = paths.nodes; path < paths.count; path++) {
        for (let axis = 0; axis < paths.axes; axis++) {
          const value = paths.values[(time * paths.count + path) * paths.axes + axis];
          low[axis] = Math.min(low[axis], value);
          high[axis] = Math.max(high[axis], value);
        }
      }
    }
    const wanted = [low, high].map((ends) => ends.slice(0, paths.axes));
    const same = this.bounds?.[0].length === paths.axes;
    const part = same && !still.matches ? FOLLOW : 1;
    this.bounds = wanted.map((ends, k) => ends.map((value, i) => (same ? this.bounds[k][i] : value) * (1 - part) + value * part));
  }

  drawFlat(draw, wide, high, t) {
    const [low, up] = this.bounds, palette = colours(), { paths, head: [wx, wy, bias] } = this.model;
    const scale = 0.88 * Math.min(wide / (up[0] - low[0] || 1), high / (up[1] - low[1] || 1));
    const middle = [(low[0] + up[0]) / 2, (low[1] + up[1]) / 2];
    const at = ([x, y]) => [wide / 2 + (x - middle[0]) * scale, high / 2 - (y - middle[1]) * scale];
    const length = wx * wx + wy * wy;
    if (length > 1e-12) { // the prediction is linear here, so that a gradient shows it as it is
      const along = (told) => at([wx * (told - bias) / length, wy * (told - bias) / length]);
      const shade = draw.createLinearGradient(...along(-1), ...along(1));
      for (let k = 0; k <= 8; k++) shade.addColorStop(k / 8, css(tint(k / 4 - 1, palette, 0.3)));
      draw.fillStyle = shade;
      draw.fillRect(0, 0, wide, high);
      const [x, y] = along(0), far = wide + high, norm = Math.hypot(wx, wy);
      const [ux, uy] = [wy / norm * far, wx / norm * far];
      draw.strokeStyle = palette.ink;
      draw.setLineDash([6, 5]);
      draw.lineWidth = 1.5;
      draw.beginPath();
      draw.moveTo(x - ux, y - uy);
      draw.lineTo(x + ux, y + uy);
      draw.stroke();
      draw.setLineDash([]);
    }
    this.drawLattice(draw, t, at, palette);
    const state = [0, 0, 0];
    for (let path = paths.nodes; path < paths.count; path++) this.drawPoint(draw, path, at(paths.at(path, t, state)), wide, palette);
    this.drawMarked(draw, t, at, palette);
  }

  drawSolid(draw, wide, high, t) {
    const { paths, head } = this.model, palette = colours(), box = boxOf(this.bounds);
    const at = this.camera.projection(box, wide, high);
    draw.lineWidth = 1;
    draw.strokeStyle = palette.line;
    for (const [from, to] of box.edges) {
      draw.beginPath();
      draw.moveTo(...at(from));
      draw.lineTo(...at(to));
      draw.stroke();
    }
    this.drawLattice(draw, t, at, palette);
    const cut = polygon(box, head);
    const state = [0, 0, 0], dots = [];
    for (let path = paths.nodes; path < paths.count; path++) {
      paths.at(path, t, state);
      const told = head[3] + state.reduce((sum, value, i) => sum + value * head[i], 0);
      const [x, y, depth] = at(state);
      dots.push({ path, x, y, depth, above: told > 0 });
    }
    dots.sort((a, b) => b.depth - a.depth);
    const eye = this.camera.eye(box), eyeAbove = head[3] + eye.reduce((sum, value, i) => sum + value * head[i], 0) > 0;
    for (const each of dots) if (each.above !== eyeAbove) this.drawPoint(draw, each.path, [each.x, each.y], wide, palette);
    if (cut.length > 2) { // behind it are the points on its other side
      draw.beginPath();
      for (const corner of cut) draw.lineTo(...at(corner));
      draw.closePath();
      draw.fillStyle = palette.muted;
      draw.globalAlpha = 0.22;
      draw.fill();
      draw.globalAlpha = 0.9;
      draw.strokeStyle = palette.muted;
      draw.stroke();
      draw.globalAlpha = 1;
    }
    for (const each of dots) if (each.above === eyeAbove) this.drawPoint(draw, each.path, [each.x, each.y], wide, palette);
    this.drawMarked(draw, t, at, palette);
    this.drawNames(draw, box, at, palette);
  }

  drawNames(draw, box, at, palette) {
    draw.fillStyle = palette.muted;
    draw.font = "13px system-ui, sans-serif";
    draw.textAlign = "center";
    draw.textBaseline = "middle";
    ["x₁", "x₂", this.model.p > 1 ? "added" : "a"].forEach((name, axis) => { // at the lowest edge, or for the third at the leftmost
      const middles = box.edges.slice(4 * axis, 4 * axis + 4).map(([from, to]) => at(from.map((value, i) => (value + to[i]) / 2)));
      const [x, y] = middles.reduce((best, each) => ((axis < 2 ? each[1] > best[1] : each[0] < best[0]) ? each : best));
      draw.fillText(name, x + (axis < 2 ? 0 : -16), y + (axis < 2 ? 12 : 0));
    });
  }

  drawLattice(draw, t, at, palette) {
    const { paths } = this.model, { columns, rows } = paths, state = [0, 0, 0];
    const places = Array.from({ length: paths.nodes }, (_, node) => at(paths.at(node, t, state)));
    draw.beginPath();
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const [x, y] = places[row * columns + column];
        if (column + 1 < columns) { draw.moveTo(x, y); draw.lineTo(...places[row * columns + column + 1]); }
        if (row + 1 < rows) { draw.moveTo(x, y); draw.lineTo(...places[(row + 1) * columns + column]); }
      }
    }
    draw.lineWidth = 0.7;
    draw.strokeStyle = palette.muted;
    draw.globalAlpha = 0.4;
    draw.stroke();
    draw.globalAlpha = 1;
  }

  drawPoint(draw, path, [x, y], wide, palette) {
    const { followed, labels, paths } = this.model;
    draw.fillStyle = palette.labels[labels[followed[path - paths.nodes]]];
    dot(draw, x, y, Math.max(1.7, wide / 190));
    draw.lineWidth = 0.5;
    draw.strokeStyle = palette.paper;
    draw.stroke();
  }

  /** The point under the pointer, at time t. */
  drawMarked(draw, t, at, palette) {
    const place = this.plane.pointer, state = place && !this.plane.painted && this.model.paths.ofPlace(...place, t);
    if (!state) return;
    const [x, y] = at(state);
    draw.strokeStyle = palette.ink;
    draw.lineWidth = 2;
    draw.beginPath();
    draw.arc(x, y, 6, 0, 2 * Math.PI);
    draw.stroke();
  }
}
