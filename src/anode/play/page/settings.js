// The settings, for the controls, the server and links.

export const DEFAULTS = { data: "ring", p: 1, width: 32, activation: "relu", lr: 0.003, tolerance: 0.001, seed: 0 };

// What the sliders step through.
export const STEPS = {
  p: [1, 2, 3, 4, 5],
  width: [4, 8, 16, 32, 64],
  lr: [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1],
  tolerance: [0.1, 0.01, 0.001, 0.0001, 0.00001, 0.000001],
};
export const DATA = ["ring", "moons", "spirals", "checkerboard", "own"];
export const ACTIVATIONS = ["relu", "softplus", "tanh", "silu", "gelu"];
export const MOST_POINTS = 2000;

const REACH = [2.4, 1.8]; // of the plane, as the server draws it
const LEVELS = 4095; // a coordinate takes twelve bits in a link, so that a point with its class fits into four letters

/** Return a point rounded as a link stores it, so that a reloaded page has exactly the same points. */
export function rounded([x, y, label]) {
  return [unpack(level(x, 0), 0), unpack(level(y, 1) & ~1, 1), label];
}

function level(value, axis) {
  return Math.round(Math.min(Math.max(value / REACH[axis], -1), 1) * (LEVELS >> 1)) + (LEVELS >> 1);
}

function unpack(stored, axis) {
  return Number((((stored - (LEVELS >> 1)) / (LEVELS >> 1)) * REACH[axis]).toFixed(4));
}

function encode(points) {
  const bytes = new Uint8Array(3 * points.length);
  points.forEach(([x, y, label], i) => { // eleven bits of y are enough beside one of the class
    const packed = (level(x, 0) << 12) | (level(y, 1) & ~1) | label;
    bytes.set([packed >> 16, (packed >> 8) & 255, packed & 255], 3 * i);
  });
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_");
}

function decode(text) {
  const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const points = [];
  for (let i = 0; i + 2 < bytes.length && points.length < MOST_POINTS; i += 3) {
    const packed = (bytes.charCodeAt(i) << 16) | (bytes.charCodeAt(i + 1) << 8) | bytes.charCodeAt(i + 2);
    points.push([unpack(packed >> 12, 0), unpack(packed & 0xffe, 1), packed & 1]);
  }
  return points;
}

/** Return the settings and points of a link; missing or invalid values get their defaults. */
export function fromHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const settings = { ...DEFAULTS };
  if (DATA.includes(given.get("data"))) settings.data = given.get("data");
  if (ACTIVATIONS.includes(given.get("activation"))) settings.activation = given.get("activation");
  for (const [name, steps] of Object.entries(STEPS)) {
    if (steps.includes(Number(given.get(name)))) settings[name] = Number(given.get(name));
  }
  const seed = Number(given.get("seed"));
  if (Number.isInteger(seed) && seed >= 0 && seed <= 1e6) settings.seed = seed;
  let points = [];
  try {
    points = decode(given.get("points") ?? "");
  } catch { /* no points that can be read */ }
  if (settings.data === "own" && !trainable(points)) settings.data = DEFAULTS.data;
  return { settings, points };
}

export function toHash(settings, points) {
  const changed = Object.entries(settings).filter(([name, value]) => value !== DEFAULTS[name]);
  const given = new URLSearchParams(changed.map(([name, value]) => [name, String(value)]));
  if (settings.data === "own") given.set("points", encode(points));
  return `#${given}`;
}

/** Whether there are points of both classes. */
export function trainable(points) {
  return points.some((point) => point[2] === 0) && points.some((point) => point[2] === 1);
}
