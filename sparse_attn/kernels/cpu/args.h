// Arguments of one call, and the keys and dropout factors of its rows.
#pragma once
#include <algorithm>

#include "simd.h"

struct View {
  void *data;
  int64_t stride[4];  // of batch, head and row; the last of column (mask, bias) or segment
};

// Result of the forward pass for a row. The support has columns and scores, unless
// size is ALL (it would take most of the row) or UNKNOWN.
struct Found {
  int64_t start, size, valid;
  double low, high;     // threshold as in Row, unless UNKNOWN
  double top, inverse;  // as in Row, if ALL; the top of a spoiled row is NaN
};
constexpr int64_t ALL = -1, UNKNOWN = -2;

struct KernelArgs {  // as in kernel_args.py
  const char *kernel;
  int64_t batch;                // or number of packed sequences
  int64_t heads, key_heads, queries, keys, dim, value_dim;  // keys of the longest sequence
  int64_t segments, segment_rows, tile_rows, threads;
  int64_t all_batches, all_heads;  // whether one task covers all
  int64_t want_parameter, keep_lists, keep_weights, causal, window;
  double scale, softcap, dropout, least;
  const int64_t *seed, *key_lengths;
  const int64_t *starts;  // starts of packed sequences and the last end, or null
  const double *parameter, *sink;  // by head; sink may be null
  const uint8_t *special_keys;  // (batch, keys), or null
  void *statistics;             // (batch, heads, queries, STATISTICS), or null
  Found *found;                 // (batch, heads, queries), or null; from forward for backward
  int32_t *columns;             // of the supports, -1 for a sink
  void *scores;  // of the supports; with keep_weights, the weights above `least` of all rows
  void *lists;  // lists of the tasks, until `collect`
  int64_t entries;
  View query, key, value, mask, bias;
  View out;     // its gradient in backward
  View result;  // a copy of `out` that forward keeps for backward, or null
  View int8_keys;  // of a cache, for one query, or null: by batch, head and panel, see cached.h
  View grad_query, grad_key, grad_value, grad_bias, grad_parameter;
};

template <class T> T *at(const View &view, int64_t b, int64_t h, int64_t row, int64_t segment = 0) {
  return (T *)view.data + b * view.stride[0] + h * view.stride[1] + row * view.stride[2] +
         segment * view.stride[3];
}

constexpr int64_t MET_ONCE = 4;    // most queries of a key for which it is not copied
template <class T> bool meets_once(const KernelArgs &a, int64_t queries) {
  bool whole = padded<T>(a.dim) == a.dim && padded<T>(a.value_dim) == a.value_dim;
  return whole && queries * (a.heads / a.key_heads) <= MET_ONCE;
}
constexpr int64_t STATISTICS = 7;  // columns, as statistics.py names them

struct Range {
  int64_t from, to;
};

struct Columns : Range {  // keys of a tile, and the whole vectors with them and the sink
  int64_t first, width;
  bool sink;  // whether it is there, after the keys
};

// Queries i are numbered over all sequences, as in memory; keys j within their sequence.
static int64_t first_of(const KernelArgs &a, int64_t b) { return a.starts ? a.starts[b] : 0; }

static int64_t keys_of(const KernelArgs &a, int64_t b) {
  return a.starts ? a.starts[b + 1] - a.starts[b] : a.keys;
}

static int64_t length_of(const KernelArgs &a, int64_t b) {
  return a.key_lengths ? std::clamp<int64_t>(a.key_lengths[b], 0, a.keys) : keys_of(a, b);
}

static Range queries_of(const KernelArgs &a, int64_t b) {
  return a.starts ? Range{a.starts[b], a.starts[b + 1]} : Range{0, a.queries};
}

static Range queries_of(const KernelArgs &a, int64_t b, int64_t segment) {
  Range all = queries_of(a, b);
  int64_t from = all.from + segment * a.segment_rows;
  return {from, std::min(all.to, from + a.segment_rows)};
}

// index of this row in (batch, heads, queries); one batch entry holds all packed sequences
static int64_t row_index(const KernelArgs &a, int64_t b, int64_t h, int64_t i) {
  return ((a.starts ? 0 : b) * a.heads + h) * a.queries + i;
}

// the keys that query i may attend to, without the mask
static Range row_range(const KernelArgs &a, int64_t b, int64_t i) {
  Range keys = {0, length_of(a, b)};
  i -= first_of(a, b);
  if (a.causal) keys.to = std::min(keys.to, i + 1);
  if (a.window) keys = {std::max(keys.from, i - a.window + 1), std::min(keys.to, i + a.window)};
  return {std::min(keys.from, keys.to), keys.to};
}

// the rows of a tile that may attend to one of these keys, counted from its first row
static Range rows_meeting(const KernelArgs &a, int64_t b, int64_t start, int64_t rows, Range keys) {
  Range own = {0, rows};
  while (own.from < rows && row_range(a, b, start + own.from).to <= keys.from) own.from++;
  while (own.to > own.from && row_range(a, b, start + own.to - 1).from >= keys.to) own.to--;
  return own;
}

// the keys that some query of the tile attends to; padding costs only this read of the mask
static Range tile_range(const KernelArgs &a, int64_t b, int64_t h, int64_t start, int64_t rows) {
  Range keys = {row_range(a, b, start).from, row_range(a, b, start + rows - 1).to};
  keys.to = std::max(keys.from, keys.to);
  if (!a.mask.data || a.mask.stride[3] != 1) return keys;
  int64_t first = keys.to, last = keys.from;
  for (int64_t i = a.mask.stride[2] ? rows - 1 : 0; i >= 0; i--) {
    const uint8_t *mask = at<uint8_t>(a.mask, b, h, start + i, first_of(a, b));
    int64_t j = keys.to;
    while (j > last && !mask[j - 1]) j--;
    last = std::max(last, j);
    j = keys.from;
    while (j < first && !mask[j]) j++;
    first = std::min(first, j);
  }
  return {std::min(first, last), last};
}

static uint32_t mixed(uint32_t x) {  // as in kernels/dropout.py, with the same masks
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// the dropout factors of a row: a function of seed, head, row and column
template <class T> struct Dropout {
  uint32_t state, other;
  int32_t cut, first;
  T kept;
  Dropout(const KernelArgs &a, int64_t b, int64_t h, int64_t i) {
    const uint32_t share = std::min<uint32_t>((uint32_t)std::nearbyint(a.dropout * 65536), 65535);
    first = (int32_t)first_of(a, b);  // here columns are numbered over all sequences
    cut = (int32_t)(share << 16 ^ 0x80000000u), kept = (T)(65536.0 / (65536 - share));
    const uint32_t head = (uint32_t)((a.starts ? 0 : b) * a.heads + h);
    const uint32_t high = (uint32_t)((uint64_t)*a.seed >> 32);
    state = mixed((uint32_t)i + mixed((uint32_t)*a.seed ^ mixed(head)));
    other = mixed(state + mixed(high + head));
  }
  INLINE T factor(int32_t column) const {
    column += first;
    uint32_t x = (state ^ ((uint32_t)column & ~1u)) * 0x7feb352du + other;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    x ^= x >> 16;
    return (int32_t)(column & 1 ? x : x << 16) < cut ? T(0) : kept;
  }
};
