// Files of the head that is shown, all its queries: a figure of both sides, and their numbers.

const nameOf = () => `layer-${state.layer}-${state.head === null ? "all-heads" : `head-${state.head}`}`;

/** p of each query, a row of its keys each; the mean if all heads are shown. */
function matrixOf(side) {
  const heads = [...Array(headsOf(state.layer)).keys()];
  return tokens.map((_, query) => {
    if (state.head !== null) return rowOf(side, state.layer, state.head, query).p;
    return meanOf(heads.map((head) => rowOf(side, state.layer, head, query))).p;
  });
}

document.getElementById("numbers").addEventListener("click", () => {
  const rows = sides.flatMap(({ name }, side) => matrixOf(side).flatMap((row, query) =>
    row.flatMap((p, key) => (Number.isNaN(p) ? [] : [[name, query, tokens[query], key, tokens[key], p]]))));
  saveCsv(nameOf(), ["side", "query", "query_token", "key", "key_token", "p"], rows);
});

const CELL = 16, TOP = 72, WORDS = 112; // px; words stand left of the cells and above them
const SIDE = WORDS + CELL * tokens.length + 24;

function drawCell(p, left, top) {
  if (p === 0) return "";
  const look = p > 0 ? `fill="#1d5fcf" opacity="${opacity(p).toFixed(3)}"` : 'fill="#e4e7eb"';
  return `<rect x="${left}" y="${top}" width="${CELL}" height="${CELL}" ${look}/>`;
}

function drawSide({ name }, side) {
  const [x, y] = [side * SIDE + WORDS, TOP + WORDS];
  const size = CELL * tokens.length;
  const words = tokens.map((token, i) => {
    const word = escaped(clipped(visible(token))), middle = CELL * i + 12;
    return `<text x="${x - 6}" y="${y + middle}" text-anchor="end">${word}</text>` +
      `<text transform="translate(${x + middle} ${y - 6}) rotate(-90)">${word}</text>`;
  });
  const cells = matrixOf(side).flatMap((row, i) => row.map((p, j) => drawCell(p, x + CELL * j, y + CELL * i)));
  return `<text x="${x}" y="${TOP}">${escaped(name)}</text>${words.join("")}${cells.join("")}` +
    `<rect x="${x}" y="${y}" width="${size}" height="${size}" fill="none" stroke="#59626d"/>`;
}

document.getElementById("figure").addEventListener("click", () => {
  const head = state.head === null ? "mean of all heads" : `head ${state.head}`;
  const above = `<text x="10" y="24" font-size="15">Layer ${state.layer}, ${head}</text>` +
    '<text x="10" y="44">rows: queries, columns: keys; white: exactly 0, grey: not allowed</text>';
  const height = TOP + WORDS + CELL * tokens.length + 24;
  saveSvg(nameOf(), Math.max(480, SIDE * sides.length), height, above + sides.map(drawSide).join(""));
});
