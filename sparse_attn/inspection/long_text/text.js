// What __init__.py packed: for each view lengths of rows, differences of columns and codes of weights.
// View 0 is the sum, then come the heads, and if there are several all of them together.

const data = JSON.parse(document.getElementById("data").textContent);
const { tokens, views, heads } = data;
const TOGETHER = heads.length + 1;
const OPENING = views.length - 1;
const LARGEST = 65535;
const SHOWN = 25; // rows of the table, bars of the figure
const bytesOf = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const received = new Float32Array(bytesOf(data.received).buffer);

const unpacked = new Map();

async function viewOf(place) {
  if (!unpacked.has(place)) unpacked.set(place, unpack(place));
  return unpacked.get(place);
}

async function unpack(place) {
  if (place === TOGETHER) return together();
  const packed = bytesOf(document.getElementById(`view-${place}`).textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const numbers = new Uint16Array(await new Response(stream).arrayBuffer());
  const rows = tokens.length;
  const starts = new Uint32Array(rows + 1);
  for (let i = 0; i < rows; i++) starts[i + 1] = starts[i] + numbers[i];
  const count = starts[rows];
  const differences = numbers.subarray(rows, rows + count), codes = numbers.subarray(rows + count);
  const part = { starts, differences, codes, most: data.most[place] };
  return { parts: [part], read: place === 0 ? [...received].map((mass) => mass > 0) : readBy(part) };
}

async function together() {
  const each = await Promise.all(heads.map((_, i) => viewOf(i + 1)));
  const read = tokens.map((_, key) => each.some((view) => view.read[key]));
  return { parts: each.flatMap((view) => view.parts), read };
}

/** Whether each token gets attention from another one. */
function readBy(part) {
  const read = Array(tokens.length).fill(false);
  tokens.forEach((_, query) => {
    let key = 0;
    for (let i = part.starts[query]; i < part.starts[query + 1]; i++) {
      key += part.differences[i];
      if (key !== query) read[key] = true;
    }
  });
  return read;
}

/** The keys of a query in one view, with their weights and the number of heads that read them. */
function rowOf(view, query) {
  const found = new Map();
  for (const { starts, differences, codes, most } of view.parts) {
    let key = 0;
    for (let i = starts[query]; i < starts[query + 1]; i++) {
      key += differences[i];
      const { weight, readers } = found.get(key) ?? { weight: 0, readers: 0 };
      found.set(key, { key, weight: weight + most * Math.exp((codes[i] - LARGEST) * data.step), readers: readers + 1 });
    }
  }
  if (first.checked) found.delete(0);
  return [...found.values()].sort((a, b) => a.key - b.key);
}

const isTogether = () => state.place === TOGETHER;
const sizeOf = ({ weight, readers }) => (isTogether() ? readers : weight);

const percent = (share) => (share > 0 && share < 0.001 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`);
const number = (weight) => (weight < 0.001 ? weight.toExponential(1) : weight.toPrecision(3));

// ---- the text

const text = document.getElementById("text");
const chips = tokens.map((token, i) => {
  const chip = make("span", { textContent: token || "∅" });
  if (i >= tokens.length - data.generated) chip.classList.add("generated");
  chip.title = `${i}: ${visible(token)}`;
  return chip;
});
chips.forEach((chip, i) => { chip.dataset.index = i; });
text.append(...chips);
text.tabIndex = 0;

const first = document.getElementById("first");
const state = { query: 0, place: OPENING, matches: [], match: -1 };
let row = [];
let drawn = 0;

async function draw() {
  const turn = ++drawn;
  const view = await viewOf(state.place);
  if (turn !== drawn) return; // another token was chosen meanwhile
  for (const { key } of row) chips[key].removeAttribute("style");
  text.querySelector(".query")?.classList.remove("query");
  row = rowOf(view, state.query);
  const most = isTogether() ? heads.length : Math.max(...row.map(({ weight }) => weight));
  for (const entry of row) chips[entry.key].style.setProperty("--shade", Math.sqrt(sizeOf(entry) / most));
  chips[state.query].classList.add("query");
  drawUnread(view);
  document.getElementById("query").textContent = `Token ${state.query}: ${visible(tokens[state.query])}`;
  drawTable();
  writeFragment();
}

const largest = () => [...row].sort((a, b) => sizeOf(b) - sizeOf(a) || b.weight - a.weight).slice(0, SHOWN);

function drawTable() {
  const wrote = state.query >= data.queries;
  const isSum = state.place === 0;
  const readable = (data.causal ? state.query + 1 : tokens.length) - first.checked;
  const which = `${data.causal ? " up to this one" : ""}${first.checked ? ", not counting the first" : ""}`;
  const some = `${row.length} of the ${readable} tokens${which}.`, others = `the other ${readable - row.length}.`;
  const kept = isSum ? some
    : isTogether() ? `The ${heads.length} heads read ${some} None of them reads ${others}`
      : `This head reads ${some} It does not read ${others}`;
  const sum = row.reduce((total, { weight }) => total + weight, 0);
  const rest = isSum && data.leftOut >= 0.0005
    ? ` The page leaves out ${percent(data.leftOut)} of the mass of the sum over the whole text.` : "";
  const cut = data.threshold > 0 ? ` Weights up to ${data.threshold} are left out.` : "";
  document.getElementById("share").textContent = wrote
    ? "The model wrote this token last and has not read it."
    : `${kept} Sum of the weights: ${sum.toPrecision(4)}.${rest}${cut}`;
  document.getElementById("read").classList.toggle("together", isTogether());
  document.querySelector("#read tbody").replaceChildren(...largest().map(({ key, weight, readers }) => {
    const button = make("button", { type: "button" }, make("bdi", { textContent: visible(tokens[key]) }));
    button.addEventListener("click", () => choose(key, true));
    return make("tr", {}, make("td", {}, button),
      ...[key, readers, number(weight), percent(weight / sum)].map((cell) => make("td", { textContent: cell })));
  }));
}

function choose(query, scroll = false) {
  state.query = Math.min(Math.max(query, 0), tokens.length - 1);
  if (scroll) chips[state.query].scrollIntoView({ block: "center" });
  return draw();
}

text.addEventListener("click", (event) => {
  const index = event.target.dataset.index;
  if (index !== undefined) choose(Number(index));
});
text.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  choose(state.query + by, true);
});

// ---- the bar

const select = document.getElementById("view");
select.append(...views.map((view, place) => new Option(view, place)));
select.prepend(select.lastChild); // the view that the page opens on
select.addEventListener("change", () => {
  state.place = Number(select.value);
  draw();
});
first.addEventListener("change", draw);

const unread = document.getElementById("unread");
const unreadCount = make("span");
unread.parentElement.append(unreadCount);

function drawUnread(view) {
  if (drawUnread.view === view) return;
  drawUnread.view = view;
  const without = view.read.filter((read) => !read).length;
  chips.forEach((chip, i) => chip.classList.toggle("none", !view.read[i]));
  unreadCount.textContent = `(${without.toLocaleString("en")})`;
}

unread.addEventListener("change", () => text.classList.toggle("unread", unread.checked));

const [input, before, after, told] = document.getElementById("search").children;
// start of each token in the text
const places = [];
let whole = "";
for (const token of tokens) {
  places.push(whole.length);
  whole += token.toLowerCase();
}

function search() {
  for (const chip of text.querySelectorAll(".match")) chip.classList.remove("match");
  state.matches = [];
  const wanted = input.value.toLowerCase();
  let token = 0;
  for (let at = wanted ? whole.indexOf(wanted) : -1; at >= 0; at = whole.indexOf(wanted, at + wanted.length)) {
    while (token + 1 < tokens.length && places[token + 1] <= at) token++;
    state.matches.push(token);
    for (let i = token; i < tokens.length && places[i] < at + wanted.length; i++) chips[i].classList.add("match");
  }
  state.match = -1;
  told.textContent = wanted ? `${state.matches.length} found` : "";
}

function jump(by) {
  const count = state.matches.length;
  if (!count) return;
  state.match = state.match < 0 && by < 0 ? count - 1 : (state.match + by + count) % count;
  told.textContent = `${state.match + 1} of ${count}`;
  choose(state.matches[state.match], true);
}

input.addEventListener("input", search);
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter") jump(event.shiftKey ? -1 : 1);
});
before.addEventListener("click", () => jump(-1));
after.addEventListener("click", () => jump(1));

// ---- files

const nameOf = () => `token-${state.query}-view-${state.place}`;

document.getElementById("numbers").addEventListener("click", () => {
  const rows = row.map(({ key, weight, readers }) => [key, tokens[key], weight, ...(isTogether() ? [readers] : [])]);
  saveCsv(nameOf(), ["position", "token", "weight", ...(isTogether() ? ["heads"] : [])], rows);
});

// the largest weights, or numbers of heads, as bars
document.getElementById("figure").addEventListener("click", () => {
  const bars = largest();
  const lines = bars.map((entry, i) => {
    const { key, weight, readers } = entry;
    const y = 46 + 22 * i, width = (260 * sizeOf(entry)) / sizeOf(bars[0]);
    return `<text x="150" y="${y + 12}" text-anchor="end">${escaped(visible(tokens[key]))}</text>` +
      `<text x="200" y="${y + 12}" text-anchor="end" fill="#59626d">${key}</text>` +
      `<rect x="210" y="${y}" width="${width.toFixed(1)}" height="16" fill="#79aefb"/>` +
      `<text x="${(216 + width).toFixed(1)}" y="${y + 12}">${isTogether() ? readers : number(weight)}</text>`;
  });
  const title = `Token ${state.query}: ${visible(tokens[state.query])}. ${views[state.place]}; ${data.mapping}`;
  const above = `<text x="10" y="26" font-size="15">${escaped(title)}</text>`;
  saveSvg(nameOf(), 560, 60 + 22 * bars.length, above + lines.join(""));
});

if (data.zeros !== null) {
  document.getElementById("facts").textContent = `${percent(data.zeros)} of all weights are exactly 0.`;
}

// ---- the link to a view: #token=120&layer=3&head=5, layer=all of the sum, no layer of the heads together

function writeFragment() {
  const [layer, head] = heads[state.place - 1] ?? (isTogether() ? [] : ["all"]);
  const parts = Object.entries({ token: state.query, layer, head, first: first.checked ? "ignored" : undefined });
  const url = new URL(location.href);
  url.hash = new URLSearchParams(parts.filter(([, part]) => part !== undefined));
  history.replaceState(null, "", url);
}

function readFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  const [token, layer, head] = ["token", "layer", "head"].map((name) => given.get(name));
  const index = heads.findIndex((own) => `${own}` === `${layer},${head}`);
  state.place = layer === "all" ? 0 : index >= 0 ? index + 1 : OPENING;
  select.value = state.place;
  first.checked = given.get("first") === "ignored";
  choose(token === null ? data.queries - 1 : Number.parseInt(token) || 0, token !== null);
}

addEventListener("hashchange", readFragment);
readFragment();
