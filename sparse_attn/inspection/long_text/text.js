// What __init__.py packed: for each view lengths of rows, differences of columns and codes of weights.

const data = JSON.parse(document.getElementById("data").textContent);
const { tokens, views } = data;
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
  const packed = bytesOf(document.getElementById(`view-${place}`).textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const numbers = new Uint16Array(await new Response(stream).arrayBuffer());
  const rows = tokens.length;
  const starts = new Uint32Array(rows + 1);
  for (let i = 0; i < rows; i++) starts[i + 1] = starts[i] + numbers[i];
  const count = starts[rows];
  const view = { starts, differences: numbers.subarray(rows, rows + count), codes: numbers.subarray(rows + count) };
  return { ...view, read: place === 0 ? [...received].map((mass) => mass > 0) : readBy(view) };
}

/** Whether each token gets attention from another one. */
function readBy(view) {
  const read = Array(tokens.length).fill(false);
  tokens.forEach((_, query) => {
    let key = 0;
    for (let i = view.starts[query]; i < view.starts[query + 1]; i++) {
      key += view.differences[i];
      if (key !== query) read[key] = true;
    }
  });
  return read;
}

/** The keys of a query in one view, and their weights. */
function rowOf(view, place, query) {
  const keys = [], weights = [];
  let key = 0;
  for (let i = view.starts[query]; i < view.starts[query + 1]; i++) {
    key += view.differences[i];
    keys.push(key);
    weights.push(data.most[place] * Math.exp((view.codes[i] - LARGEST) * data.step));
  }
  return { keys, weights, sum: weights.reduce((sum, weight) => sum + weight, 0) };
}

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

const state = { query: 0, place: 0, matches: [], match: -1 };
let row = { keys: [], weights: [], sum: 0 };
let drawn = 0;

async function draw() {
  const turn = ++drawn;
  const view = await viewOf(state.place);
  if (turn !== drawn) return; // another token was chosen meanwhile
  for (const key of row.keys) chips[key].removeAttribute("style");
  text.querySelector(".query")?.classList.remove("query");
  row = rowOf(view, state.place, state.query);
  const most = Math.max(...row.weights, Number.MIN_VALUE);
  row.keys.forEach((key, i) => chips[key].style.setProperty("--shade", Math.sqrt(row.weights[i] / most)));
  chips[state.query].classList.add("query");
  drawUnread(view);
  document.getElementById("query").textContent = `Token ${state.query}: ${visible(tokens[state.query])}`;
  drawTable();
}

function largest() {
  const order = row.keys.map((_, i) => i).sort((a, b) => row.weights[b] - row.weights[a]);
  return order.slice(0, SHOWN).map((i) => ({ key: row.keys[i], weight: row.weights[i] }));
}

function drawTable() {
  const wrote = state.query >= data.queries;
  const kept = `${row.keys.length} of ${tokens.length} tokens`;
  const isSum = state.place === 0;
  const rest = isSum && data.leftOut >= 0.0005
    ? ` The page leaves out ${percent(data.leftOut)} of the mass of the sum over the whole text.` : "";
  const cut = data.threshold > 0 ? ` Weights up to ${data.threshold} are left out.` : "";
  document.getElementById("share").textContent = wrote
    ? "The model wrote this token last and has not read it."
    : `${kept}, sum of the weights ${row.sum.toPrecision(4)}.${rest}${cut}`;
  document.querySelector("#read tbody").replaceChildren(...largest().map(({ key, weight }) => {
    const button = make("button", { type: "button" }, make("bdi", { textContent: visible(tokens[key]) }));
    button.addEventListener("click", () => choose(key, true));
    return make("tr", {}, make("td", {}, button), make("td", { textContent: key }),
      make("td", { textContent: number(weight) }), make("td", { textContent: percent(weight / row.sum) }));
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
select.addEventListener("change", () => {
  state.place = Number(select.value);
  draw();
});

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
  const rows = row.keys.map((key, i) => [key, tokens[key], row.weights[i]]);
  saveCsv(nameOf(), ["position", "token", "weight"], rows);
});

// the largest weights as bars
document.getElementById("figure").addEventListener("click", () => {
  const bars = largest();
  const most = bars[0]?.weight ?? 1;
  const lines = bars.map(({ key, weight }, i) => {
    const y = 46 + 22 * i, width = (260 * weight) / most;
    return `<text x="150" y="${y + 12}" text-anchor="end">${escaped(visible(tokens[key]))}</text>` +
      `<text x="200" y="${y + 12}" text-anchor="end" fill="#59626d">${key}</text>` +
      `<rect x="210" y="${y}" width="${width.toFixed(1)}" height="16" fill="#79aefb"/>` +
      `<text x="${(216 + width).toFixed(1)}" y="${y + 12}">${number(weight)}</text>`;
  });
  const title = `Token ${state.query}: ${visible(tokens[state.query])}. ${views[state.place]}; ${data.mapping}`;
  const above = `<text x="10" y="26" font-size="15">${escaped(title)}</text>`;
  saveSvg(nameOf(), 560, 60 + 22 * bars.length, above + lines.join(""));
});

if (data.zeros !== null) {
  document.getElementById("facts").textContent = `${percent(data.zeros)} of all weights are exactly 0.`;
}
choose(data.queries - 1);
