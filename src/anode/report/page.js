"use strict";

// Trajectories in three dimensions, seen by an orbiting camera: z is up, and all axes have the same scale.
const HOME = { yaw: 0.6, pitch: 0.4 };
const TURN_PER_SECOND = 0.25;
const TURN_PER_PIXEL = 0.01;
const DISTANCE = 4; // of the camera, in radii of the scene
const LEAST_ZOOM = 0.5, MOST_ZOOM = 8;
const ZOOM_KEYS = { "+": 1.25, "=": 1.25, "-": 0.8 };
const KEYS = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
const prefersStill = matchMedia("(prefers-reduced-motion: reduce)");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function boundsOf(points) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (const point of points) {
    point.forEach((x, i) => { low[i] = Math.min(low[i], x); high[i] = Math.max(high[i], x); });
  }
  const center = low.map((x, i) => (x + high[i]) / 2);
  const radius = Math.hypot(...low.map((x, i) => (high[i] - x) / 2)) || 1;
  const corner = (bits) => low.map((x, i) => (bits >> i & 1 ? high[i] : x));
  const edges = [[], [], []]; // for each axis, the four edges parallel to it
  for (let from = 0; from < 8; from++) {
    edges.forEach((along, axis) => { if (!(from >> axis & 1)) along.push([corner(from), corner(from | 1 << axis)]); });
  }
  return { center, radius, edges };
}

function show(figure) {
  const canvas = figure.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const { paths, labels, axes } = JSON.parse(figure.querySelector("script").textContent);
  const { center, radius, edges } = boundsOf(paths.flat());
  let { yaw, pitch } = HOME;
  let zoom = 1, touched = false, visible = false, frame = 0, before = 0;
  const fingers = new Map(); // the last position of each pressed pointer

  function camera(size) {
    const [cosYaw, sinYaw, cosPitch, sinPitch] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
    return (point) => {
      const [x, y, z] = point.map((value, i) => (value - center[i]) / radius);
      const right = x * cosYaw - y * sinYaw, away = x * sinYaw + y * cosYaw;
      const depth = away * cosPitch - z * sinPitch;
      const scale = 0.42 * zoom * size * DISTANCE / (DISTANCE + depth);
      return [size / 2 + right * scale, size / 2 - (z * cosPitch + away * sinPitch) * scale, depth];
    };
  }

  function line(points) {
    pen.beginPath();
    for (const [x, y] of points) pen.lineTo(x, y);
    pen.stroke();
  }

  function dot([x, y], r) {
    pen.beginPath();
    pen.arc(x, y, r, 0, 2 * Math.PI);
    pen.fill();
  }

  function draw() {
    const size = canvas.clientWidth, sharpness = devicePixelRatio || 1, pixels = Math.round(size * sharpness);
    if (canvas.width !== pixels) canvas.width = canvas.height = pixels;
    pen.setTransform(sharpness, 0, 0, sharpness, 0, 0);
    pen.clearRect(0, 0, size, size);
    const project = camera(size);
    const style = getComputedStyle(figure);
    const color = (name) => style.getPropertyValue(name).trim();

    pen.globalAlpha = 1;
    pen.lineWidth = 1;
    pen.strokeStyle = color("--line");
    for (const edge of edges.flat()) line(edge.map(project));
    pen.fillStyle = color("--muted");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    edges.forEach((along, axis) => { // at the lowest edge, or for z at the leftmost, where it hides nothing
      const places = along.map(([a, b]) => project(center.map((c, i) => c + 1.12 * ((a[i] + b[i]) / 2 - c))));
      const [x, y] = places.reduce((p, q) => ((axis < 2 ? q[1] > p[1] : q[0] < p[0]) ? q : p));
      const half = pen.measureText(axes[axis]).width / 2 + 2;
      pen.fillText(axes[axis], Math.max(half, Math.min(size - half, x)), Math.max(8, Math.min(size - 8, y)));
    });

    const seen = paths.map((path, i) => ({ points: path.map(project), color: color(`--label-${labels[i]}`) }));
    seen.sort((a, b) => b.points.at(-1)[2] - a.points.at(-1)[2]); // far ones first, so that near ones cover them
    pen.lineWidth = 1.25;
    pen.lineJoin = "round";
    for (const path of seen) {
      pen.strokeStyle = pen.fillStyle = path.color;
      pen.globalAlpha = 0.45 - 0.2 * path.points.at(-1)[2];
      line(path.points);
      dot(path.points[0], 1.25);
    }
    pen.globalAlpha = 1;
    for (const path of seen) {
      pen.fillStyle = path.color;
      dot(path.points.at(-1), 2.75 - 0.75 * path.points.at(-1)[2]);
    }
  }

  function step(now) {
    frame = 0;
    const turning = visible && !touched && !prefersStill.matches;
    if (turning) yaw += TURN_PER_SECOND * Math.min(now - before, 50) / 1000; // no jump after a pause
    before = now;
    draw();
    if (turning) redraw();
  }

  function redraw() {
    frame ||= requestAnimationFrame(step);
  }

  function turn(right, down) {
    touched = true;
    yaw += right;
    pitch = Math.max(-1.5, Math.min(1.5, pitch + down));
    redraw();
  }

  function enlarge(factor) {
    touched = true;
    zoom = Math.max(LEAST_ZOOM, Math.min(MOST_ZOOM, zoom * factor));
    redraw();
  }

  function spread() { // distance between two fingers
    const [a, b] = fingers.values();
    return Math.hypot(a[0] - b[0], a[1] - b[1]);
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    touched = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    const last = fingers.get(event.pointerId);
    if (!last) return;
    const apart = fingers.size === 2 ? spread() : 0;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    if (apart) return enlarge(spread() / apart);
    const down = event.pointerType === "touch" ? 0 : event.clientY - last[1]; // a finger that moves up or down scrolls the page
    turn(TURN_PER_PIXEL * (event.clientX - last[0]), TURN_PER_PIXEL * down);
  });
  canvas.addEventListener("lostpointercapture", (event) => { fingers.delete(event.pointerId); });
  canvas.addEventListener("dblclick", () => { ({ yaw, pitch } = HOME); zoom = 1; turn(0, 0); });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // the wheel alone scrolls the page
    event.preventDefault();
    enlarge(Math.exp(-event.deltaY / 300));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in KEYS) turn(...KEYS[event.key]);
    else if (event.key in ZOOM_KEYS) enlarge(ZOOM_KEYS[event.key]);
    else return;
    event.preventDefault();
  });
  for (const button of figure.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => enlarge(Number(button.dataset.zoom)));
  }
  new IntersectionObserver((entries) => { visible = entries.at(-1).isIntersecting; redraw(); }).observe(canvas);
  new ResizeObserver(redraw).observe(canvas);
  prefersDark.addEventListener("change", redraw);
  prefersStill.addEventListener("change", redraw);
}

// A click opens a picture at the size of the window; another click toggles its full size.
const large = document.getElementById("_large");
for (const button of document.querySelectorAll(".enlarge")) {
  button.addEventListener("click", () => {
    const small = button.querySelector("img"), image = small.cloneNode();
    large.querySelector("img")?.remove();
    large.append(image);
    large.classList.toggle("full", small.naturalWidth > 1.5 * innerWidth); // on a phone, start at full size
    large.showModal();
    image.addEventListener("click", () => large.classList.toggle("full"));
  });
}
large.querySelector(".close").addEventListener("click", () => large.close());

document.querySelectorAll(".scene").forEach(show);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
