// What a report can do beyond being read: sort, filter, hide, choose, zoom, play. Without it everything is shown.
// Names are those of programs and files: they are read and compared as text, and never become markup.
"use strict";

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const make = (name, properties, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const button = (text, act, className = "") =>
  make("button", { type: "button", textContent: text, onclick: act, className });
// Moves the focus along a row of elements; `keys` are those for back and forth.
const step = (elements, event, keys) => {
  const by = event.key === keys[0] ? -1 : event.key === keys[1] ? 1 : 0;
  const to = elements[elements.indexOf(document.activeElement) + by];
  if (!by || !to) return false;
  event.preventDefault();
  to.focus();
  return true;
};

// ---- sorting ---------------------------------------------------------------------------------------

const UNITS = new Map(Object.entries({
  "": 1, "%": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, B: 1, bytes: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30,
  TiB: 2 ** 40, PiB: 2 ** 50,
}));
// A cell's number, or its text where it is none; the dash of a missing figure is null. What is only known to be
// below a number, as "<0.1 %" and "under 0.1 %", is above 0 and counts half of it.
const valueOf = (cell) => {
  const whole = cell ? cell.textContent.trim() : "";
  const text = whole.replace(/^(<|under )(?=\d)/, "");
  const weight = text === whole ? 1 : 0.5;
  if (text === "" || text === "–") return null;
  if (/^0x[0-9a-f]+$/.test(text)) return Number(text);
  const found = /^[+±]?([−-]?[\d.,]+(?:e[+-]?\d+)?)[\s\u202f]*([A-Za-z%]*)/.exec(text);
  if (found && UNITS.has(found[2])) return weight * Number(found[1].replace("−", "-").replaceAll(",", "")) * UNITS.get(found[2]);
  return text;
};
const compare = (one, other) => {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), undefined, { numeric: true });
};
// The cell under a column, whatever the cells before it span.
const cellAt = (row, column) => {
  let at = 0;
  return [...row.cells].find((cell) => (at += cell.colSpan) > column);
};
const sortBy = (table, header, column) => {
  const order = { none: "descending", descending: "ascending", ascending: "none" }[header.ariaSort || "none"];
  all("th[aria-sort]", table).forEach((other) => other.setAttribute("aria-sort", "none"));
  header.setAttribute("aria-sort", order);
  for (const body of table.tBodies) {
    const rows = [...body.rows];
    const first = rows.filter((row) => row.cells[0].getAttribute("scope") === "rowgroup");
    const last = rows.filter((row) => row.classList.contains("scale"));
    const rest = rows.filter((row) => !first.includes(row) && !last.includes(row));
    rest.forEach((row) => (row.place ??= rows.indexOf(row)));
    const keyed = rest.map((row) => [order === "none" ? row.place : valueOf(cellAt(row, column)), row]);
    const sign = order === "descending" ? -1 : 1;
    // What is missing comes last, either way.
    keyed.sort(([one, a], [other, b]) =>
      one === null || other === null
        ? (one === null) - (other === null) || a.place - b.place
        : sign * compare(one, other) || a.place - b.place);
    body.append(...first, ...keyed.map(([, row]) => row), ...last);
  }
};
for (const table of all("table.sortable")) {
  const headers = all("thead th:not(.bar)", table);
  headers.forEach((header) => {
    const column = [...header.parentNode.cells].indexOf(header);
    const text = header.textContent.trim();
    header.setAttribute("aria-sort", "none");
    header.replaceChildren(button(text || "name", () => sortBy(table, header, column)));
  });
  table.tHead.addEventListener("keydown", (event) =>
    step(all("button", table.tHead), event, ["ArrowLeft", "ArrowRight"]));
}

// ---- what is shown ---------------------------------------------------------------------------------

const controls = document.getElementById("controls");
if (controls) {
  const update = () => {
    const hidden = new Set(all("[name=scheme]:not(:checked)", controls).map((box) => box.value));
    const words = document.getElementById("filter").value.trim().toLowerCase();
    const pages = controls.querySelector("[name=pages]:checked")?.value ?? "";
    const metric = document.getElementById("metric")?.value ?? "";
    // Of an SVG's elements `hidden` is an attribute alone.
    const hide = (element, isHidden) => element.toggleAttribute("hidden", isHidden);
    const lacksWords = (row) => words !== "" && !row.textContent.toLowerCase().includes(words);
    for (const element of all("[data-pages]")) hide(element, pages !== "" && element.dataset.pages !== pages);
    for (const element of all("[data-metric]")) hide(element, metric !== "" && element.dataset.metric !== metric);
    for (const element of all("[data-scheme]")) {
      const isRow = element.matches("tr, .ranking li");
      hide(element, hidden.has(element.dataset.scheme) || (isRow && lacksWords(element)));
    }
    // A line of several schemes is there as long as one of them is.
    for (const line of all(".ranking li:not([data-scheme])"))
      hide(line, lacksWords(line) || all("[data-name]", line).every((name) => hidden.has(name.dataset.name)));
    for (const row of all("table.sortable tbody tr:not([data-scheme], .scale)"))
      hide(row, row.cells[0].getAttribute("scope") !== "rowgroup" && lacksWords(row));
  };
  controls.hidden = false;
  controls.addEventListener("input", update);
  controls.addEventListener("submit", (event) => event.preventDefault());
  for (const [id, checked] of [["show-all", true], ["show-none", false]])
    document.getElementById(id)?.addEventListener("click", () => {
      all("[name=scheme]", controls).forEach((box) => (box.checked = checked));
      update();
    });
  // A browser may keep what was chosen before the page was loaded again.
  update();
}

// ---- links to what is folded -------------------------------------------------------------------------

const unfold = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const details = target?.closest("details");
  if (!details) return;
  details.open = true;
  details.scrollIntoView();
  details.querySelector("summary").focus();
};
addEventListener("hashchange", unfold);
document.addEventListener("click", (event) => {
  // The same link once more changes no address.
  if (event.target.closest?.("a[href^='#']")?.hash === location.hash) unfold();
});
unfold();

// ---- the page table as a tree ------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const draw = (map, row, below) => {
  const [first, last] = [BigInt(row.dataset.first), BigInt(row.dataset.last)];
  const scale = (address) => Number((address - first) * 1000000n / (last - first + 1n)) / 1000;
  map.replaceChildren(map.firstElementChild);
  map.setAttribute("aria-label", "Where nodes lie from " + row.dataset.first + " to " + row.dataset.last);
  for (const child of below) {
    const from = scale(BigInt(child.dataset.first));
    const box = document.createElementNS(SVG, "rect");
    box.setAttribute("x", from);
    box.setAttribute("width", Math.max(scale(BigInt(child.dataset.last) + 1n) - from, 2));
    box.setAttribute("height", 20);
    box.setAttribute("class", "p" + child.dataset.shade);
    map.append(box);
  }
};
for (const details of all("details.tree")) {
  const rows = all("tbody tr", details);
  const map = details.querySelector("svg.map");
  const [untouched, label] = [[...map.childNodes], map.getAttribute("aria-label")];
  const byNumber = new Map(rows.map((row) => [row.dataset.row, row]));
  const path = (row) => (row.dataset.under ? [...path(byNumber.get(row.dataset.under)), row] : [row]);
  const crumbs = make("nav", { className: "crumbs", ariaLabel: "zoomed to" });
  map.before(crumbs);
  const box = (row) => row.querySelector("button");
  // Entries are shown with the node that they are of, and by themselves.
  const isApart = (row, at) => row.classList.contains("entry") && row !== at && row.dataset.under !== at?.dataset.row;
  const zoom = (row) => {
    for (const other of rows)
      other.hidden = isApart(other, row) || (!path(other).includes(row) && !path(row).includes(other));
    if (row.dataset.under) draw(map, row, rows.filter((other) => other.dataset.first && other.dataset.under === row.dataset.row));
    else {
      map.replaceChildren(...untouched);
      map.setAttribute("aria-label", label);
    }
    crumbs.replaceChildren(...path(row).map((part, number, parts) => {
      const name = part.dataset.name ?? (number ? "node of " : "") + part.dataset.covers;
      const made = button(name, () => zoom(part));
      if (number === parts.length - 1) made.setAttribute("aria-current", "true");
      return made;
    }), ...entries(row), make("span", { className: "soft", textContent: "an entry: " + row.dataset.entry }));
    details.zoomed = row;
    box(row).focus({ preventScroll: true });
  };
  // Chooses one of several entries next to each other.
  const entries = (row) => {
    const [index, count] = [Number(row.dataset.index), Number(row.dataset.count)];
    if (!(count > 1)) return [];
    const say = make("output", { className: "address" });
    const choose = make("input", { type: "number", min: index, max: index + count - 1, value: index });
    const show = () => {
      const at = Math.min(Math.max(Math.trunc(choose.valueAsNumber) || index, index), index + count - 1);
      const first = BigInt(row.dataset.first) + BigInt(at - index) * BigInt(row.dataset.stride);
      say.textContent = "entry " + at + ": 0x" + first.toString(16);
      draw(map, row, [{ dataset: { first, last: first + BigInt(row.dataset.stride) - 1n, shade: "5" } }]);
    };
    choose.addEventListener("input", show);
    show();
    return [make("label", {}, "entry ", choose), say];
  };
  rows.forEach((row) => (row.hidden = isApart(row)));
  for (const row of rows) {
    const header = row.querySelector("th");
    if (!header) continue;
    const zoomTo = button("", () => zoom(row));
    zoomTo.append(...header.childNodes);
    header.append(zoomTo);
  }
  details.addEventListener("keydown", (event) => {
    const row = document.activeElement.closest("tr");
    if (!row || !details.contains(row)) return;
    const shown = rows.filter((other) => !other.hidden && box(other)).map(box);
    if (step(shown, event, ["ArrowUp", "ArrowDown"])) return;
    const at = details.zoomed ?? rows[0];
    const under = byNumber.get(at.dataset.under);
    if (event.key === "ArrowRight") zoom(row);
    else if (event.key === "ArrowLeft" && under) zoom(under);
    else if (event.key === "Home") zoom(rows[0]);
    else return;
    event.preventDefault();
  });
}

// ---- a walk, step by step ------------------------------------------------------------------------------

for (const walk of all("section.walk")) {
  const steps = all("ol.steps > li", walk);
  let at = 0;
  const say = make("output", { className: "soft" });
  const show = (to) => {
    at = Math.min(Math.max(to, 0), steps.length);
    const whole = at === steps.length;
    steps.forEach((step, number) => {
      step.hidden = !whole && number > at;
      if (!whole && number === at) step.setAttribute("aria-current", "step");
      else step.removeAttribute("aria-current");
    });
    say.textContent = whole ? "all " + steps.length + " steps" : "step " + (at + 1) + " of " + steps.length;
    const focused = document.activeElement;
    previous.disabled = at === 0;
    next.disabled = whole;
    // A button that can no longer be pressed hears no keys.
    if (focused.disabled) walk.focus({ preventScroll: true });
  };
  const previous = button("Previous", () => show(at - 1), "previous");
  const next = button("Next", () => show(at + 1), "next");
  const first = button("First", () => show(0), "first");
  const bar = make("div", { className: "player" }, first, previous, next, say);
  walk.querySelector("ol.steps").before(bar);
  walk.tabIndex = 0;
  walk.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
  show(steps.length);
}
