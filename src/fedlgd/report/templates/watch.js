"use strict";
(() => {
  const EVERY = 2000;
  const KEPT = "fedlgd-watch";
  const { version } = document.currentScript.dataset;
  const state = document.getElementById("watch-state");
  const all = (selector) => [...document.querySelectorAll(selector)];

  // After a reload, an element is found by its id, or by its section, its text and their number of occurrences.
  function named(selector, text) {
    const times = {};
    return all(selector).map((element) => {
      const section = element.closest("section");
      const base = element.id || `${section ? section.id : ""}/${text(element)}`;
      times[base] = (times[base] || 0) + 1;
      return [`${base}#${times[base]}`, element];
    });
  }
  const details = () => named("details", (each) => (each.querySelector("summary").firstChild || {}).textContent);
  const fields = () => named("input, select", () => "");
  const tables = () => named("table", () => "");
  const focusable = () => named("summary, button, a, input, select, [tabindex]", (each) => each.getAttribute("aria-label") || each.textContent);
  const atEnd = (field) => field.type === "range" && field.value === field.max;

  function place() {
    const seen = all("section[id]").find((section) => section.getBoundingClientRect().bottom > 0);
    return seen && scrollY > 0 ? { id: seen.id, top: seen.getBoundingClientRect().top } : { y: scrollY };
  }

  function keep() {
    const focus = focusable().find(([, element]) => element === document.activeElement);
    sessionStorage.setItem(KEPT, JSON.stringify({
      open: details().map(([name, element]) => [name, element.open]),
      fields: fields().map(([name, field]) => [name, { value: field.value, checked: field.checked, end: atEnd(field) }]),
      sorted: tables().flatMap(([name, table]) =>
        [...table.querySelectorAll("th[aria-sort]")].map((head) => [name, [head.cellIndex, head.getAttribute("aria-sort")]])),
      focus: focus ? focus[0] : "",
      place: place(),
    }));
  }

  function sort(table, [column, order]) {
    const head = table.tHead.rows[0].cells[column];
    const button = head && head.querySelector("button");
    for (let tries = 0; button && tries < 3 && head.getAttribute("aria-sort") !== order; tries++) button.click();
  }

  function fill(field, was) {
    const value = was.end ? field.max : was.value;
    if (field.value === value && field.checked === was.checked) return;
    Object.assign(field, { value, checked: was.checked });
    for (const event of ["input", "change"]) field.dispatchEvent(new Event(event, { bubbles: true }));
  }

  function restore(was) {
    const each = (elements, kept, change) => {
      const found = new Map(elements);
      for (const [name, value] of kept) if (found.has(name)) change(found.get(name), value);
    };
    each(details(), was.open, (element, open) => { element.open = open; });
    each(fields(), was.fields, fill);
    each(tables(), was.sorted, sort);
    each(focusable(), [[was.focus]], (element) => element.focus({ preventScroll: true }));
    const section = was.place.id && document.getElementById(was.place.id);
    scrollTo(0, section ? scrollY + section.getBoundingClientRect().top - was.place.top : was.place.y || 0);
  }

  let held = false;
  addEventListener("pointerdown", () => { held = true; });
  for (const event of ["pointerup", "pointercancel"]) addEventListener(event, () => { held = false; });
  addEventListener("blur", () => { held = false; });
  const selecting = () => !getSelection().isCollapsed;

  async function look() {
    if (document.hidden) return;
    try {
      const now = await (await fetch("/version", { cache: "no-store" })).text();
      state.dataset.state = now !== version && selecting() ? "paused" : "live";
      if (now === version || held || selecting()) return;
      keep();
      location.reload();
    } catch {
      state.dataset.state = "ended";
    }
  }

  history.scrollRestoration = "manual";
  const was = sessionStorage.getItem(KEPT);
  sessionStorage.removeItem(KEPT);
  if (was) restore(JSON.parse(was));
  setInterval(look, EVERY);
  document.addEventListener("visibilitychange", look);
})();
