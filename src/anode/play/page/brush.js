// Painting points on a plane: with mouse, pen and finger, or with the keyboard.

import { MOST_POINTS, rounded } from "./settings.js";

const SPREAD = 0.06; // of a drop, in units of the plane
const DROP_EVERY = 0.07; // how far the brush moves from one drop to the next
const ERASED = 0.2;
const MOVES = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };

export class Brush {
  /**
   * @param planes on which to paint
   * @param choice function that returns what is painted: 0, 1 or "erase"; null if nothing is
   * @param store object with the points, `points`, and functions `changed()` on the way and `done()` after a stroke
   */
  constructor(planes, choice, store) {
    Object.assign(this, { choice, store, last: null });
    for (const plane of planes) this.listen(plane);
  }

  listen(plane) {
    const { canvas } = plane;
    canvas.addEventListener("pointerdown", (event) => {
      if (this.choice() === null || event.button !== 0) return;
      event.preventDefault();
      canvas.focus({ preventScroll: true }); // so that the keys mean the picture, and not the last button
      canvas.setPointerCapture(event.pointerId);
      this.last = plane.place(event);
      this.drop(this.last, 3);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.last || !canvas.hasPointerCapture(event.pointerId)) return;
      for (const each of event.getCoalescedEvents?.() ?? [event]) this.move(plane.place(each));
    });
    canvas.addEventListener("lostpointercapture", () => {
      if (!this.last) return;
      this.last = null;
      this.store.done();
    });
    canvas.addEventListener("keydown", (event) => {
      if (this.choice() === null || event.altKey || event.ctrlKey || event.metaKey) return;
      const { wide, high } = plane.view;
      if (event.key in MOVES) {
        const [x, y] = plane.brush ?? [0, 0], [dx, dy] = MOVES[event.key];
        plane.brush = [Math.min(Math.max(x + dx, -wide), wide), Math.min(Math.max(y + dy, -high), high)];
      } else if (event.key === "Enter") {
        plane.brush ??= [0, 0];
        this.drop(plane.brush, 3);
        this.store.done();
      } else return;
      event.preventDefault();
    });
    canvas.addEventListener("blur", () => { plane.brush = null; });
  }

  move(place) {
    const apart = Math.hypot(place[0] - this.last[0], place[1] - this.last[1]);
    for (let along = DROP_EVERY; along <= apart; along += DROP_EVERY) {
      this.drop([0, 1].map((i) => this.last[i] + (place[i] - this.last[i]) * along / apart), 1);
    }
    if (apart >= DROP_EVERY) this.last = place;
  }

  drop(place, count) {
    const choice = this.choice(), { store } = this;
    if (choice === "erase") {
      store.points = store.points.filter(([x, y]) => Math.hypot(x - place[0], y - place[1]) > ERASED);
    } else {
      for (let i = 0; i < count && store.points.length < MOST_POINTS; i++) {
        store.points = [...store.points, rounded([place[0] + jitter(), place[1] + jitter(), choice])];
      }
    }
    store.changed();
  }
}

function jitter() { return SPREAD * (Math.random() + Math.random() + Math.random() - 1.5); }
