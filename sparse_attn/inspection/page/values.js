// What data.py wrote: 16-bit codes of p, decoded layer by layer when first looked at.

const NOT_ALLOWED = 0, DROPPED = 1, LARGEST = 65535;
const data = JSON.parse(document.getElementById("data").textContent);
const { tokens, layers, sides } = data;

function decode(text, Numbers) {
  return new Numbers(Uint8Array.from(atob(text), (char) => char.charCodeAt(0)).buffer);
}

function layerOf(side, layer) {
  const stored = sides[side].layers[layer];
  stored.numbers ??= {
    codes: decode(stored.codes, Uint16Array),
    entropy: decode(stored.entropy, Float32Array),
    special: stored.special && decode(stored.special, Float32Array),
  };
  return stored.numbers;
}

function valueOf(code, most) {
  if (code === NOT_ALLOWED) return NaN;
  return code === DROPPED ? 0 : most * Math.exp((code - LARGEST) * data.step);
}

// whether some row does not sum to 1
const hasMass = sides.some((side) => side.layers.some((layer) => layer.mass));
const headsOf = (layer) => sides[0].layers[layer].zeros.length;

/** What one query does in one head: p of each key (NaN: not allowed) and its numbers. */
function rowOf(side, layer, head, query) {
  const { codes, entropy, special } = layerOf(side, layer);
  const row = head * tokens.length + query;
  const start = row * tokens.length;
  const { most } = sides[side].layers[layer];
  const p = Array.from(codes.subarray(start, start + tokens.length), (code) => valueOf(code, most));
  return {
    p,
    allowed: p.filter((value) => !Number.isNaN(value)).length,
    kept: p.filter((value) => value > 0).length,
    mass: p.reduce((sum, value) => sum + (value || 0), 0),
    entropy: entropy[row],
    special: special && special[row],
  };
}

const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length;

/** The mean over heads, and beside it how many of them keep each key. */
function meanOf(rows) {
  const column = (key) => rows.map((row) => row.p[key]).filter((value) => !Number.isNaN(value));
  const columns = tokens.map((_, key) => column(key));
  return {
    p: columns.map((values) => (values.length ? mean(values) : NaN)),
    keepers: columns.map((values) => values.filter((value) => value > 0).length),
    allowed: mean(rows.map((row) => row.allowed)),
    kept: mean(rows.map((row) => row.kept)),
    mass: mean(rows.map((row) => row.mass)),
    entropy: mean(rows.map((row) => row.entropy)),
    special: rows[0].special === null ? null : mean(rows.map((row) => row.special)),
  };
}

// a token that no query of any layer may attend to is padding
const padding = tokens.map((_, key) =>
  layers.every((_, layer) => {
    const { codes } = layerOf(0, layer);
    for (let i = key; i < codes.length; i += tokens.length) {
      if (codes[i] !== NOT_ALLOWED) return false;
    }
    return true;
  }),
);

// Numbers and tokens as text: what is not zero is never written as zero.

function short(x) {
  if (Number.isNaN(x)) return "–";
  if (x === 0) return "0";
  return x < 0.01 ? "<.01" : x.toFixed(2);
}

function percent(share) {
  if (share === null) return "–";
  if (share > 0 && share < 0.01) return "<1";
  return share > 0.99 && share < 1 ? ">99" : String(Math.round(100 * share));
}

const count = (number) => (Number.isInteger(number) ? String(number) : number.toFixed(1));
const clipped = (text) => ([...text].length > 12 ? `${[...text].slice(0, 11).join("")}…` : text);
const shade = (p) => Math.sqrt(Math.min(1, p));
const opacity = (p) => 0.2 + 0.8 * shade(p); // the smallest p is visible

function stateOf(p) {
  if (Number.isNaN(p)) return "masked";
  return p === 0 ? "dropped" : "kept";
}

function described(p) {
  return { kept: `p = ${p.toPrecision(3)}`, dropped: "dropped, p = 0", masked: "not allowed" }[stateOf(p)];
}
