// Points from a CSV file. The browser reads the file and sends only points to the server.

import { MOST_POINTS } from "./settings.js";

const LARGEST = 5e6; // characters
const FILL = 1.5; // largest distance of a coordinate from the centre, after scaling

/** Return points [x, y, class] from a text with columns x, y and class, with or without a header; throws an Error. */
export function parse(text) {
  if (text.length > LARGEST) throw new Error("The file is larger than 5 MB.");
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  const rows = lines.map((line) => line.split(/[,;\t]|\s+/).map((cell) => cell.trim().replace(/^"|"$/g, "")));
  if (rows.length && !(isNumber(rows[0][0]) && isNumber(rows[0][1]))) rows.shift();
  const wrong = rows.findIndex((row) => row.length < 3 || !isNumber(row[0]) || !isNumber(row[1]));
  if (wrong >= 0) throw new Error(`Row ${wrong + 1} needs two numbers and a class: ${rows[wrong].join(", ").slice(0, 40)}`);
  const names = [...new Set(rows.map((row) => row[2]))].sort();
  if (names.length !== 2) throw new Error(`The third column needs two classes; it has ${names.length}.`);
  const points = rows.map((row) => [Number(row[0]), Number(row[1]), names.indexOf(row[2])]);
  return scaled(thinned(points));
}

function isNumber(cell) {
  return cell !== "" && cell !== undefined && Number.isFinite(Number(cell));
}

/** Return evenly chosen points, at most as many as the server accepts. */
function thinned(points) {
  if (points.length <= MOST_POINTS) return points;
  return Array.from({ length: MOST_POINTS }, (_, i) => points[Math.floor((i * points.length) / MOST_POINTS)]);
}

/** Return the points centred on the plane, with the same scale on both axes. */
function scaled(points) {
  const range = (axis) => points.reduce(([low, high], point) => [Math.min(low, point[axis]), Math.max(high, point[axis])], [Infinity, -Infinity]);
  const [[left, right], [low, high]] = [range(0), range(1)];
  const scale = (2 * FILL) / (Math.max(right - left, high - low) || 1);
  return points.map(([x, y, label]) => [(x - (left + right) / 2) * scale, (y - (low + high) / 2) * scale, label]);
}
