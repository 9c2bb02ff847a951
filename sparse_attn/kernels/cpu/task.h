// Tiles of query rows whose scores stay in cache, and products over all their keys.
#pragma once
#include <atomic>
#include <vector>

#include "args.h"
#include "gemm.h"
#include "lists.h"
#include "maps.h"
#include "support.h"

// gaps between the buffers of a task, so that AddressSanitizer detects overruns
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON ASAN_POISON_MEMORY_REGION
#define UNPOISON ASAN_UNPOISON_MEMORY_REGION
template <class T> constexpr int64_t GAP = 2 * LANES<T>;
#else
#define POISON(start, bytes) (void)0
#define UNPOISON(start, bytes) (void)0
template <class T> constexpr int64_t GAP = 0;
#endif

enum Screening { OFF, ON, LIST_ALL };  // LIST_ALL, for tests, lists every visible key
static std::atomic<int64_t> screening{ON};

constexpr int64_t BLOCK_QUERIES = 192, BLOCK_KEYS = 128;  // of backward; they stay in L2

struct Shortlist {  // of the rows of a screened tile
  std::vector<int64_t> size, visible;  // their number, and that of all visible keys
  std::vector<int32_t> columns;        // in rows as far apart as those of the scores
};
template <class S> S &kept() {  // between calls of a thread, because fresh pages are slow
  static thread_local S memory;
  return memory;
}

// One task: its buffers and its loops.
template <class T> struct Task {
  const KernelArgs &a;
  const Map<T> &map;
  bool backward;
  int64_t dim, value_dim, wide;  // padded
  int64_t stride;                // of the rows of scores
  T *keys_t, *key_rows, *values_t, *values, *sum_queries, *sum_keys, *sum_values;
  T *queries, *outs, *scores, *grads, *slopes, *keep, *special, *scratch;
  bool packed_keys, packed_values, copied_values;
  bool once;           // too few queries per key for a copy of the keys to pay
  Rows<T> value_rows;  // `values`, or the uncopied values
  // the support of a tile: by row, and its columns, scores and weights
  std::vector<Found> found;
  int32_t *few_columns;
  T *few_x, *few_p;
  bool spoiled;              // whether some row is spoiled
  int64_t patience;          // tiles of this head to skip before the next try
  Shortlist &shortlist = kept<Shortlist>();
  // in screening.h: whether tiles are screened, the state of their keys, and tiles to skip
  bool screens, begun;
  int64_t crowded;
  Lists<T> *lists;           // kept for backward, or null
  T *few, *few_grad;         // of a row: entries, and scratch or gradients
  int32_t *row_columns;
  struct Sums {  // of a row that is computed by blocks of keys
    T delta, theta;
    int64_t owner[2];  // columns of the entries of Pull, or -1
    T cap[2];          // the slopes of the soft cap there
  };
  std::vector<Sums> sums;

  Task(const KernelArgs &a, const Map<T> &map, bool backward, Lists<T> *lists)
      : a(a), map(map), backward(backward), dim(padded<T>(a.dim)),
        value_dim(padded<T>(a.value_dim)), wide((a.keys + PANEL<T> - 1) / PANEL<T> * PANEL<T>),
        stride(wide + LANES<T>), found(a.tile_rows), lists(lists),
        sums(std::max(a.tile_rows, BLOCK_QUERIES)) {
    // strides are not powers of 2, because columns would share cache lines
    int64_t most_rows = std::max(a.tile_rows, BLOCK_QUERIES);
    int64_t blocks = backward ? BLOCK_QUERIES * (std::min(BLOCK_KEYS, wide) + LANES<T>) : 0;
    int64_t tile = std::max(a.tile_rows * stride, blocks);
    // and one row
    int64_t most = map.few.floor ? (int64_t)(ROOM * a.tile_rows * stride) + stride : 0;
    int64_t row = map.few.floor ? stride : 0;
    T *few_ints, *row_ints;  // an int32_t fits into a T
    struct Need {
      T **buffer;
      int64_t size;
    } needs[] = {{&keys_t, wide * a.dim},
                 {&values, !backward || map.few.floor ? wide * value_dim : 0},
                 {&queries, most_rows * dim},
                 {&outs, most_rows * value_dim},
                 {&sum_queries, backward ? most_rows * std::max(dim, value_dim) : 0},
                 {&scores, tile},
                 {&keep, stride},
                 {&special, a.special_keys ? stride : 0},
                 {&slopes, a.softcap > 0 ? tile : 0},
                 {&key_rows, backward ? wide * dim : 0},
                 {&values_t, backward ? wide * a.value_dim : 0},
                 {&sum_keys, backward ? wide * dim : 0},
                 {&sum_values, backward ? wide * value_dim : 0},
                 {&grads, backward ? tile : 0},
                 {&scratch, 2 * stride},
                 {&few, row},
                 {&few_grad, row},
                 {&row_ints, row},
                 {&few_x, most},
                 {&few_p, most},
                 {&few_ints, most}};
    int64_t total = 64 / sizeof(T);
    for (const Need &need : needs) total += padded<T>(need.size) + GAP<T>;
    // reused by the thread between calls, because fresh pages are slow
    static thread_local std::vector<T> memory;
    UNPOISON(memory.data(), memory.size() * sizeof(T));
    if ((int64_t)memory.size() < total) memory.resize(total);
    T *next = (T *)(((uintptr_t)memory.data() + 63) / 64 * 64);
    for (const Need &need : needs) {
      *need.buffer = next, next += padded<T>(need.size) + GAP<T>;
      POISON(next - GAP<T>, GAP<T> * sizeof(T));
    }
    few_columns = (int32_t *)few_ints, row_columns = (int32_t *)row_ints;
  }

  // heads: some or all of one key head
  void run(int64_t b, Range heads, int64_t segment) {
    packed_keys = packed_values = copied_values = begun = false, crowded = 0;
    int64_t first = first_of(a, b), keys = keys_of(a, b), groups = a.heads / a.key_heads;
    int64_t key_head = heads.from / groups;
    Range all = queries_of(a, b), part = queries_of(a, b, segment);
    const T *key = at<T>(a.key, b, key_head, first);
    once = !backward && meets_once<T>(a, all.to - all.from);
    screens = may_screen((heads.to - heads.from) * (part.to - part.from));
    value_rows = {at<T>(a.value, b, key_head, first), a.value.stride[2]};
    if (backward) copy_padded<T>(key, a.key.stride[2], length_of(a, b), a.dim, 1, key_rows);
    if (backward && map.few.floor) copy_values(b);
    if (backward) {
      std::fill(sum_keys, sum_keys + keys * dim, T(0));
      std::fill(sum_values, sum_values + keys * value_dim, T(0));
    }
    if (a.special_keys) {
      std::copy_n(a.special_keys + (a.starts ? first : b * keys), keys, special);
      std::fill(special + keys, special + stride, T(0));
    }
    for (int64_t h = heads.from; h < heads.to; h++) {
      Slopes by = {};
      patience = 0;
      for (int64_t i = part.from, rows; i < part.to; i += rows) {
        rows = backward ? alike(b, h, i, part.to) : std::min(a.tile_rows, part.to - i);
        if (backward) tile_backward(b, h, i, rows, by);
        else tile_forward(b, h, i, rows);
      }
      if (backward) std::memcpy(at<T>(a.grad_parameter, b, h, 0, segment), &by, sizeof by);
    }
    if (!backward) return;
    copy_back<T>(sum_keys, keys, a.dim, 1, at<T>(a.grad_key, b, key_head, first, segment),
                 a.grad_key.stride[2]);
    copy_back<T>(sum_values, keys, a.value_dim, 1,
                 at<T>(a.grad_value, b, key_head, first, segment), a.grad_value.stride[2]);
  }

  struct Slopes {  // of a head
    T theta, sink;
  };

  void pack_keys(int64_t b, int64_t h) {
    if (packed_keys) return;
    const T *key = at<T>(a.key, b, h / (a.heads / a.key_heads), first_of(a, b));
    pack_transposed<T>(key, a.key.stride[2], length_of(a, b), a.dim, keys_t);
    packed_keys = true;
  }
  void pack_values(int64_t b, int64_t h) {
    if (packed_values) return;
    const T *value = at<T>(a.value, b, h / (a.heads / a.key_heads), first_of(a, b));
    pack_transposed<T>(value, a.value.stride[2], length_of(a, b), a.value_dim, values_t);
    packed_values = true;
  }
  void copy_values(int64_t b) {
    if (once || copied_values) return;
    copy_padded<T>(value_rows.data, value_rows.stride, length_of(a, b), a.value_dim, 1, values);
    value_rows = {values, value_dim}, copied_values = true;
  }

  // queries times keys [first, first + n)
  void multiply_keys(int64_t b, int64_t h, const T *queries, int64_t rows, int64_t first,
                     int64_t n) {
    if (!once) {
      pack_keys(b, h);
      multiply<T>({queries, dim, 1}, keys_t + first * a.dim, PANEL<T>, PANEL<T> * a.dim, rows,
                  a.dim, padded<T>(n), scores, stride, false);
      return;
    }
    T *key = at<T>(a.key, b, h / (a.heads / a.key_heads), first_of(a, b) + first);
    for (int64_t i = 0; i < rows; i++)
      dots<T>({key, a.key.stride[2]}, nullptr, n, dim, queries + i * dim, scores + i * stride);
  }

  void load_queries(int64_t b, int64_t h, int64_t start, int64_t rows) {
    copy_padded<T>(at<T>(a.query, b, h, start), a.query.stride[2], rows, a.dim, (T)a.scale,
                   queries);
  }

  // the scores of rows and keys of a tile, -inf where masked, and the columns they are in
  Columns score(int64_t b, int64_t h, int64_t start, const T *queries, int64_t rows, Range keys,
                bool last) {
    const Columns columns = columns_of(keys, last);
    const int64_t first = columns.first, mapped = columns.width;
    const int64_t width = mapped ? padded<T>(keys.to - first) : 0;
    multiply_keys(b, h, queries, rows, first, width ? keys.to - first : 0);
    for (int64_t i = 0; i < rows; i++) {
      T *x = scores + i * stride;
      if (a.softcap > 0) cap(x, slopes + i * stride, width);
      Range own = row_range(a, b, start + i);
      own = {std::max(own.from, keys.from) - first, std::min(own.to, keys.to) - first};
      own.to = std::max(own.from = std::min(own.from, width), std::min(own.to, width));
      if (a.bias.data) {
        const T *bias = at<T>(a.bias, b, h, start + i, first_of(a, b) + first);
        if (a.bias.stride[3])
          for (int64_t j = own.from; j < own.to; j++) x[j] += bias[j];
        else
          for (int64_t j = own.from; j < own.to; j++) x[j] += *bias;
      }
      if (a.mask.data)
        hide(x, at<uint8_t>(a.mask, b, h, start + i, first_of(a, b) + first), own);
      std::fill(x, x + own.from, -INF<T>);
      std::fill(x + own.to, x + mapped, -INF<T>);
      if (columns.sink) x[keys.to - first] = (T)a.sink[h];
    }
    return columns;
  }

  Columns columns_of(Range keys, bool last) const {
    int64_t first = keys.from / PANEL<T> * PANEL<T>;
    if (keys.to <= keys.from) return {keys, first, 0, false};
    // a sink is one more score, after the scores with a value
    bool sink = a.sink && last;
    return {keys, first, padded<T>(keys.to - first + sink), sink};
  }

  void hide(T *__restrict x, const uint8_t *__restrict mask, Range own) {
    if (a.mask.stride[3])
      for (int64_t j = own.from; j < own.to; j++) x[j] = mask[j] ? x[j] : -INF<T>;
    else if (!*mask) std::fill(x + own.from, x + own.to, -INF<T>);
  }

  void cap(T *x, T *slope, int64_t width) {
    for (int64_t j = 0; j < width; j += LANES<T>) {
      Vec<T> t = tanh(load(x + j) * T(1 / a.softcap));
      store<T>(x + j, t * T(a.softcap));
      store<T>(slope + j, 1 - t * t);
    }
  }

  Row<T> make_row(int64_t h, T *x, T *g, int64_t n) {
    Row<T> row = {};
    row.x = x, row.g = g, row.n = n, row.theta = a.parameter[h];
    row.u = scratch, row.v = scratch + stride, row.want_theta = a.want_parameter;
    return row;
  }

  // finds top and number of the valid scores; returns whether NaN or +inf spoils the row
  bool survey(Row<T> &row) {
    Vec<T> top = all(-INF<T>);
    Int<T> valid = Int<T>{}, odd = Int<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> s = load(row.x + j);
      top = larger(s, top);
      valid -= (Int<T>)(s != -INF<T>);
      odd -= (Int<T>)(s != s);
    }
    row.top = largest<T>(top), row.valid = count<T>(valid);
    return count<T>(odd) || row.top == INF<T> || row.theta != row.theta;
  }

  // Maps the scores of a row to weights and, with g, their gradients; with sums those of a part of
  // the row. NaN or +inf spoils the row.
  T map_row(int64_t b, int64_t h, int64_t i, T *x, T *g, const Columns &keys,
            Sums *sums = nullptr) {
    Row<T> row = make_row(h, x, g, keys.width);
    Found *found = a.found ? a.found + row_index(a, b, h, i) : nullptr;
    bool spoiled = sums ? recall(row, *found, *sums, (x - scores) / stride, keys.first)
                        : survey(row);
    if (found && !g) found->valid = row.valid, found->top = spoiled ? NAN : row.top;
    if (!row.valid || spoiled) {
      // a row without keys may lie in a block with those of others
      T bad = row.valid ? std::numeric_limits<T>::quiet_NaN() : T(0);
      for (int64_t j = 0; j < row.n; j++) x[j] = x[j] != -INF<T> ? bad : 0;
      if (g) std::copy(x, x + row.n, g);
      if (keys.sink) x[keys.to - keys.first] = 0;
      if (a.statistics) measure(row, b, h, i, special + keys.first);
      return bad;
    }
    if (a.seed) {
      const Dropout<T> dropout(a, b, h, i);
      for (int32_t j = 0; j < row.n; j++) keep[j] = dropout.factor((int32_t)keys.first + j);
    }
    // statistics use the weights before dropout
    row.keep = a.seed && !a.statistics ? keep : nullptr;
    if (g) {
      row.known = found && found->size == ALL;
      if (row.known) row.low = (T)found->low, row.high = (T)found->high;
      return map.backward(row);
    }
    map.forward(row);
    if (found) found->low = row.low, found->high = row.high, found->inverse = row.inverse;
    if (!a.statistics) return 0;
    if (keys.sink) x[keys.to - keys.first] = 0;
    measure(row, b, h, i, special + keys.first);
    if (a.seed) EACH_VECTOR(row, j) store<T>(x + j, load(x + j) * load(keep + j));
    return 0;
  }

  // special: 1 at special keys, or null
  void measure(const Row<T> &row, int64_t b, int64_t h, int64_t i, const T *special) {
    Vec<T> entropy = Vec<T>{}, named = Vec<T>{}, total = Vec<T>{};
    Int<T> support = Int<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> p = load(row.x + j);
      support -= (Int<T>)(p > 0);
      total += p;
      entropy -= p > 0 ? p * log(p) : Vec<T>{};
      if (a.special_keys) named += p * load(special + j);
    }
    T *result = (T *)a.statistics + row_index(a, b, h, i) * STATISTICS;
    T mass = sum<T>(total), bad = mass * 0;  // NaN in a NaN row
    int64_t valid = row.valid - (a.sink != nullptr);
    T size = mass == 0 ? T(1) : mass;
    result[0] = valid > 0, result[1] = valid, result[2] = count<T>(support) + bad;
    result[3] = sum<T>(entropy) / size + std::log(size), result[4] = sum<T>(named) + bad;
    result[5] = a.special_keys && valid, result[6] = mass;
  }

  // in few.h
  Row<T> few_row(int64_t b, int64_t h, int64_t i, const int32_t *columns, T *g, int64_t n,
                 const Found &at, T top);
  void pick(const Row<T> &whole, int64_t b, int64_t h, int64_t i, int64_t n, const Columns &keys,
            Found &at);
  bool select(int64_t b, int64_t h, int64_t start, int64_t rows, const Columns &keys,
              bool listed = false);
  void measure_few(Row<T> &row, int64_t b, int64_t h, int64_t i, int64_t n, const Columns &keys);
  void multiply_few(int64_t rows);
  void keep_found(int64_t b, int64_t h, int64_t start, int64_t rows, bool sparse);
  void keep_weights(int64_t b, int64_t h, int64_t start, int64_t rows, bool sparse,
                    const Columns &keys);
  void few_backward(int64_t b, int64_t h, int64_t start, int64_t rows, const Found *support,
                    const int32_t *all_columns, const T *all_scores, Slopes &by);

  // in screening.h
  bool may_screen(int64_t rows) const;
  bool list_keys(int64_t b, int64_t h, int64_t start, int64_t rows, const Columns &keys);
  bool find_keys(int64_t b, int64_t h, int64_t start, int64_t rows, const Columns &keys);
  int64_t hide_products(int64_t b, int64_t h, int64_t i, const Columns &keys, int32_t *products);
  // in cached.h
  bool bound_scores(int64_t b, int64_t h, int64_t heads, const Columns &keys);
  bool list_cached(int64_t b, int64_t h, int64_t start, const Columns &keys);

  // in backward.h
  // whether backward needs no row of this tile as a whole
  bool in_parts(const Found *known) const {
    return map.parts && a.result.data && known && known->size == ALL;
  }
  int64_t alike(int64_t b, int64_t h, int64_t start, int64_t to) const;
  void tile_backward(int64_t b, int64_t h, int64_t start, int64_t rows, Slopes &by);
  void block_backward(int64_t b, int64_t h, int64_t start, Range own, const Columns &keys,
                      bool parts, Slopes &by);
  void begin_parts(int64_t b, int64_t h, int64_t start, int64_t rows);
  bool recall(Row<T> &row, const Found &found, Sums &sums, int64_t i, int64_t first);
  void finish_parts(int64_t b, int64_t h, int64_t start, int64_t rows, int64_t sink, Slopes &by);

  void tile_forward(int64_t b, int64_t h, int64_t start, int64_t rows) {
    load_queries(b, h, start, rows);
    const Columns keys = columns_of(tile_range(a, b, h, start, rows), true);
    const bool cached = a.int8_keys.data;
    const bool listed = cached ? list_cached(b, h, start, keys)
                               : list_keys(b, h, start, rows, keys);
    if (!cached || !listed) copy_values(b);
    if (!listed) score(b, h, start, queries, rows, keys, true);
    const bool sparse = select(b, h, start, rows, keys, listed);
    if (listed && !sparse) score(b, h, start, queries, rows, keys, true);
    if (a.found && !a.keep_weights) keep_found(b, h, start, rows, sparse);
    for (int64_t i = 0; i < rows && keys.width && !sparse; i++)
      map_row(b, h, start + i, scores + i * stride, nullptr, keys);
    if (a.keep_weights) return keep_weights(b, h, start, rows, sparse, keys);
    if (sparse) {
      multiply_few(rows);
    } else {
      const T *from = value_rows.data + keys.from * value_rows.stride;
      multiply<T>({scores + keys.from - keys.first, stride, 1}, from, value_rows.stride, PANEL<T>,
                  rows, keys.to - keys.from, value_dim, outs, value_dim, false);
    }
    copy_back<T>(outs, rows, a.value_dim, 1, at<T>(a.out, b, h, start), a.out.stride[2]);
    if (a.result.data)
      copy_back<T>(outs, rows, a.value_dim, 1, at<T>(a.result, b, h, start), a.result.stride[2]);
  }
};
