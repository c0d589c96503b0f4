// A picture as the server packs it: the length of a JSON text, the text, and arrays that it lists.

const TYPES = { float32: Float32Array, int32: Int32Array, int8: Int8Array, uint8: Uint8Array };

/** The numbers of a message, with its arrays by name under `arrays`. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  const arrays = {};
  for (const [name, type, shape] of head.arrays) {
    const values = new TYPES[type](buffer, at, shape.reduce((a, b) => a * b, 1));
    arrays[name] = { values, shape };
    at += Math.ceil(values.byteLength / 4) * 4;
  }
  return { ...head, arrays };
}

/** What is drawn of one of both models. */
export function modelOf(picture, number) {
  const { x, labels, followed } = picture.arrays;
  const of = (name) => picture.arrays[`${name}${number}`];
  return {
    ...picture.models[number],
    view: picture.view,
    x: x.values,
    labels: labels.values,
    followed: followed.values,
    surface: of("surface").values,
    paths: new Paths(of("paths"), picture.view),
    curve: of("curve"),
  };
}

/** Where the flow carries the nodes of a lattice and some of the data points. */
export class Paths {
  constructor({ values, shape: [times, count, axes] }, { lattice: [columns, rows], wide, high }) {
    Object.assign(this, { values, times, count, axes, columns, rows, wide, high });
    this.nodes = columns * rows;
    this.known = Number.isFinite(values[0]);
  }

  /** The state of a path at a time from 0 to 1, written to `out`. */
  at(path, t, out) {
    const place = Math.min(Math.max(t, 0), 1) * (this.times - 1);
    const before = Math.min(Math.floor(place), this.times - 2), part = place - before;
    const a = (before * this.count + path) * this.axes, b = a + this.count * this.axes;
    for (let i = 0; i < this.axes; i++) out[i] = (1 - part) * this.values[a + i] + part * this.values[b + i];
    return out;
  }

  /** The state of any point of the plane, in between the nodes around it; null outside of the lattice. */
  ofPlace(x, y, t) {
    const across = ((x + this.wide) / (2 * this.wide)) * (this.columns - 1);
    const down = ((this.high - y) / (2 * this.high)) * (this.rows - 1);
    if (across < 0 || down < 0 || across > this.columns - 1 || down > this.rows - 1) return null;
    const column = Math.min(Math.floor(across), this.columns - 2), row = Math.min(Math.floor(down), this.rows - 2);
    const right = across - column, below = down - row, out = new Array(this.axes).fill(0), node = [0, 0, 0];
    for (const [dx, dy] of [[0, 0], [1, 0], [0, 1], [1, 1]]) {
      const weight = (dx ? right : 1 - right) * (dy ? below : 1 - below);
      this.at((row + dy) * this.columns + column + dx, t, node);
      for (let i = 0; i < this.axes; i++) out[i] += weight * node[i];
    }
    return out;
  }
}
