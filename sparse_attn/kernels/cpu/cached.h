// Screening for decoding: a cache keeps its keys as int8 too, and one query of each head reads
// them.
//
// A panel has the bytes [dim / 4][PANEL][4] of its keys + 128, then three numbers of each key as
// float: its scale, and the bound's factors of |q| and |q - q'|.
#pragma once
#include "screening.h"

template <class T>
bool Task<T>::bound_scores(int64_t, int64_t, int64_t, const Columns &) { return false; }
template <class T>
bool Task<T>::list_cached(int64_t, int64_t, int64_t, const Columns &) { return false; }

#if defined(__AVX512F__)
constexpr double MOST_GATHERED = 0.5;  // share of listed keys above which it does not pay

// Keeps keys [from, to) of a head as int8. Those with an entry near the limits of float are listed.
static void keep_bytes(const float *keys, int64_t stride, int64_t dim, int64_t from, int64_t to,
                       uint8_t *panels, int64_t panel_stride) {
  std::vector<int8_t> bytes(dim);
  for (int64_t j = from; j < to; j++) {
    uint8_t *panel = panels + j / PANEL<float> * panel_stride;
    const int64_t i = j % PANEL<float>;
    const Int8 key = quantise(keys + j * stride, stride, 1, dim, bytes.data());
    put_bytes(bytes.data(), dim, i, panel);
    float *numbers = (float *)(panel + dim * PANEL<float>) + i;
    numbers[0] = key.scale, numbers[PANEL<float>] = key.reach(dim);
    numbers[2 * PANEL<float>] = key.rounded;
  }
}

struct Bounds {  // of the scores of a group of heads
  bool known;
  int64_t visible;              // number of keys
  std::vector<int32_t> hidden;  // 0 at a visible key
  std::vector<float> upper;     // -inf at a hidden key
  VecF lower[GROUP];            // the largest ones

  // bounds of row i for the panel from key `first` on
  void add(int64_t i, int64_t first, const int32_t *products, const float *panel, const Int8 &row) {
    float *to = &upper[i * hidden.size() + first];
    for (int64_t v = 0; v < PANEL<float>; v += LANES<float>) {
      const VecF unit = load(panel + v) * row.scale;
      const VecF error = load(panel + PANEL<float> + v) * row.size +
                         load(panel + 2 * PANEL<float> + v) * row.error;
      const VecF score = (VecF)_mm512_cvtepi32_ps(_mm512_loadu_si512(products + v)) * unit;
      IntF visible;
      std::memcpy(&visible, &hidden[first + v], sizeof visible);
      visible = visible == 0;
      lower[i] = visible & (score - error > lower[i]) ? score - error : lower[i];
      store<float>(to + v, visible ? score + error : all(-INF<float>));
    }
  }
};

// Bounds the scores of a group of heads from `h` on; false if a query cannot be int8.
template <> inline
bool Task<float>::bound_scores(int64_t b, int64_t h, int64_t heads, const Columns &keys) {
  Screen &screen = kept<Screen>();
  Bounds &bounds = kept<Bounds>();
  copy_padded<float>(at<float>(a.query, b, h, 0), a.query.stride[1], heads, dim, (float)a.scale,
                     queries);
  screen.dim = dim;
  if (!screen.load_queries(queries, heads)) return false;
  // not 0, so that a key of infinite error has an infinite bound
  for (Int8 &row : screen.rows) row.size = std::max(row.size, 1e-30f);
  const int64_t panels = (keys.width + PANEL<float> - 1) / PANEL<float>;
  bounds.hidden.assign(panels * PANEL<float>, 0);
  bounds.upper.resize(heads * panels * PANEL<float>);
  bounds.visible = hide_products(b, h, 0, keys, bounds.hidden.data());
  for (VecF &lower : bounds.lower) lower = all(-INF<float>);
  const int64_t groups = a.heads / a.key_heads;
  const uint8_t *panel = at<uint8_t>(a.int8_keys, b, h / groups, keys.first / PANEL<float>);
  int32_t products[GROUP * PANEL<float>];
  for (int64_t p = 0; p < panels; p++, panel += a.int8_keys.stride[2]) {
    multiply_bytes(screen.queries.data(), panel, dim, screen.offsets.data(), products,
                   PANEL<float>);
    for (int64_t i = 0; i < heads; i++)
      bounds.add(i, p * PANEL<float>, products + i * PANEL<float>,
                 (const float *)(panel + dim * PANEL<float>), screen.rows[i]);
  }
  return true;
}

// Lists the keys that can have a weight as `list_keys` does. The heads of a group, which come one
// after another, share the pass over the int8 keys.
template <> inline
bool Task<float>::list_cached(int64_t b, int64_t h, int64_t start, const Columns &keys) {
  if (!screens || keys.to - keys.from < SCREENED_KEYS) return false;
  Bounds &bounds = kept<Bounds>();
  const int64_t groups = a.heads / a.key_heads, i = h % groups % GROUP;
  if (i == 0) {
    bounds.known = bound_scores(b, h, std::min(GROUP, groups - h % groups), keys);
    load_queries(b, h, start, 1);
  }
  if (!bounds.known || !bounds.visible) return false;
  Row<float> row = make_row(h, nullptr, nullptr, 0);
  row.valid = bounds.visible, row.top = largest<float>(bounds.lower[i]);
  const float least = std::numeric_limits<float>::lowest();  // hidden keys are below
  const float floor = screening == LIST_ALL ? least : map.few.floor(row);
  const int64_t width = (int64_t)bounds.hidden.size();
  shortlist.columns.resize(width + LANES<float>);
  const int64_t n = compress<float>(&bounds.upper[i * width], width, floor > least ? floor : least,
                                    shortlist.columns.data(), scores);
  if (screening != LIST_ALL && n > MOST_GATHERED * keys.width) return false;
  shortlist.size.assign(1, n), shortlist.visible.assign(1, bounds.visible);
  const Rows<float> rows = {at<float>(a.key, b, h / groups, first_of(a, b) + keys.first),
                            a.key.stride[2]};
  dots<float>(rows, shortlist.columns.data(), n, dim, queries, scores);
  std::fill(scores + n, scores + padded<float>(n), -INF<float>);
  return true;
}
#endif
