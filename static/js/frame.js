// What every page has: times in words, the reader's zone, theme, menus, keys.
"use strict";

(() => {
  const root = document.documentElement;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

  function cookie(name, value) {
    document.cookie = `${name}=${value}; path=/; max-age=31536000; samesite=lax`;
  }

  // The server reads days in the zone of this cookie. A page that was read in another
  // zone is loaded once more; a browser that keeps no cookie stays with what it has.
  function keepZone() {
    if (!zone || root.dataset.zone === zone) return;
    cookie("zone", zone);
    const kept = document.cookie.includes(`zone=${zone}`);
    if (kept && document.querySelector("[data-by-zone]") && !location.hash) {
      location.reload();
    }
  }

  // --- Times
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const exactly = new Intl.DateTimeFormat("en-GB", {
    dateStyle: "medium", timeStyle: "medium",
  });
  const offset = new Intl.DateTimeFormat("en", { timeZoneName: "longOffset" });

  function offsetOf(at) {
    const part = offset.formatToParts(at).find((p) => p.type === "timeZoneName");
    return part ? part.value : "";
  }

  function inWords(at) {
    const seconds = (at - Date.now()) / 1000;
    if (Math.abs(seconds) > 30 * 86400) return at.toISOString().slice(0, 10);
    const [unit, size] = UNITS.find(([, s]) => Math.abs(seconds) >= s) || UNITS[3];
    return words.format(Math.trunc(seconds / size), unit);
  }

  function showTimes(scope) {
    for (const element of scope.querySelectorAll("time[data-when]")) {
      const at = new Date(element.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      element.title = `${exactly.format(at)} ${offsetOf(at)}`;
      const text = inWords(at);
      if (element.textContent !== text) element.textContent = text;
    }
  }

  // --- Theme
  const themeButton = document.getElementById("theme");
  function switchTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    cookie("theme", root.dataset.theme);
  }
  themeButton.hidden = false;
  themeButton.addEventListener("click", switchTheme);

  // --- Menus close when something else is wanted
  function closeMenus(except) {
    for (const menu of document.querySelectorAll("details[data-menu][open]")) {
      if (!except || !menu.contains(except)) menu.open = false;
    }
  }
  document.addEventListener("click", (event) => closeMenus(event.target));

  // --- On a narrow screen the menu is one line, which may be longer than the screen
  const here = document.querySelector(".side [aria-current]");
  if (here) here.scrollIntoView({ block: "nearest", inline: "center" });

  // --- A form that was refused, filled in as it was
  function fill(form, values) {
    for (const field of form.elements) {
      const given = values[field.name];
      if (!field.name || field.type === "hidden") continue;
      if (field.type === "checkbox" || field.type === "radio") {
        field.checked = Boolean(given && given.includes(field.value));
      } else if (given) {
        field.value = given[0];
      }
    }
    const around = form.closest("details");
    if (around) around.open = true;
    const first = form.querySelector("input:not([type=hidden]), select, textarea");
    if (first) first.focus();
  }
  function fillTyped() {
    const told = document.getElementById("refused-form");
    if (!told) return;
    const typed = JSON.parse(told.textContent);
    for (const form of document.querySelectorAll("form[method=post]")) {
      if (form.getAttribute("action") !== typed.action) continue;
      if (!sameHidden(form, typed.values)) continue;
      fill(form, typed.values);
      told.remove();
      return;
    }
  }
  // Several forms may have one address, and differ in what they say of themselves.
  function sameHidden(form, values) {
    return [...form.querySelectorAll("input[type=hidden]")].every((field) =>
      ["csrfmiddlewaretoken", "back"].includes(field.name) ||
      (values[field.name] || []).includes(field.value));
  }
  fillTyped();
  // What comes later may be the form itself, so all are looked at.
  document.addEventListener("htmx:load", fillTyped);

  // --- Empty filters do not stand in the address
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-filters]")) return;
    for (const field of event.target.elements) {
      if (field.name && !field.value) field.disabled = true;
    }
  });
  window.addEventListener("pageshow", () => {
    for (const field of document.querySelectorAll("[data-filters] :disabled")) {
      field.disabled = false;
    }
  });

  // --- Keys
  let goes = false;
  const keys = document.getElementById("keys");

  function moveRow(step) {
    const rows = [...document.querySelectorAll("[data-row]")];
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.classList.contains("is-at"));
    const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
    rows[at]?.classList.remove("is-at");
    next.classList.add("is-at");
    next.scrollIntoView({ block: "nearest" });
    next.querySelector("a, summary")?.focus();
  }

  function goTo(letter) {
    const link = document.querySelector(`[data-go="${CSS.escape(letter)}"]`);
    if (link) location.assign(link.href);
  }

  const KEYS = {
    "?": () => keys.showModal(),
    "/": () => document.querySelector("[data-search]")?.focus(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    t: switchTheme,
    p: () => document.getElementById("pause")?.click(),
    g: () => { goes = true; },
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return closeMenus();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    if (goes) {
      goes = false;
      return goTo(event.key);
    }
    const action = KEYS[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });

  keepZone();
  showTimes(document);
  setInterval(() => showTimes(document), 10000);
  document.addEventListener("htmx:load", (event) => showTimes(event.target));
  window.AgentState = { showTimes };
})();
