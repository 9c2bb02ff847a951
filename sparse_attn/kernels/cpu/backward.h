// Gradients of a tile: by blocks of keys where forward kept what each row adds up to.
#pragma once
#include "few.h"

// Rows from `start` on that are computed together: a tile of forward, or several that need no rows
// as a whole.
template <class T>
int64_t Task<T>::alike(int64_t b, int64_t h, int64_t start, int64_t to) const {
  const Found *known = a.found ? a.found + row_index(a, b, h, start) : nullptr;
  int64_t rows = std::min(a.tile_rows, to - start);
  while (in_parts(known)) {
    int64_t more = std::min(a.tile_rows, to - start - rows);
    if (!more || rows + more > BLOCK_QUERIES || known[rows].size != ALL) break;
    rows += more;
  }
  return rows;
}

template <class T>
void Task<T>::tile_backward(int64_t b, int64_t h, int64_t start, int64_t rows, Slopes &by) {
  copy_padded<T>(at<T>(a.out, b, h, start), a.out.stride[2], rows, a.value_dim, 1, outs);
  load_queries(b, h, start, rows);
  const Found *known = a.found ? a.found + row_index(a, b, h, start) : nullptr;
  const bool parts = in_parts(known);
  const int64_t block = parts ? std::min(BLOCK_KEYS, wide) : wide;
  stride = block + LANES<T>;
  if (known && known->size >= 0)
    return few_backward(b, h, start, rows, known, a.columns, (const T *)a.scores, by);
  if (parts) begin_parts(b, h, start, rows);
  Range all = tile_range(a, b, h, start, rows);
  if (parts || all.from == all.to) std::fill(sum_queries, sum_queries + rows * dim, T(0));
  for (int64_t first = all.from / PANEL<T> * PANEL<T>; first < all.to; first += block) {
    Range here = {std::max(all.from, first), std::min(all.to, first + block)};
    bool last = here.to == all.to;
    Range own = {0, rows};
    // every row has the sink, which comes last
    if (parts && !(a.sink && last)) own = rows_meeting(a, b, start, rows, here);
    Columns keys = score(b, h, start + own.from, queries + own.from * dim, own.to - own.from, here,
                         last);
    if (!(known && known->size == ALL) && select(b, h, start, rows, keys) && !spoiled)
      return few_backward(b, h, start, rows, found.data(), few_columns, few_x, by);
    block_backward(b, h, start, own, keys, parts, by);
  }
  if (parts && map.pull) finish_parts(b, h, start, rows, all.to, by);
  copy_back<T>(sum_queries, rows, a.dim, (T)a.scale, at<T>(a.grad_query, b, h, start),
               a.grad_query.stride[2]);
}

template <class T>
void Task<T>::block_backward(int64_t b, int64_t h, int64_t start, Range own, const Columns &keys,
                             bool parts, Slopes &by) {
  int64_t rows = own.to - own.from, n = keys.to - keys.from, offset = keys.from - keys.first;
  Sums *sums = parts ? this->sums.data() + own.from : nullptr;
  start += own.from;
  const T *outs = this->outs + own.from * value_dim, *queries = this->queries + own.from * dim;
  pack_values(b, h);
  multiply<T>({outs, value_dim, 1}, values_t + keys.first * a.value_dim, PANEL<T>,
              PANEL<T> * a.value_dim, rows, a.value_dim, padded<T>(keys.to - keys.first), grads,
              stride, false);
  for (int64_t i = 0; i < rows; i++) {
    T *x = scores + i * stride, *g = grads + i * stride;
    int64_t sink = keys.to - keys.first;
    if (keys.width > sink) std::fill(g + sink, g + keys.width, T(0));  // its value is 0
    T theta = map_row(b, h, start + i, x, g, keys, sums ? sums + i : nullptr);
    (sums && map.pull ? sums[i].theta : by.theta) += theta;
    if (keys.sink) by.sink += g[sink];
    if (a.grad_bias.data) {
      T *bias = at<T>(a.grad_bias, b, h, start + i, first_of(a, b));
      for (int64_t j = keys.from; j < keys.to; j++)
        bias[j * a.grad_bias.stride[3]] += g[j - keys.first];
    }
    if (a.softcap > 0)
      for (int64_t j = 0; j < keys.width; j++) g[j] *= slopes[i * stride + j];
  }
  multiply<T>({scores + offset, 1, stride}, outs, value_dim, PANEL<T>, n, rows, value_dim,
              sum_values + keys.from * value_dim, value_dim, true);
  multiply<T>({grads + offset, 1, stride}, queries, dim, PANEL<T>, n, rows, dim,
              sum_keys + keys.from * dim, dim, true);
  multiply<T>({grads + offset, stride, 1}, key_rows + keys.from * dim, dim, PANEL<T>, rows, n, dim,
              sum_queries + own.from * dim, dim, parts);
}

// sum p g of a row is the product of its output and the gradient of that
template <class T>
void Task<T>::begin_parts(int64_t b, int64_t h, int64_t start, int64_t rows) {
  T *results = sum_queries;  // free until the first block
  copy_padded<T>(at<T>(a.result, b, h, start), a.result.stride[2], rows, a.value_dim, 1, results);
  for (int64_t i = 0; i < rows; i++) {
    Vec<T> total = Vec<T>{};
    for (int64_t k = i * value_dim; k < (i + 1) * value_dim; k += LANES<T>)
      total += load(results + k) * load(outs + k);
    sums[i] = {sum<T>(total), 0, {-1, -1}, {1, 1}};
  }
}

// Recalls what forward found of a row, and notes where its statistics come from. Returns whether
// NaN or +inf spoils the row.
template <class T>
bool Task<T>::recall(Row<T> &row, const Found &found, Sums &sums, int64_t i, int64_t first) {
  row.part = row.known = true;
  row.valid = found.valid, row.delta = sums.delta;
  row.low = (T)found.low, row.high = (T)found.high;
  row.top = (T)found.top, row.inverse = (T)found.inverse;
  if (!map.pull || !row.valid || row.top != row.top) return row.top != row.top;
  Pull<T> pull = map.pull(row, 0);
  for (int k = 0; k < 2; k++) {
    int64_t j = sums.owner[k] < 0 ? first_equal(row, pull.value[k]) : -1;
    if (j < 0) continue;
    sums.owner[k] = first + j;
    if (a.softcap > 0) sums.cap[k] = slopes[i * stride + j];
  }
  return false;
}

// Adds the gradients by the statistics of the rows to those of the keys that they come from.
template <class T>
void Task<T>::finish_parts(int64_t b, int64_t h, int64_t start, int64_t rows, int64_t sink,
                           Slopes &by) {
  for (int64_t i = 0; i < rows; i++) {
    Row<T> row = make_row(h, nullptr, nullptr, 0);
    Sums &sum = sums[i], none = {0, 0, {0, 0}, {0, 0}};
    recall(row, a.found[row_index(a, b, h, start + i)], none, i, 0);
    if (!row.valid) continue;
    Pull<T> pull = map.pull(row, sum.theta);
    by.theta += pull.theta;
    for (int k = 0; k < 2; k++) {
      int64_t j = sum.owner[k];
      T slope = pull.slope[k];
      if (j == sink) by.sink += slope;
      if (j < 0 || j == sink) continue;
      if (a.grad_bias.data)
        at<T>(a.grad_bias, b, h, start + i, first_of(a, b))[j * a.grad_bias.stride[3]] += slope;
      slope *= sum.cap[k];
      for (int64_t d = 0; d < dim; d += LANES<T>) {
        T *by_query = sum_queries + i * dim + d, *by_key = sum_keys + j * dim + d;
        store<T>(by_query, load(by_query) + slope * load(key_rows + j * dim + d));
        store<T>(by_key, load(by_key) + slope * load(queries + i * dim + d));
      }
    }
  }
}
