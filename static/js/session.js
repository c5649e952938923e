// The page of one session: the slider's number, its growing end, the marked event.
"use strict";

(() => {
  const slider = document.getElementById("at");
  const number = document.getElementById("at-number");
  const log = document.getElementById("log");

  slider?.addEventListener("input", () => { number.textContent = slider.value; });

  // A slider that stands at the end stays there, and what it shows comes along.
  let settle = null;
  document.addEventListener("log-grown", (event) => {
    const last = event.detail.lastSeq;
    const count = document.getElementById("event-count");
    if (count) count.textContent = String(last);
    document.querySelector("[data-log-empty]")?.remove();
    if (!slider) return;
    const wasAtEnd = slider.value === slider.max;
    slider.max = String(last);
    if (!wasAtEnd) return;
    slider.value = slider.max;
    number.textContent = slider.value;
    if (settle === null) {
      settle = setTimeout(() => {
        settle = null;
        htmx.trigger(slider, "change");
      }, 500);
    }
  });

  const marked = log?.dataset.marked && document.getElementById(`e${log.dataset.marked}`);
  if (marked) {
    marked.classList.add("is-marked");
    marked.scrollIntoView({ block: "center" });
  }
})();
