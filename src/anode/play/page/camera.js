// A camera that orbits a box: z is up, and all axes have the same scale.

const HOME = { yaw: 0.6, pitch: 0.35 };
const DRIFT = 0.2; // radians per second, until the user rotates it
const PER_PIXEL = 0.01;
const DISTANCE = 4; // in radii of the box
const LEAST_ZOOM = 0.5, MOST_ZOOM = 8;
const TURNS = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
const ZOOMS = { "+": 1.25, "=": 1.25, "-": 0.8 };

export class Camera {
  constructor(canvas) {
    Object.assign(this, HOME, { zoom: 1, touched: false, enabled: false });
    const fingers = new Map();
    const spread = () => { const [a, b] = fingers.values(); return Math.hypot(a[0] - b[0], a[1] - b[1]); };
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.enabled || event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
    });
    canvas.addEventListener("pointermove", (event) => {
      const last = fingers.get(event.pointerId);
      if (!last) return;
      const apart = fingers.size === 2 ? spread() : 0;
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
      if (apart) return this.enlarge(spread() / apart);
      const down = event.pointerType === "touch" ? 0 : event.clientY - last[1]; // a finger that moves up or down scrolls the page
      this.turn(PER_PIXEL * (event.clientX - last[0]), PER_PIXEL * down);
    });
    canvas.addEventListener("lostpointercapture", (event) => fingers.delete(event.pointerId));
    canvas.addEventListener("dblclick", () => Object.assign(this, HOME, { zoom: 1 }));
    canvas.addEventListener("wheel", (event) => {
      if (!this.enabled || !event.ctrlKey) return; // the wheel alone scrolls the page
      event.preventDefault();
      this.enlarge(Math.exp(-event.deltaY / 300));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (!this.enabled || event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key in TURNS) this.turn(...TURNS[event.key]);
      else if (event.key in ZOOMS) this.enlarge(ZOOMS[event.key]);
      else return;
      event.preventDefault();
    });
  }

  turn(sideways, up) {
    this.touched = true;
    this.yaw += sideways;
    this.pitch = Math.min(Math.max(this.pitch + up, -1.5), 1.5);
  }

  enlarge(factor) {
    this.touched = true;
    this.zoom = Math.min(Math.max(this.zoom * factor, LEAST_ZOOM), MOST_ZOOM);
  }

  drift(seconds) {
    if (!this.touched) this.yaw += DRIFT * seconds;
  }

  /** A function from a point to its place on the canvas and its depth. */
  projection({ center, radius }, wide, high) {
    const [cosYaw, sinYaw, cosPitch, sinPitch] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const size = Math.min(wide, 1.25 * high);
    return (point) => {
      const x = (point[0] - center[0]) / radius, y = (point[1] - center[1]) / radius, z = (point[2] - center[2]) / radius;
      const right = x * cosYaw - y * sinYaw, away = x * sinYaw + y * cosYaw;
      const depth = away * cosPitch - z * sinPitch;
      const scale = 0.44 * this.zoom * size * DISTANCE / (DISTANCE + depth);
      return [wide / 2 + right * scale, high / 2 - (z * cosPitch + away * sinPitch) * scale, depth];
    };
  }

  /** Where the camera is. */
  eye({ center, radius }) {
    const far = -DISTANCE * radius, flat = far * Math.cos(this.pitch);
    return [center[0] + flat * Math.sin(this.yaw), center[1] + flat * Math.cos(this.yaw), center[2] - far * Math.sin(this.pitch)];
  }
}

/** A box with its center, its radius and its edges: four along each axis, in turn. */
export function boxOf([low, high]) {
  const center = low.map((value, i) => (value + high[i]) / 2);
  const radius = Math.hypot(...low.map((value, i) => (high[i] - value) / 2)) || 1;
  const corner = (bits) => low.map((value, i) => (bits >> i & 1 ? high[i] : value));
  const edges = [];
  for (let axis = 0; axis < 3; axis++) {
    for (let from = 0; from < 8; from++) if (!(from >> axis & 1)) edges.push([corner(from), corner(from | 1 << axis)]);
  }
  return { center, radius, edges };
}

/** Where the plane a x + b y + c z + d = 0 cuts a box: the corners in order around it. */
export function polygon({ edges }, [a, b, c, d]) {
  const side = ([x, y, z]) => a * x + b * y + c * z + d;
  const corners = [];
  for (const [from, to] of edges) {
    const [s, e] = [side(from), side(to)];
    if (s < 0 !== e < 0) corners.push(from.map((value, i) => value + (to[i] - value) * s / (s - e)));
  }
  if (corners.length < 3) return [];
  const middle = [0, 1, 2].map((i) => corners.reduce((sum, corner) => sum + corner[i], 0) / corners.length);
  // Two directions within the plane, by which the corners have an angle.
  const normal = [a, b, c], helper = Math.abs(c) < Math.max(Math.abs(a), Math.abs(b)) ? [0, 0, 1] : [1, 0, 0];
  const u = cross(normal, helper), v = cross(normal, u), along = (corner, w) => w.reduce((sum, value, i) => sum + value * (corner[i] - middle[i]), 0);
  const [lu, lv] = [Math.hypot(...u), Math.hypot(...v)];
  const angle = (corner) => Math.atan2(along(corner, v) / lv, along(corner, u) / lu);
  return corners.sort((p, q) => angle(p) - angle(q));
}

function cross([a, b, c], [x, y, z]) { return [b * z - c * y, c * x - a * z, a * y - b * x]; }
