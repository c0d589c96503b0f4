// The plane: what a model predicts at each point, the data, the flow, and where the point under the pointer goes.

import { colours, dot, pen, tint } from "./canvas.js";

const SURFACE = 0.5; // how strong the colours of predictions are
const PARTICLES = 110;
const TRAIL = 0.22; // how much time a trail shows

export class Plane {
  constructor(canvas, where) {
    Object.assign(this, { canvas, where, model: null, painted: null, pointer: null, brush: null, still: null });
    this.layer = document.createElement("canvas"); // what changes with the model alone
    this.small = document.createElement("canvas"); // the surface, a pixel for each prediction
    canvas.addEventListener("pointermove", (event) => { this.pointer = this.place(event); });
    canvas.addEventListener("pointerleave", () => { this.pointer = null; });
  }

  show(model) { this.model = model; this.still = null; }
  paint(points) { this.painted = points; this.still = null; }
  restyle() { this.still = null; }

  /** The point of the plane at a place of the page. */
  place({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect(), { wide, high } = this.view;
    return [((clientX - box.left) / box.width * 2 - 1) * wide, (1 - (clientY - box.top) / box.height * 2) * high];
  }

  get view() { return this.model?.view ?? { wide: 2.4, high: 1.8 }; }

  draw(t) {
    const { draw, wide, high, sharp, resized } = pen(this.canvas);
    if (!wide) return;
    const { view } = this;
    const at = (x, y) => [(x / view.wide + 1) / 2 * wide, (1 - y / view.high) / 2 * high];
    if (!this.still || resized) this.drawStill(wide, high, sharp, at);
    draw.clearRect(0, 0, wide, high);
    draw.drawImage(this.layer, 0, 0, wide, high);
    if (this.model?.paths.known && !this.painted) this.drawFlow(draw, at, t);
    this.drawPointer(draw, at, t);
  }

  drawStill(wide, high, sharp, at) {
    Object.assign(this.layer, { width: wide * sharp, height: high * sharp });
    const draw = this.layer.getContext("2d"), palette = colours();
    draw.setTransform(sharp, 0, 0, sharp, 0, 0);
    draw.fillStyle = palette.ground;
    draw.fillRect(0, 0, wide, high);
    if (this.model && this.painted?.length !== 0) {
      this.drawSurface(draw, wide, high, palette);
      this.drawContour(draw, wide, high, palette);
    }
    this.drawPoints(draw, wide, at, palette);
    this.still = true;
  }

  drawSurface(draw, wide, high, palette) {
    const { surface, view: { columns, rows } } = this.model;
    Object.assign(this.small, { width: columns, height: rows });
    const pixels = new ImageData(columns, rows);
    surface.forEach((value, i) => pixels.data.set([...tint(value / 127, palette, SURFACE), 255], 4 * i));
    this.small.getContext("2d").putImageData(pixels, 0, 0);
    draw.imageSmoothingQuality = "high";
    // Pixels are the nodes of a mesh that reaches to the edges, so half a pixel lies outside on each side.
    const dx = wide / (columns - 1), dy = high / (rows - 1);
    draw.drawImage(this.small, -dx / 2, -dy / 2, wide + dx, high + dy);
  }

  /** The line on which the prediction is zero, cell by cell. */
  drawContour(draw, wide, high, palette) {
    const { surface, view: { columns, rows } } = this.model;
    const dx = wide / (columns - 1), dy = high / (rows - 1);
    draw.beginPath();
    for (let row = 0; row + 1 < rows; row++) {
      for (let column = 0; column + 1 < columns; column++) {
        const i = row * columns + column;
        const corners = [surface[i], surface[i + 1], surface[i + columns + 1], surface[i + columns]];
        const places = [[column, row], [column + 1, row], [column + 1, row + 1], [column, row + 1]];
        const ends = [];
        for (let k = 0; k < 4; k++) {
          const a = corners[k], b = corners[(k + 1) % 4];
          if (a < 0 === b < 0) continue;
          const part = a / (a - b), [x0, y0] = places[k], [x1, y1] = places[(k + 1) % 4];
          ends.push([(x0 + (x1 - x0) * part) * dx, (y0 + (y1 - y0) * part) * dy]);
        }
        for (let k = 0; k + 1 < ends.length; k += 2) {
          draw.moveTo(...ends[k]);
          draw.lineTo(...ends[k + 1]);
        }
      }
    }
    draw.strokeStyle = palette.ink;
    draw.globalAlpha = 0.75;
    draw.lineWidth = 1.5;
    draw.stroke();
    draw.globalAlpha = 1;
  }

  *points() {
    if (this.painted) return yield* this.painted;
    if (this.model) for (let i = 0; i < this.model.labels.length; i++) yield [this.model.x[2 * i], this.model.x[2 * i + 1], this.model.labels[i]];
  }

  drawPoints(draw, wide, at, palette) {
    const radius = Math.max(1.5, wide / 220);
    draw.lineWidth = 0.6;
    draw.strokeStyle = palette.paper;
    for (const [x, y, label] of this.points()) {
      draw.fillStyle = palette.labels[label];
      dot(draw, ...at(x, y), radius);
      draw.stroke();
    }
  }

  drawFlow(draw, at, t) {
    const { paths, followed, labels } = this.model, palette = colours();
    const every = Math.max(Math.floor(followed.length / PARTICLES), 1), state = [0, 0, 0];
    draw.lineCap = "round";
    for (let i = 0; i < followed.length; i += every) {
      const path = paths.nodes + i, begin = Math.max(t - TRAIL, 0), steps = 6;
      draw.beginPath();
      for (let k = 0; k <= steps; k++) {
        paths.at(path, begin + (t - begin) * k / steps, state);
        draw.lineTo(...at(state[0], state[1]));
      }
      draw.strokeStyle = palette.ink;
      draw.globalAlpha = 0.35;
      draw.lineWidth = 1.2;
      draw.stroke();
      draw.globalAlpha = 1;
      const [x, y] = at(state[0], state[1]);
      draw.fillStyle = palette.ink;
      dot(draw, x, y, 3.1);
      draw.fillStyle = palette.labels[labels[followed[i]]];
      dot(draw, x, y, 2.1);
    }
  }

  drawPointer(draw, at, t) {
    const place = this.brush ?? this.pointer, palette = colours();
    this.where.textContent = "";
    if (!place) return;
    draw.strokeStyle = palette.ink;
    draw.lineWidth = 1.5;
    const [x, y] = at(...place);
    draw.beginPath();
    draw.arc(x, y, 6, 0, 2 * Math.PI);
    draw.stroke();
    if (this.painted || !this.model?.paths.known) return;
    const { paths, head } = this.model, end = paths.ofPlace(...place, 1);
    if (!end) return;
    draw.beginPath();
    for (let k = 0; k <= 32; k++) draw.lineTo(...at(...paths.ofPlace(...place, k / 32).slice(0, 2)));
    draw.lineWidth = 2;
    draw.stroke();
    draw.fillStyle = palette.ink;
    dot(draw, ...at(end[0], end[1]), 4);
    const told = end.reduce((sum, value, i) => sum + value * head[i], head.at(-1));
    const coordinates = (values) => `(${values.map((value) => value.toFixed(2).replace("-", "−")).join(", ")})`;
    this.where.textContent = `${coordinates(place)} → ${coordinates(end)}, predicts ${told.toFixed(2).replace("-", "−")}`;
  }
}
