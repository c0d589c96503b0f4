// The connection to the server. It reconnects when it is lost, and resumes the same session.

import { unpack } from "./picture.js";

const WAITS = [250, 500, 1000, 2000, 4000]; // milliseconds until the next attempt
const TAKEN_OVER = 4001, FULL = 4003, REFUSED = 1008; // close codes of the server
const KEY = "anode-play-session";

export class Link {
  /**
   * @param wishes function that returns the settings and points to start with
   * @param listeners functions: opened(message), picture(picture), words(message), status(text, good)
   */
  constructor(wishes, listeners) {
    this.wishes = wishes;
    this.listeners = listeners;
    this.attempt = 0;
    this.connect();
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.hurry(); });
  }

  connect() {
    clearTimeout(this.timer);
    const socket = new WebSocket(`ws://${location.host}/live`);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.addEventListener("open", () => {
      this.send({ type: "open", session: sessionStorage.getItem(KEY), ...this.wishes() });
    });
    socket.addEventListener("message", (event) => this.receive(event.data));
    socket.addEventListener("close", (event) => this.closed(event.code));
  }

  receive(data) {
    if (typeof data !== "string") {
      this.listeners.picture(unpack(data));
      this.send({ type: "drawn" });
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "opened") {
      this.attempt = 0;
      sessionStorage.setItem(KEY, message.session);
      this.listeners.status("connected", true);
      this.listeners.opened(message);
    } else {
      this.listeners.words(message);
    }
  }

  closed(code) {
    if (code === TAKEN_OVER || code === REFUSED) sessionStorage.removeItem(KEY); // use a new session next time
    if (code === FULL) return this.listeners.status("too many pages are open", false);
    const wait = code === TAKEN_OVER ? 0 : WAITS[Math.min(this.attempt, WAITS.length - 1)];
    this.attempt += 1;
    this.listeners.status("connection lost, reconnecting", false);
    this.timer = setTimeout(() => this.connect(), wait);
  }

  hurry() {
    if (this.socket.readyState === WebSocket.CLOSED) this.connect();
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
}
