// Certified screening: int8 products show which keys of a long row cannot reach its floor.
//
// Let q', k' be q, k rounded to int8 times a scale. By Cauchy and Schwarz
//     |q.k - q'.k'| = |q.(k - k') + (q - q').k'| <= |q| |k - k'| + |q - q'| |k'|,
// and a float product of q and k, of d terms in any order, is within d 2^-24 |q| |k| of q.k. Where
// the floor of a row depends only on its largest score, the largest lower bound gives a floor that
// is not above the true one. A key whose upper bound is below it has weight 0, and only the scores
// of the other keys are computed.
#pragma once
#include "task.h"

// Below LEAST_DIM the float products cost too little; above MOST_DIM, int8 ones would not be below
// 2^23.
constexpr int64_t LEAST_DIM = 32, MOST_DIM = 512;

// whether the machine has int8 products, and heads of this size are whole vectors
static bool has_int8_products(int64_t dim) {
#if defined(__AVX512F__)
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has && padded<float>(dim) == dim && dim >= LEAST_DIM && dim <= MOST_DIM;
#else
  return false;
#endif
}

template <class T> bool Task<T>::may_screen(int64_t) const { return false; }
template <class T>
bool Task<T>::list_keys(int64_t, int64_t, int64_t, int64_t, const Columns &) { return false; }

#if defined(__AVX512F__)
constexpr int32_t HIDDEN = std::numeric_limits<int32_t>::min();
// It pays from so many keys of a tile, and rows that meet a key, on.
constexpr int64_t SCREENED_KEYS = 1024, SCREENED_ROWS = 128;
// Up to this share of keys times d the others are worth more than the scores of the listed ones.
constexpr double MOST_LISTED = 0.0015;
constexpr int64_t PROBED = 256;   // keys that tell whether all are worth it
constexpr int64_t CROWDED = 32;   // tiles to skip after one that is not
constexpr int64_t GROUP = 4;      // queries of a block; with 4 vectors of keys, in registers

struct Int8 {  // of rows x, rounded to x' = int8 times scale: the largest norms of x, x - x' and x'
  float scale, size, error, rounded;

  // the factor of |q| in the bound: one d 2^-24 is that of the float product, the other is above the
  // rounding of the 6 operations on a bound
  float reach(int64_t dim) const { return error + 2 * dim * 0x1p-24f * size; }
};

// Rounds n rows to int8. If an entry is near the limits of float, size is infinite.
static Int8 quantise(const float *from, int64_t stride, int64_t n, int64_t dim, int8_t *to) {
  VecF most = VecF{};
  bool odd = false;
  for (int64_t i = 0; i < n; i++)
    for (int64_t k = 0; k < dim; k += LANES<float>) {
      VecF size = magnitude(load(from + i * stride + k));
      most = larger(size, most), odd |= lanes(size < 1e17f) != 0xffff;
    }
  if (odd) return {1, INF<float>, 0, 0};
  const float scale = std::max(largest<float>(most), 1e-15f) / 127, inverse = 1 / scale;
  float size = 0, error = 0, rounded = 0;
  for (int64_t i = 0; i < n; i++) {
    VecF sizes = VecF{}, errors = VecF{}, squares = VecF{};
    for (int64_t k = 0; k < dim; k += LANES<float>) {
      VecF x = load(from + i * stride + k);
      __m512i units = _mm512_cvtps_epi32((__m512)(x * inverse));
      VecF back = (VecF)_mm512_cvtepi32_ps(units) * scale;
      sizes += x * x, errors += (x - back) * (x - back), squares += back * back;
      _mm_storeu_si128((__m128i *)(to + i * dim + k), _mm512_cvtsepi32_epi8(units));
    }
    size = std::max(size, sum<float>(sizes)), error = std::max(error, sum<float>(errors));
    rounded = std::max(rounded, sum<float>(squares));
  }
  // above the rounding of these sums, and the squares that are rounded to 0
  auto norm = [&](float sum) {
    return 1.0001f * std::sqrt(sum + dim * std::numeric_limits<float>::min());
  };
  return {scale, norm(size), norm(error), norm(rounded)};
}

// puts a key at place i of a panel of keys + 128, [dim / 4][PANEL][4]
static void put_bytes(const int8_t *key, int64_t dim, int64_t i, uint8_t *panel) {
  for (int64_t k = 0; k < dim; k += 4) {
    uint32_t four;
    std::memcpy(&four, key + k, sizeof four);
    four ^= 0x80808080u;  // + 128 in each byte
    std::memcpy(panel + k * PANEL<float> + 4 * i, &four, sizeof four);
  }
}

// products of a group of queries with a panel of keys + 128, minus the offsets
__attribute__((target("avx512vnni"))) static void
multiply_bytes(const int8_t *queries, const uint8_t *keys, int64_t dim, const int32_t *offsets,
               int32_t *products, int64_t stride) {
  __m512i total[GROUP][4];
  for (int i = 0; i < GROUP; i++)
    for (auto &vector : total[i]) vector = _mm512_set1_epi32(-offsets[i]);
  for (int64_t k = 0; k < dim; k += 4, keys += 4 * PANEL<float>) {
    __m512i right[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) right[v] = _mm512_loadu_si512(keys + v * 64);
#pragma GCC unroll 4
    for (int i = 0; i < GROUP; i++) {
      int32_t left;
      std::memcpy(&left, queries + i * dim + k, sizeof left);
#pragma GCC unroll 4
      for (int v = 0; v < 4; v++)
        total[i][v] = _mm512_dpbusd_epi32(total[i][v], right[v], _mm512_set1_epi32(left));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < GROUP; i++)
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
      _mm512_storeu_si512(products + i * stride + v * LANES<float>, total[i][v]);
}

// The keys of a head and the queries of a tile as int8. A panel of keys has one scale.
struct Screen {
  int64_t dim, loaded;  // panels of keys that are loaded
  bool finite;
  std::vector<uint8_t> keys;
  std::vector<int8_t> bytes;  // of a panel, before they are put there
  std::vector<float> scales, reaches, norms;  // by panel
  std::vector<int8_t> queries;
  std::vector<int32_t> offsets;  // 128 times a query's sum
  std::vector<Int8> rows;
  // of the row that `largest_score` has seen, by panel: unit and error of its products
  std::vector<float> units, errors;
  std::vector<int32_t> bounds;

  void begin(int64_t n, int64_t width) {
    const int64_t panels = (n + PANEL<float> - 1) / PANEL<float>;
    dim = width, loaded = 0, finite = true, keys.resize(panels * PANEL<float> * dim);
    bytes.resize(PANEL<float> * dim);
    for (auto *floats : {&scales, &reaches, &norms, &units, &errors})
      floats->assign(padded<float>(panels) + LANES<float>, 1);  // read from any panel on
    bounds.resize(padded<float>(panels));
  }

  // loads the panels up to `panels` of n keys
  void load_keys(const float *from, int64_t stride, int64_t n, int64_t panels) {
    for (; loaded < panels; loaded++) {
      const int64_t start = loaded * PANEL<float>, here = std::min(PANEL<float>, n - start);
      Int8 panel = quantise(from + start * stride, stride, here, dim, bytes.data());
      scales[loaded] = panel.scale, reaches[loaded] = panel.reach(dim);
      norms[loaded] = panel.rounded, finite &= panel.size < INF<float>;
      for (int64_t i = 0; i < here; i++) put_bytes(&bytes[i * dim], dim, i, &keys[start * dim]);
    }
  }

  bool load_queries(const float *from, int64_t n) {
    const int64_t whole = std::max(n, GROUP);
    queries.assign(whole * dim, 0), offsets.assign(whole, 0), rows.resize(n);
    for (int64_t i = 0; i < n; i++) {
      rows[i] = quantise(from + i * dim, dim, 1, dim, &queries[i * dim]);
      if (!(rows[i].size < INF<float>)) return false;
      for (int64_t k = 0; k < dim; k++) offsets[i] += 128 * queries[i * dim + k];
    }
    return true;
  }

  // products of the first n queries with panels from `first` on; if n is below GROUP, those of the
  // rows after them are written, too
  void multiply(int64_t n, int64_t first, int64_t panels, int32_t *products, int64_t stride) const {
    for (int64_t p = 0; p < panels; p++)
      for (int64_t group = 0; group < n; group += GROUP) {
        const int64_t i = std::min(group, std::max(n - GROUP, (int64_t)0));
        multiply_bytes(&queries[i * dim], &keys[(first + p) * PANEL<float> * dim], dim, &offsets[i],
                       products + i * stride + p * PANEL<float>, stride);
      }
  }

  // the largest lower bound of a row's scores
  float largest_score(int64_t i, const int32_t *products, int64_t first, int64_t panels) {
    VecF best = all(-INF<float>);
    for (int64_t p = 0; p < padded<float>(panels); p += LANES<float>) {
      store(&units[p], load(&scales[first + p]) * rows[i].scale);
      store(&errors[p], load(&reaches[first + p]) * rows[i].size +
                            load(&norms[first + p]) * rows[i].error +
                            dim * std::numeric_limits<float>::min());
    }
    const float *unit = units.data(), *error = errors.data();
    for (int64_t p = 0; p < panels; p++, products += PANEL<float>) {
      __m512i most = _mm512_loadu_si512(products);
      for (int v = 1; v < 4; v++)
        most = _mm512_max_epi32(most, _mm512_loadu_si512(products + v * LANES<float>));
      VecF low = (VecF)_mm512_cvtepi32_ps(most) * unit[p] - error[p];
      best = ((IntF)most != HIDDEN) & (low > best) ? low : best;
    }
    return largest<float>(best);
  }

  // Lists the keys whose upper bound is at least `floor`. Where a product, which is below 2^23, can
  // reach its bound, the difference, the quotient and its integer are rounded by less than 4 units.
  int64_t list(float floor, const int32_t *products, int64_t panels, int32_t *columns) {
    for (int64_t p = 0; p < padded<float>(panels); p += LANES<float>) {
      VecF bound = (floor - load(&errors[p])) / load(&units[p]) - 4;
      bound = at_most(at_least(bound, all(-0x1p30f)), all(0x1p30f));
      _mm512_storeu_si512(&bounds[p], _mm512_cvttps_epi32((__m512)bound));
    }
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    int64_t n = 0;
    const int32_t *bound = bounds.data();
    for (int64_t p = 0; p < panels; p++, products += PANEL<float>) {
      __mmask16 large[4];
      for (int v = 0; v < 4; v++)
        large[v] = _mm512_cmpge_epi32_mask(_mm512_loadu_si512(products + v * LANES<float>),
                                           _mm512_set1_epi32(bound[p]));
      if (!(large[0] | large[1] | large[2] | large[3])) continue;
      for (int v = 0; v < 4; v++) {
        __m512i column = _mm512_set1_epi32((int32_t)(p * PANEL<float> + v * LANES<float>));
        column = _mm512_add_epi32(column, lanes);
        _mm512_storeu_si512(columns + n, _mm512_maskz_compress_epi32(large[v], column));
        n += __builtin_popcount(large[v]);
      }
    }
    return n;
  }
};

// rows: those that meet a key
template <> inline bool Task<float>::may_screen(int64_t rows) const {
  const bool many = rows >= SCREENED_ROWS && !a.int8_keys.data;
  // the heads of a group share their mask, and values are not copied
  const bool cached = a.int8_keys.data && !a.mask.stride[1] && value_dim == a.value_dim;
  return (many || cached) && has_int8_products(a.dim) && screening != OFF &&
         by_top(map.few.floor) && !backward && a.softcap == 0 && !a.bias.data && !a.sink && !a.statistics;
}

// Hides the products of keys that row i does not attend to; returns the number of the others.
template <> inline
int64_t Task<float>::hide_products(int64_t b, int64_t h, int64_t i, const Columns &keys,
                                   int32_t *products) {
  Range own = row_range(a, b, i);
  own = {std::max(own.from, keys.from) - keys.first, std::min(own.to, keys.to) - keys.first};
  const int64_t whole = (keys.width + PANEL<float> - 1) / PANEL<float> * PANEL<float>;
  own.to = std::max(own.from = std::min(own.from, whole), std::min(own.to, whole));
  std::fill(products, products + own.from, HIDDEN);
  std::fill(products + own.to, products + whole, HIDDEN);
  if (!a.mask.data) return own.to - own.from;
  const uint8_t *__restrict mask = at<uint8_t>(a.mask, b, h, i, first_of(a, b) + keys.first);
  if (!a.mask.stride[3]) {
    if (!*mask) std::fill(products + own.from, products + own.to, HIDDEN);
    return *mask ? own.to - own.from : 0;
  }
  int32_t *__restrict hidden = products, valid = 0;
  for (int64_t j = own.from; j < own.to; j++) {
    hidden[j] = mask[j] ? hidden[j] : HIDDEN;
    valid += mask[j] != 0;
  }
  return valid;
}

// Lists the keys of each row that can have a weight. False if they are many, or a floor is not a
// number.
template <> inline
bool Task<float>::find_keys(int64_t b, int64_t h, int64_t start, int64_t rows,
                            const Columns &keys) {
  Screen &screen = kept<Screen>();
  const int64_t first = keys.first / PANEL<float>;
  const int64_t panels = (keys.to - 1) / PANEL<float> + 1 - first;
  screen.load_keys(at<float>(a.key, b, h / (a.heads / a.key_heads), first_of(a, b)),
                   a.key.stride[2], length_of(a, b), first + panels);
  if (!screen.finite) return false;
  screen.multiply(rows, first, panels, (int32_t *)scores, stride);  // a tile has room for 6 rows
  int64_t total = 0;
  for (int64_t i = 0; i < rows; i++) {
    int32_t *products = (int32_t *)scores + i * stride, *columns = &shortlist.columns[i * stride];
    Row<float> row = make_row(h, nullptr, nullptr, 0);
    row.valid = shortlist.visible[i] = hide_products(b, h, start + i, keys, products);
    if (!row.valid) continue;
    row.top = screen.largest_score(i, products, first, panels);
    const float floor = map.few.floor(row);
    if (!(floor > -INF<float>)) return false;
    int64_t &size = shortlist.size[i];
    total += size = screen.list(floor, products, panels, columns);
    if (total > MOST_LISTED * dim * keys.width * std::max(i + 1, GROUP)) return false;
    if (screening == LIST_ALL) size = screen.list(-INF<float>, products, panels, columns);
  }
  return true;
}

// Lists the keys of each row that can have a weight, with their scores in `scores`. False if the
// tile is not screened; then the scores are to be computed.
template <> inline
bool Task<float>::list_keys(int64_t b, int64_t h, int64_t start, int64_t rows,
                            const Columns &keys) {
  // select refuses a tile that waits for its patience
  if (!screens || patience > 0 || keys.to - keys.from < SCREENED_KEYS) return false;
  if (crowded > 0) return crowded--, false;
  Screen &screen = kept<Screen>();
  if (!begun) screen.begin(length_of(a, b), dim);
  begun = true;
  shortlist.size.assign(rows, 0), shortlist.visible.assign(rows, 0);
  shortlist.columns.resize(rows * stride);
  const Columns few = columns_of({keys.from, keys.first + PROBED}, false);
  if (!screen.load_queries(queries, rows) ||
      (!crowded && !find_keys(b, h, start, std::min(rows, GROUP), few)) ||
      !find_keys(b, h, start, rows, keys))
    return crowded = CROWDED, false;
  crowded = -1;  // the next tile needs no probe
  Rows<float> key_rows = {at<float>(a.key, b, h / (a.heads / a.key_heads), first_of(a, b)),
                          a.key.stride[2]};
  key_rows.data += keys.first * key_rows.stride;
  for (int64_t i = 0; i < rows; i++) {
    float *x = scores + i * stride;
    const int64_t n = shortlist.size[i];
    dots<float>(key_rows, &shortlist.columns[i * stride], n, dim, queries + i * dim, x);
    std::fill(x + n, x + padded<float>(n), -INF<float>);
  }
  return true;
}
#endif
