// What all drawings share: colours, and canvases as sharp as the screen.

let palette = null;

/** The colours of the theme, read once. */
export function colours() {
  if (palette) return palette;
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ground", "ink", "muted", "line", "accent", "label-0", "label-1", "node-line", "anode-line", "node", "anode"];
  palette = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  palette.labels = [palette["label-0"], palette["label-1"]];
  palette.rgb = Object.fromEntries(["paper", "ground", "label-0", "label-1"].map((name) => [name, channels(palette[name])]));
  return palette;
}

export function forgetColours() { palette = null; }

function channels(hex) {
  const full = hex.length === 4 ? [...hex.slice(1)].map((digit) => digit + digit).join("") : hex.slice(1);
  return [0, 2, 4].map((i) => parseInt(full.slice(i, i + 2), 16));
}

/** A pen for a canvas in the pixels of the page, and its size; whether that changed is `resized`. */
export function pen(canvas) {
  const sharp = Math.min(devicePixelRatio || 1, 2);
  const wide = canvas.clientWidth, high = canvas.clientHeight;
  const columns = Math.max(Math.round(wide * sharp), 1), rows = Math.max(Math.round(high * sharp), 1);
  const resized = canvas.width !== columns || canvas.height !== rows;
  if (resized) Object.assign(canvas, { width: columns, height: rows });
  const draw = canvas.getContext("2d");
  draw.setTransform(sharp, 0, 0, sharp, 0, 0);
  return { draw, wide, high, sharp, resized };
}

export function dot(draw, x, y, radius) {
  draw.beginPath();
  draw.arc(x, y, radius, 0, 2 * Math.PI);
  draw.fill();
}

/** The colour of a prediction from -1 to 1, mixed with the ground. */
export function tint(value, { rgb }, strength, ground = "ground") {
  const towards = rgb[value < 0 ? "label-0" : "label-1"], share = Math.min(Math.abs(value), 1) * strength;
  return rgb[ground].map((from, i) => Math.round(from + (towards[i] - from) * share));
}

export const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;
