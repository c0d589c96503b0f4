// The page: its controls, both models, and the connection between them.

import { Brush } from "./brush.js";
import { forgetColours } from "./canvas.js";
import { Chart } from "./chart.js";
import { parse } from "./csv.js";
import { Features } from "./features.js";
import { Link } from "./link.js";
import { modelOf } from "./picture.js";
import { Plane } from "./plane.js";
import { DATA, STEPS, fromHash, rounded, toHash, trainable } from "./settings.js";

const $ = (id) => document.getElementById(id);
const FRAME = 30; // minimum milliseconds between two drawings
const FLOW = 2.4, REST = 0.9; // seconds that the flow runs and then pauses
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const short = (value) => Number(value.toPrecision(2)).toString();
const scientific = (value, digits = 0) => value.toExponential(digits).replace("e-", "e−").replace("e+", "e");
const small = (value) => (value >= 0.001 || value === 0 ? String(Number(value.toPrecision(2))) : scientific(value, 1));

let { settings, points } = fromHash(location.hash);
let playing = false;

// Both models

function build(number) {
  const article = $(`model${number}`);
  article.append($("model").content.cloneNode(true));
  const find = (name) => article.querySelector(name);
  const heading = find("h2");
  heading.id = `name${number}`;
  heading.textContent = number ? "ANODE" : "NODE";
  const plane = new Plane(find(".plane"), find(".where"));
  const features = new Features(find(".features"), plane);
  plane.canvas.setAttribute("aria-label", `The plane and the predictions of the ${heading.textContent}`);
  features.canvas.setAttribute("aria-label", `The features of the ${heading.textContent} at time t`);
  for (const button of article.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => features.camera.enlarge(Number(button.dataset.zoom)));
  }
  return { article, find, plane, features };
}

const panels = [build(0), build(1)];
const charts = [
  new Chart($("losses"), 1, true, small),
  new Chart($("evaluations"), 2, false, (value) => value.toFixed(0)),
];

function show(message) {
  const models = [0, 1].map((number) => modelOf(message, number));
  models.forEach((model, number) => tell(panels[number], model));
  charts.forEach((chart) => chart.show(models));
  setPlaying(message.playing);
  judge(models);
  if (settings.data !== "own") points = [];
}

function tell({ article, find, plane, features }, model) {
  plane.show(model);
  if (settings.data !== "own" || model.labels.length === points.length) plane.paint(null); // the server has them now
  features.show(model);
  const text = (name, value) => { find(name).textContent = value; };
  const slow = model.engine.startsWith("native") || !model.iterations ? "" : ", without the compiled engine";
  text(".about", `p = ${model.p}, ${model.parameters.toLocaleString("en")} parameters${slow}`);
  text(".loss", model.loss === null ? "–" : small(model.loss));
  text(".accuracy", model.accuracy === null ? "–" : `${(100 * model.accuracy).toFixed(1)} %`);
  text(".nfe", model.nfe === null ? "–" : model.nfe.toFixed(0));
  const { tolerance, nfe, tightest } = model.certificate;
  text(".certified", tolerance === null ? `none to ${scientific(tightest)}` : `${scientific(tolerance)}, ${nfe.toFixed(0)} eval.`);
  find(".certified").title = tolerance === null
    ? "No tolerance returns the points to within 1 %, so the evaluation counts are not meaningful."
    : `The loosest tolerance that returns the points to within 1 %; a solve takes ${nfe.toFixed(0)} evaluations there.`;
  const [, caption] = article.querySelectorAll("figcaption");
  caption.textContent = ["The features at time t, and the cut", "The features at time t in 3-d, and the cut: drag to rotate"][model.p]
    ?? `3 of ${2 + model.p} dimensions of the features at time t: x₁, x₂ and the added direction that the cut uses. Drag to rotate`;
  find(".zoom").hidden = !model.p;
  find(".ended").hidden = !model.ended;
  text(".ended", model.ended ? `Training ended: ${model.ended}` : "");
  article.dataset.loss = model.loss ?? "";
  article.dataset.iterations = model.iterations;
  article.dataset.p = model.p;
}

/** Compare both models in a sentence, updated at most once per second. */
function judge(models) {
  const waits = judge.next - performance.now();
  clearTimeout(judge.timer);
  if (waits > 0 && models[0].iterations) {
    judge.timer = setTimeout(judge, waits, models);
    return;
  }
  judge.next = performance.now() + 1000;
  const [node, anode] = models;
  if (!node.iterations || node.loss === null || anode.loss === null) {
    $("verdict").textContent = "Press Play: both models learn to separate blue from red.";
    return;
  }
  const times = node.loss / anode.loss, bold = document.createElement("b");
  const close = times > 0.67 && times < 1.5;
  const count = times > 1 ? times : 1 / times;
  bold.textContent = close ? "both losses are about the same" : `the ${times > 1 ? "ANODE" : "NODE"}’s loss is ${count >= 10 ? Math.round(count).toLocaleString("en") : count.toFixed(1)} times lower`;
  $("verdict").replaceChildren(`After ${node.iterations.toLocaleString("en")} iterations, `, bold, pace(node.iterations));
}

/** Training speed since the last sentence. */
function pace(iterations) {
  const now = performance.now(), before = pace.before;
  pace.before = { now, iterations };
  if (!playing || !before || iterations <= before.iterations || now - before.now > 5000) return ".";
  return `. ${(Math.round((iterations - before.iterations) / (now - before.now) * 100) * 10).toLocaleString("en")} iterations per second.`;
}

// Messages to the server

const link = new Link(() => ({ settings, points: settings.data === "own" ? points : null }), {
  opened: ({ resumed }) => { if (resumed) sendChange(); },
  picture: show,
  words: ({ text }) => hint(text),
  status: (text, good) => {
    $("status").textContent = text;
    $("status").classList.toggle("good", good);
  },
});

function sendChange() {
  clearTimeout(change.timer);
  change.timer = null;
  if (settings.data === "own" && !trainable(points)) return; // they may have been cleared meanwhile
  link.send({ type: "change", settings, points: settings.data === "own" ? points : null });
}

function change(changes) {
  settings = { ...settings, ...changes };
  hint("");
  refresh();
  if (settings.data === "own" && !trainable(points)) return;
  history.replaceState(null, "", toHash(settings, points));
  clearTimeout(change.timer);
  change.timer = setTimeout(sendChange, 120); // a dragged slider changes many times
}

function setPlaying(wanted) {
  playing = wanted;
  $("play").classList.toggle("playing", playing);
  $("play-text").textContent = playing ? "Pause" : "Play";
}

function command(type) {
  if (change.timer) sendChange(); // send a pending change first
  link.send({ type });
  if (type === "play" || type === "pause") setPlaying(type === "play");
}

const actions = {
  toggle: () => command(playing ? "pause" : "play"),
  step: () => command("step"),
  reset: () => command("reset"),
  reseed: () => change({ seed: Math.floor(Math.random() * 10000) }),
  animate: () => setAnimated(!animated),
  theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  help: () => $("about").showModal(),
  async share() {
    try {
      await navigator.clipboard.writeText(location.href);
      $("share").textContent = "Copied";
    } catch {
      $("share").textContent = "See address bar";
    }
    setTimeout(() => { $("share").textContent = "Copy link"; }, 1500);
  },
};

// Controls

for (const [name, steps] of Object.entries(STEPS)) {
  Object.assign($(name), { min: 0, max: steps.length - 1, step: 1 });
  $(name).addEventListener("input", () => change({ [name]: steps[Number($(name).value)] }));
}
$("activation").addEventListener("change", () => change({ activation: $("activation").value }));
$("seed").addEventListener("change", () => {
  const seed = Math.round(Number($("seed").value));
  change({ seed: Math.min(Math.max(Number.isFinite(seed) ? seed : 0, 0), 1e6) });
});
for (const input of document.querySelectorAll("[name=data]")) input.addEventListener("change", () => choose(input.value));
for (const [id, action] of Object.entries({ play: "toggle", step: "step", reset: "reset", dice: "reseed", animate: "animate", theme: "theme", help: "help", share: "share" })) {
  $(id).addEventListener("click", actions[action]);
}

/** Choose data; painting starts with the current points. */
function choose(data) {
  if (data === "own" && settings.data !== "own") points = [...panels[0].plane.points()].map(rounded);
  if (data !== "own") panels.forEach(({ plane }) => plane.paint(null));
  change({ data });
}

function refresh() {
  for (const [name, steps] of Object.entries(STEPS)) {
    const written = name === "lr" ? short(settings.lr) : name === "tolerance" ? scientific(settings.tolerance) : String(settings[name]);
    $(name).value = steps.indexOf(settings[name]);
    $(name).setAttribute("aria-valuetext", written);
    $(`${name}-value`).textContent = written;
  }
  $("activation").value = settings.activation;
  $("seed").value = settings.seed;
  for (const input of document.querySelectorAll("[name=data]")) input.checked = input.value === settings.data;
  $("brushes").hidden = settings.data !== "own";
  document.body.classList.toggle("painting", settings.data === "own");
}

function hint(text) {
  $("hint").textContent = text;
  $("hint").hidden = !text;
}

// Painting

const brushOf = () => document.querySelector("[name=brush]:checked").value;
const store = {
  get points() { return points; },
  set points(changed) { points = changed; },
  changed() { panels.forEach(({ plane }) => plane.paint(points)); },
  done() {
    if (trainable(points)) return change({});
    hint("Paint points of both colours to train.");
    command("pause");
  },
};
new Brush(panels.map(({ plane }) => plane), () => {
  if (settings.data !== "own") return null;
  return brushOf() === "erase" ? "erase" : Number(brushOf());
}, store);
$("clear").addEventListener("click", () => { points = []; store.changed(); store.done(); });
$("csv").addEventListener("change", async () => {
  const [file] = $("csv").files;
  $("csv").value = "";
  if (!file) return;
  try {
    if (file.size > 5e6) throw new Error("The file is larger than 5 MB.");
    points = parse(await file.text()).map(rounded);
    store.changed();
    change({ data: "own" });
    hint(`${points.length.toLocaleString("en")} points from ${file.name}, scaled to fit the plane.`);
  } catch (error) {
    hint(error.message);
  }
});

// Keys

addEventListener("keydown", (event) => {
  // A dialog that was closed keeps the focus for a moment.
  const typing = event.target.matches("input:not([type=radio]), select, dialog[open] *");
  if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
  if (typing && !(event.key === " " && event.target.type === "range")) return;
  if (event.key === " " && event.target.matches("button, [type=file]")) return; // the key presses the button
  const key = event.key.toLowerCase();
  const keys = { " ": "toggle", s: "step", r: "reset", n: "reseed", a: "animate", t: "theme", l: "share", "?": "help" };
  if (key in keys) actions[keys[key]]();
  else if (key >= "1" && key <= String(DATA.length)) choose(DATA[Number(key) - 1]);
  else if (key === "[" || key === "]") change({ p: Math.min(Math.max(settings.p + (key === "]" ? 1 : -1), 1), 5) });
  else if (key === "x") document.querySelector(`[name=brush][value="${brushOf() === "0" ? 1 : 0}"]`).checked = true;
  else return;
  event.preventDefault();
});

// Light and dark

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  forgetColours();
  for (const { plane } of panels) plane.restyle();
  for (const chart of charts) chart.restyle();
}
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));

// Time

let animated = !calm.matches, clock = 0, t = 1, before = 0;

function setAnimated(wanted) {
  animated = wanted;
  $("animate").setAttribute("aria-pressed", String(animated));
}
$("t").addEventListener("input", () => { t = Number($("t").value); setAnimated(false); });

function frame(now) {
  requestAnimationFrame(frame);
  const elapsed = now - before;
  if (elapsed < FRAME) return;
  before = now;
  if (animated) {
    clock = (clock + Math.min(elapsed, 100) / 1000) % (FLOW + REST);
    t = Math.min(clock / FLOW, 1);
    $("t").value = t;
  }
  $("t-value").textContent = t.toFixed(2);
  for (const { plane, features } of panels) {
    plane.draw(t);
    features.draw(t, elapsed / 1000);
  }
  for (const chart of charts) chart.draw();
}

addEventListener("hashchange", () => {
  ({ settings, points } = fromHash(location.hash));
  change({});
});
setTheme(dark.matches ? "dark" : "light");
setAnimated(animated);
refresh();
requestAnimationFrame(frame);
