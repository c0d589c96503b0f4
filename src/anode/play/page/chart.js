// Curves of both models over the iterations, each with its name and its last value at its end.

import { colours, pen } from "./canvas.js";

const PAD = { left: 46, right: 96, top: 8, bottom: 22 };

export class Chart {
  /** @param row which row of a model's curve to show @param logarithmic whether its axis is @param write numbers as text */
  constructor(canvas, row, logarithmic, write) {
    Object.assign(this, { canvas, row, logarithmic, write, models: [], stale: true });
    new ResizeObserver(() => { this.stale = true; }).observe(canvas);
  }

  show(models) { this.models = models; this.stale = true; }
  restyle() { this.stale = true; }

  draw() {
    if (!this.stale) return;
    this.stale = false;
    const { draw, wide, high } = pen(this.canvas), palette = colours();
    draw.clearRect(0, 0, wide, high);
    draw.font = "12px system-ui, sans-serif";
    const series = this.models.map((model) => this.series(model));
    const most = Math.max(1, ...series.flatMap(({ at }) => at.slice(-1)));
    const [low, top] = this.range(series.flatMap(({ values }) => values));
    const place = this.logarithmic ? Math.log10 : (value) => value;
    const x = (at) => PAD.left + at / most * (wide - PAD.left - PAD.right);
    const y = (value) => PAD.top + (1 - (place(value) - place(low)) / (place(top) - place(low) || 1)) * (high - PAD.top - PAD.bottom);
    this.drawAxes(draw, wide, high, palette, this.ticks(low, top), x, y, most);
    const ends = [];
    series.forEach(({ at, values }, k) => {
      if (!values.length) return;
      draw.strokeStyle = palette[k ? "anode-line" : "node-line"];
      draw.lineWidth = 2;
      draw.lineJoin = "round";
      draw.beginPath();
      values.forEach((value, i) => draw.lineTo(x(at[i]), y(value)));
      draw.stroke();
      ends.push({ k, x: x(at.at(-1)) + 6, y: y(values.at(-1)), text: `${this.models[k].name} ${this.write(values.at(-1))}` });
    });
    this.drawNames(draw, ends, palette);
  }

  series({ curve: { values, shape } }) {
    const count = shape[1], at = [...values.subarray(0, count)], found = [...values.subarray(this.row * count, (this.row + 1) * count)];
    const kept = found.map((value, i) => i).filter((i) => Number.isFinite(found[i]) && (!this.logarithmic || found[i] > 0));
    return { at: kept.map((i) => at[i]), values: kept.map((i) => found[i]) };
  }

  range(values) {
    if (!values.length) return this.logarithmic ? [1e-3, 1] : [0, 50];
    const low = Math.min(...values), high = Math.max(...values);
    if (!this.logarithmic) return [0, Math.max(high * 1.1, 10)];
    return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high) + 1e-9)];
  }

  ticks(low, top) {
    if (this.logarithmic) {
      const found = [];
      for (let power = Math.round(Math.log10(low)); power <= Math.round(Math.log10(top)); power++) found.push(10 ** power);
      return found;
    }
    const rough = (top - low) / 4, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * unit).find((each) => each >= rough);
    return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
  }

  drawAxes(draw, wide, high, palette, ticks, x, y, most) {
    draw.lineWidth = 1;
    draw.textBaseline = "middle";
    draw.textAlign = "right";
    for (const value of ticks) {
      draw.strokeStyle = palette.line;
      draw.beginPath();
      draw.moveTo(PAD.left, y(value));
      draw.lineTo(wide - PAD.right, y(value));
      draw.stroke();
      draw.fillStyle = palette.muted;
      draw.fillText(this.logarithmic ? power(value) : String(Number(value.toPrecision(3))), PAD.left - 6, y(value));
    }
    draw.textBaseline = "alphabetic";
    draw.textAlign = "left";
    draw.fillText("0", PAD.left, high - 5);
    draw.textAlign = "right";
    draw.fillText(`${most > 1 ? most.toLocaleString("en") : ""} iterations`, wide - PAD.right, high - 5);
  }

  /** Names at the ends of the curves, moved apart where they would overlap. */
  drawNames(draw, ends, palette) {
    ends.sort((a, b) => a.y - b.y);
    if (ends.length === 2 && ends[1].y - ends[0].y < 15) {
      const middle = (ends[0].y + ends[1].y) / 2;
      ends[0].y = middle - 7.5;
      ends[1].y = middle + 7.5;
    }
    draw.textAlign = "left";
    draw.textBaseline = "middle";
    for (const { k, x, y, text } of ends) {
      draw.fillStyle = palette[k ? "anode" : "node"];
      draw.fillText(text, x, y);
    }
  }
}

function power(value) { return value >= 0.001 ? String(Number(value.toPrecision(1))) : value.toExponential(0).replace("e-", "e−"); }
