// One socket a page: says when it is lost, comes back, and misses nothing.
//
// Elements say what they follow. `data-follow-session` with `data-after-seq` is filled
// with the events of a session as they are committed. `data-follow-changes` of a session
// and `data-follow-feed` of the project get the event `live-change` when anything has
// happened there, by which htmx reloads them.
"use strict";

(() => {
  const path = document.body.dataset.socket;
  const followed = document.querySelectorAll(
    "[data-follow-session], [data-follow-changes], [data-follow-feed]",
  );
  if (!path || !followed.length) return;

  const SILENCE_MS = 1000 * Number(document.body.dataset.silenceS); // two pings
  const FIRST_WAIT_MS = 500;
  const LONGEST_WAIT_MS = 20000;
  const REFRESH_MS = 1000;
  const ROWS_MOST = 2000;

  const state = document.getElementById("link-state");
  const pause = document.getElementById("pause");
  let socket = null;
  let attempts = 0;
  let heardAt = 0;
  let isHeld = false;
  let retry = null;

  function show(name, text) {
    state.hidden = false;
    state.dataset.state = name;
    if (state.textContent !== text) state.textContent = text;
  }

  // --- What is followed

  class SessionLog {
    constructor(element) {
      this.element = element;
      this.place = Number(element.dataset.afterSeq);
      this.held = [];
    }

    get subscription() {
      return { session: this.element.dataset.followSession, after_seq: this.place };
    }

    receive(message) {
      if (message.first_seq > this.place + 1) return this.again(message);
      if (message.last_seq <= this.place) return;
      this.place = message.last_seq;
      if (isHeld) this.held.push(message);
      else this.append([message]);
    }

    // Something is missing: ask for it from where we are.
    again(message) {
      send({ action: "unsubscribe", id: message.id });
      subscribe(this, message.id);
    }

    append(messages) {
      const atEnd = innerHeight + scrollY >= document.body.scrollHeight - 80;
      const shown = this.element.lastElementChild;
      const last = shown ? Number(shown.dataset.seq) : -1;
      const rows = document.createElement("template");
      rows.innerHTML = messages.map((message) => message.html).join("");
      const fresh = [...rows.content.children].filter((r) => Number(r.dataset.seq) > last);
      for (const row of fresh) row.classList.add("is-new");
      this.element.append(...fresh);
      while (this.element.children.length > ROWS_MOST) this.element.firstElementChild.remove();
      for (const row of fresh) htmx.process(row);
      AgentState.showTimes(this.element);
      this.element.dispatchEvent(new CustomEvent("log-grown", {
        bubbles: true, detail: { lastSeq: this.place },
      }));
      if (atEnd && fresh.length) scrollTo({ top: document.body.scrollHeight });
    }

    release() {
      if (this.held.length) this.append(this.held.splice(0));
    }
  }

  class Changes {
    constructor(element) {
      this.element = element;
      this.session = element.dataset.followChanges;
      this.place = this.session ? Number(element.dataset.afterSeq) : "latest";
      this.waits = null;
      this.changed = false;
    }

    get subscription() {
      if (!this.session) return { feed: true, after: this.place };
      return { session: this.session, after_seq: this.place, format: "notice" };
    }

    receive(message) {
      this.place = this.session ? message.last_seq : message.cursor;
      this.change();
    }

    // At once when it was quiet, at most once in REFRESH_MS otherwise.
    change() {
      this.changed = true;
      if (!isHeld && this.waits === null) this.refresh();
    }

    refresh() {
      this.waits = null;
      if (!this.changed || isHeld) return;
      this.changed = false;
      this.waits = setTimeout(() => this.refresh(), REFRESH_MS);
      if (this.element.querySelector("details[open] form, :focus-within input")) return;
      if (this.element.hasAttribute("data-reload")) location.reload();
      else htmx.trigger(this.element, "live-change");
    }

    release() {
      if (this.changed && this.waits === null) this.refresh();
    }
  }

  const follows = new Map();
  for (const element of followed) {
    const follow = element.dataset.followSession ? new SessionLog(element) : new Changes(element);
    follows.set(`f${follows.size}`, follow);
  }

  // --- The socket

  function send(message) {
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  }

  function subscribe(follow, id) {
    send({ action: "subscribe", id, format: "html", ...follow.subscription });
  }

  function connect() {
    clearTimeout(retry);
    retry = null;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const opened = new WebSocket(`${scheme}//${location.host}${path}`, ["agentstate.v1"]);
    socket = opened;
    heardAt = Date.now();
    opened.onopen = () => {
      send({ action: "hello", project: document.body.dataset.project });
    };
    opened.onmessage = (event) => {
      if (socket === opened) hear(JSON.parse(event.data));
    };
    opened.onclose = () => {
      if (socket === opened) lost();
    };
  }

  function hear(message) {
    heardAt = Date.now();
    if (message.type === "welcome") {
      attempts = 0;
      show(isHeld ? "held" : "live", isHeld ? "Held" : "Live");
      for (const [id, follow] of follows) subscribe(follow, id);
    } else if (message.type === "events" || message.type === "changed") {
      follows.get(message.id)?.receive(message);
    } else if (message.type === "error" && message.code === "gone") {
      location.reload(); // erased, or no longer ours to see: the page says which
    }
  }

  function lost() {
    const longest = Math.min(FIRST_WAIT_MS * 2 ** attempts, LONGEST_WAIT_MS);
    attempts += 1;
    socket = null;
    show("lost", "Disconnected – reconnecting");
    // A random part of the wait: a restarted server is not met by everybody at once.
    if (retry === null) retry = setTimeout(connect, longest * (0.5 + Math.random() / 2));
  }

  function watch() {
    if (!socket || Date.now() - heardAt < SILENCE_MS) return;
    const silent = socket;
    socket = null;
    silent.close();
    lost();
  }

  // --- Holding still while somebody reads

  pause.hidden = false;
  pause.addEventListener("click", () => {
    isHeld = !isHeld;
    pause.setAttribute("aria-pressed", String(isHeld));
    pause.textContent = isHeld ? "Go on" : "Pause";
    if (socket) show(isHeld ? "held" : "live", isHeld ? "Held" : "Live");
    if (!isHeld) for (const follow of follows.values()) follow.release();
  });

  window.addEventListener("online", () => { if (!socket) connect(); });
  window.addEventListener("pagehide", () => { const open = socket; socket = null; open?.close(); });
  window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  setInterval(watch, 1000);
  show("none", "Connecting");
  connect();
})();
