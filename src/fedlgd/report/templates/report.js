"use strict";
document.documentElement.classList.add("script");

const number = (cell) => (cell.dataset.value === undefined ? NaN : Number(cell.dataset.value));
const words = new Intl.Collator(undefined, { numeric: true });

function compare(a, b, numeric, sign) {
  if (!numeric) return sign * words.compare(a.textContent, b.textContent);
  const [x, y] = [number(a), number(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
  return sign * (x - y);
}

function sort(table, head) {
  const numeric = head.classList.contains("number");
  const before = head.getAttribute("aria-sort");
  const after = before ? (before === "descending" ? "ascending" : "descending") : numeric ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", after);
  const rows = [...table.tBodies[0].rows];
  const at = head.cellIndex;
  rows.sort((a, b) => compare(a.cells[at], b.cells[at], numeric, after === "ascending" ? 1 : -1));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.sortable"))
  for (const head of table.tHead.rows[0].cells)
    head.querySelector("button").addEventListener("click", () => sort(table, head));

async function copy(area, said) {
  try {
    await navigator.clipboard.writeText(area.value);
  } catch {
    area.hidden = false;
    area.focus();
    area.select();
    if (!document.execCommand("copy")) {
      said.textContent = "Press Ctrl+C to copy the selected text.";
      return;
    }
    area.hidden = true;
  }
  said.textContent = `Copied as ${area.dataset.format}.`;
}

for (const bar of document.querySelectorAll(".copy"))
  for (const button of bar.querySelectorAll("button"))
    button.addEventListener("click", () => copy(document.getElementById(button.dataset.from), bar.querySelector("output")));

function showVersion(gallery, at) {
  for (const card of gallery.querySelectorAll(".card")) {
    const [stack, change] = [".stack", ".change"].map((name) => card.querySelector(name));
    if (!stack) continue;
    const images = [...stack.querySelectorAll("img")];
    const shown = images.filter((image) => Number(image.dataset.at) <= at).pop() || images[0];
    for (const image of images) image.hidden = image !== shown;
    stack.querySelector("figcaption").textContent = shown.dataset.version;
    change.querySelector("img:last-child").src = shown.src;
  }
}

function addChange(card) {
  const [first, stack] = [".first", ".stack"].map((name) => card.querySelector(name));
  if (!stack) return;
  const change = first.cloneNode(true);
  change.classList.replace("first", "change");
  change.style.setProperty("--gain", card.dataset.gain);
  const image = change.querySelector("img");
  const last = image.parentNode.appendChild(image.cloneNode());
  last.src = stack.querySelector("img:not([hidden])").src;
  image.alt = "";
  last.alt = "Difference between the two versions";
  change.querySelector("figcaption").textContent = `change since setup, × ${card.dataset.gain}`;
  stack.after(change);
  stack.querySelector("div").prepend(Object.assign(image.cloneNode(), { hidden: true }));
}

for (const card of document.querySelectorAll(".card")) addChange(card);

for (const slider of document.querySelectorAll(".slider input")) {
  const gallery = slider.closest(".gallery");
  const output = gallery.querySelector(".slider output");
  slider.addEventListener("input", () => {
    output.textContent = slider.list.options[slider.value].label;
    slider.setAttribute("aria-valuetext", output.textContent);
    showVersion(gallery, Number(slider.value));
  });
}
