// The state and what draws it. Text of the data reaches the page by textContent alone.

function label(element, text) {
  element.setAttribute("aria-label", text);
  return element;
}

// head: null for all of them; held: the query that was clicked; pointed: the one under the mouse
const firstWord = tokens.findIndex((_, i) => !padding[i] && !data.special?.[i]);
const state = {
  layer: 0,
  head: 0,
  held: firstWord >= 0 ? firstWord : Math.max(0, padding.indexOf(false)),
  pointed: null,
};
const queryNow = () => state.pointed ?? state.held;

function change(values) {
  Object.assign(state, values);
  state.layer = Math.min(Math.max(state.layer, 0), layers.length - 1);
  const last = headsOf(state.layer) - 1;
  if (state.head !== null) state.head = state.head < 0 ? null : Math.min(state.head, last);
  draw();
}

const step = {
  layer: (by) => change({ layer: state.layer + by }),
  head: (by) => change({ head: (state.head ?? -1) + by }), // before the first come all of them
};

// ---- the tokens of one side

function onTokenKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const chips = [...event.currentTarget.children].filter((chip) => !chip.disabled);
  const place = chips.indexOf(event.target);
  const goal = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: chips.length - 1 }[event.key];
  const vertical = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (vertical) step[event.shiftKey ? "head" : "layer"](vertical);
  else if (goal !== undefined) chips[goal]?.focus();
  else return;
  event.preventDefault();
}

function makeChip(token, index) {
  const chip = make("button", { type: "button", className: "token", disabled: padding[index] },
    make("bdi", { className: "text", textContent: visible(token) }),
    make("span", { className: "p" }),
    make("span", { className: "keepers" }));
  const hold = () => change({ held: index, pointed: null });
  chip.addEventListener("click", hold);
  chip.addEventListener("focus", hold);
  chip.addEventListener("pointerenter", (event) => {
    if (event.pointerType === "mouse" && !padding[index]) change({ pointed: index });
  });
  return chip;
}

function drawChip(chip, index, row) {
  const p = row.p[index];
  const keepers = row.keepers ? `${row.keepers[index]}/${headsOf(state.layer)}` : "";
  const [, number, heads] = chip.children;
  chip.dataset.state = stateOf(p);
  chip.style.setProperty("--shade", p > 0 ? shade(p) : 0);
  number.textContent = short(p);
  heads.textContent = keepers;
  chip.classList.toggle("query", index === queryNow());
  chip.setAttribute("aria-pressed", index === state.held);
  chip.tabIndex = index === state.held ? 0 : -1;
  const mean = row.keepers && p > 0 ? `, the mean of all heads; ${keepers} keep it` : "";
  chip.title = `${visible(tokens[index])}: ${described(p)}${mean}`;
}

function makeTokens(side) {
  const chips = tokens.map(makeChip);
  const line = label(make("div", { className: "tokens" }, ...chips), `tokens, ${sides[side].name}`);
  line.setAttribute("role", "group");
  line.addEventListener("pointerleave", () => change({ pointed: null }));
  line.addEventListener("keydown", onTokenKey);
  const numbers = make("p", { className: "numbers" });
  const mapping = make("span", { className: "mapping" });
  const mixed = new Set(sides[side].mappings).size > 1;
  const title = make("h3", {}, sides[side].name, mapping);
  document.getElementById("tokens").append(make("div", {}, title, line, numbers));

  return (row) => {
    mapping.textContent = mixed ? `here: ${sides[side].mappings[state.layer]}` : "";
    chips.forEach((chip, index) => drawChip(chip, index, row));
    const facts = [
      ["keeps", `${count(row.kept)} of ${count(row.allowed)}`],
      ["drops", count(row.allowed - row.kept)],
      ["entropy", short(row.entropy)],
    ];
    if (hasMass) facts.push(["mass", short(row.mass)]);
    if (row.special !== null) facts.push(["on special tokens", short(row.special)]);
    const fact = ([name, value]) => make("span", {}, `${name} `, make("b", { textContent: value }));
    numbers.replaceChildren(...facts.map(fact));
  };
}

// ---- heads x tokens of one side

const WORD_WIDTH = 15; // px that a column needs for its token to stand above it
const COLUMNS = ["head", "tokens", "kept", "entropy"];
if (hasMass) COLUMNS.push("mass");
if (data.special) COLUMNS.push("special");

function makeHeadRow(side, head, under) {
  const button = label(make("button", { type: "button", textContent: head }), `head ${head}`);
  button.addEventListener("click", () => change({ head }));
  const strip = make("canvas");
  strip.addEventListener("pointermove", (event) => {
    const place = Math.floor((event.offsetX / strip.clientWidth) * tokens.length);
    const key = Math.min(Math.max(place, 0), tokens.length - 1);
    const { p } = rowOf(side, state.layer, head, queryNow());
    under.textContent = `head ${head}, ${visible(tokens[key])}: ${described(p[key])}`;
  });
  strip.addEventListener("pointerleave", () => under.replaceChildren());
  const cells = COLUMNS.slice(2).map((name) => make("td", { className: name }));
  return make("tr", {}, make("th", { scope: "row" }, button), make("td", {}, strip), ...cells);
}

function makeHeads(side) {
  const names = COLUMNS.map((name) => make("th", { scope: "col", textContent: name }));
  const words = tokens.map((token) => make("bdi", { textContent: clipped(visible(token)), title: visible(token) }));
  const above = make("div", { className: "words" }, ...words);
  names[1].replaceChildren(above);
  label(names[1], "tokens");
  const body = make("tbody");
  const table = make("table", { className: "heads" }, make("thead", {}, make("tr", {}, ...names)), body);
  const under = make("p", { className: "note under" });
  const title = make("h3", { textContent: sides[side].name });
  document.getElementById("heads").append(make("div", {}, title, table, under));

  return (rows) => {
    if (body.children.length !== rows.length) {
      body.replaceChildren(...rows.map((_, head) => makeHeadRow(side, head, under)));
    }
    rows.forEach((row, head) => {
      const line = body.children[head];
      const { kept, allowed, ...numbers } = row;
      line.classList.toggle("chosen", head === state.head);
      line.querySelector("button").setAttribute("aria-pressed", head === state.head);
      line.children[2].textContent = `${kept}/${allowed}`;
      COLUMNS.slice(3).forEach((name, i) => { line.children[i + 3].textContent = short(numbers[name]); });
    });
    // after the numbers, which the width of the strips depends on, and measured before any is drawn
    const strips = [...body.querySelectorAll("canvas")];
    const sizes = strips.map((strip) => [strip.clientWidth, strip.clientHeight]);
    above.hidden = sizes[0][0] < WORD_WIDTH * tokens.length;
    const style = getComputedStyle(body);
    const colours = { kept: "--strip", masked: "--masked", dropped: "--line" };
    for (const [key, name] of Object.entries(colours)) colours[key] = style.getPropertyValue(name);
    rows.forEach((row, head) => drawStrip(strips[head], sizes[head], colours, row.p));
  };
}

function drawStrip(canvas, size, colours, p) {
  const ratio = window.devicePixelRatio;
  const [width, height] = size.map((x) => Math.round(x * ratio));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  p.forEach((value, key) => {
    const left = Math.round((key * width) / p.length);
    const whole = Math.round(((key + 1) * width) / p.length) - left;
    const inner = whole > 4 * ratio ? whole - ratio : whole;
    context.fillStyle = colours[stateOf(value)];
    context.globalAlpha = value > 0 ? opacity(value) : 1;
    if (value !== 0) context.fillRect(left, 0, inner, height);
    else if (inner > 4 * ratio) context.fillRect(left + inner / 4, height / 2, inner / 2, ratio); // struck out
  });
}

// ---- shares of exact zeros of one side

function makeShare(share, layer, head) {
  const name = `layer ${layer}, ${head === null ? "all heads" : `head ${head}`}`;
  const button = label(make("button", { type: "button", textContent: percent(share) }), name);
  button.title = `${name}: ${percent(share)} % exact zeros`;
  button.style.setProperty("--shade", share ?? 0);
  Object.assign(button.dataset, { layer, head });
  button.addEventListener("click", () => change({ layer, head }));
  return make("td", {}, button);
}

function makeZeros(side) {
  const most = Math.max(...layers.map((_, layer) => headsOf(layer)));
  const columns = ["", "all", ...Array(most).keys()];
  const names = columns.map((name) => make("th", { scope: "col", textContent: name }));
  const lines = layers.map((name, layer) => {
    const shares = sides[side].layers[layer].zeros;
    const known = shares.filter((share) => share !== null);
    const all = makeShare(known.length ? mean(known) : null, layer, null);
    const own = shares.map((share, head) => makeShare(share, layer, head));
    return make("tr", {}, make("th", { scope: "row", textContent: layer, title: name }), all, ...own);
  });
  const head = make("thead", {}, make("tr", {}, ...names));
  const table = make("table", { className: "zeros" }, head, make("tbody", {}, ...lines));
  table.addEventListener("keydown", (event) => {
    const vertical = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const across = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!vertical && !across) return;
    event.preventDefault();
    if (vertical) step.layer(vertical);
    else step.head(across);
    table.querySelector(".chosen").focus();
  });
  const title = make("h3", { textContent: sides[side].name });
  document.getElementById("zeros").append(make("div", {}, title, make("div", { className: "scroll" }, table)));

  return () => {
    for (const button of table.querySelectorAll("button")) {
      const { layer, head } = button.dataset;
      const chosen = layer === String(state.layer) && head === String(state.head);
      button.classList.toggle("chosen", chosen);
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = chosen ? 0 : -1;
    }
  };
}

// ---- the bar, and all of it together

function makeChoice(name) {
  const choice = document.getElementById(name);
  const [before, after] = choice.querySelectorAll("button");
  const select = choice.querySelector("select");
  before.addEventListener("click", () => step[name](-1));
  after.addEventListener("click", () => step[name](1));
  select.addEventListener("change", () => change({ [name]: JSON.parse(select.value) }));

  return (options) => {
    if (options.length !== select.length) {
      select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
    }
    select.value = String(state[name]);
    before.disabled = select.selectedIndex === 0;
    after.disabled = select.selectedIndex === options.length - 1;
  };
}

const choices = { layer: makeChoice("layer"), head: makeChoice("head") };
const parts = sides.map((_, side) => ({
  tokens: makeTokens(side),
  heads: makeHeads(side),
  zeros: makeZeros(side),
}));

function draw() {
  const query = queryNow();
  const heads = [...Array(headsOf(state.layer)).keys()];
  choices.layer(layers.map((_, layer) => [layer, `Layer ${layer}`]));
  choices.head([[null, "All heads"], ...heads.map((head) => [head, `Head ${head}`])]);
  document.getElementById("query").textContent = `Token ${query}: ${visible(tokens[query])}`;
  document.getElementById("module").textContent = layers[state.layer];
  document.getElementById("legend-keepers").hidden = state.head !== null;
  parts.forEach((part, side) => {
    const rows = heads.map((head) => rowOf(side, state.layer, head, query));
    part.tokens(state.head === null ? meanOf(rows) : rows[state.head]);
    part.heads(rows);
    part.zeros();
  });
}

draw();
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
