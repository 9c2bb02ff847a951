// Tiles whose rows are mostly zero: their support, and products over only the support.
#pragma once
#include "cached.h"

// makes a row of the entries few[0, n), with dropout factors if columns are given
template <class T>
Row<T> Task<T>::few_row(int64_t b, int64_t h, int64_t i, const int32_t *columns, T *g, int64_t n,
                        const Found &at, T top) {
  std::fill(few + n, few + padded<T>(n), -INF<T>);
  Row<T> row = make_row(h, few, g, padded<T>(n));
  row.valid = at.valid, row.top = top, row.below = at.valid - n;
  row.low = (T)at.low, row.high = (T)at.high;
  if (!a.seed || !columns) return row;
  const Dropout<T> dropout(a, b, h, i);
  for (int64_t k = 0; k < row.n; k++) keep[k] = k < n ? dropout.factor(columns[k]) : T(0);
  row.keep = keep;
  return row;
}

// Finds the support of each row: fills `found`, few_columns, few_x and, with dropout, few_p. False,
// with unchanged scores, if it is not a small part of the tile. A spoiled row is UNKNOWN.
template <class T>
bool Task<T>::select(int64_t b, int64_t h, int64_t start, int64_t rows, const Columns &keys,
                     bool listed) {
  if (!map.few.floor || a.softcap > 0 || patience-- > 0) return false;
  patience = 8, spoiled = false;
  int64_t size = 0;
  const bool trained = a.found && !a.keep_weights;
  const double most = MOST * keys.width;
  const double limit = trained ? std::min(most, MOST_ENTRIES) : most;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t width = listed ? padded<T>(shortlist.size[i]) : keys.width;
    Row<T> row = make_row(h, scores + i * stride, nullptr, width);
    bool bad = keys.width && survey(row);
    if (listed) row.valid = shortlist.visible[i];
    spoiled |= bad;
    if (bad && a.keep_weights) return false;  // every weight of the row is NaN
    found[i] = {size, bad ? UNKNOWN : 0, row.valid};
    if (bad || !row.valid) continue;
    T bound = map.few.floor(row);
    if (!(bound > -INF<T>)) return false;
    int64_t n = compress(row.x, row.n, bound, row_columns, few);
    for (int64_t k = 0; k < n && listed; k++)
      row_columns[k] = shortlist.columns[i * stride + row_columns[k]];
    pick(row, b, h, start + i, n, keys, found[i]);
    size += found[i].size;
    // the first rows decide, because giving up later costs more than somewhat too many entries
    if (size > limit * (i < TRIED ? std::max<int64_t>(i + 1, 4) : ROOM / MOST * a.tile_rows))
      return false;
  }
  for (int64_t i = 0; i < rows && a.statistics && keys.width; i++)
    if (found[i].size <= 0) map_row(b, h, start + i, scores + i * stride, nullptr, keys);
  patience = 0;
  return true;
}

// Moves the entries of few[0, n) in the row's support to the support of the tile.
template <class T>
void Task<T>::pick(const Row<T> &whole, int64_t b, int64_t h, int64_t i, int64_t n,
                   const Columns &keys, Found &at) {
  T *x = few_grad;
  std::copy(few, few + n, x);
  at.low = whole.low, at.high = whole.high;
  Row<T> row = few_row(b, h, i, nullptr, nullptr, n, at, whole.top);
  row.known = whole.known;
  map.few.forward(row);
  at.low = row.low, at.high = row.high;
  const T least = map.few.all ? T(0) : std::numeric_limits<T>::denorm_min();
  int32_t *columns = few_columns + at.start;
  T *p = few_p + at.start;
  at.size = std::min(n, compress(row.x, row.n, least, columns, p));
  for (int64_t k = 0; k < at.size; k++) {
    few_x[at.start + k] = x[columns[k]];
    int64_t column = keys.first + row_columns[columns[k]];
    columns[k] = column < keys.to ? (int32_t)column : -1;  // or the sink
  }
  if (a.statistics) measure_few(row, b, h, i, n, keys);  // without the sink in the support
  if (!a.seed) return;
  const Dropout<T> dropout(a, b, h, i);
  for (int64_t k = 0; k < at.size; k++) p[k] *= dropout.factor(columns[k]);
}

template <class T>
void Task<T>::measure_few(Row<T> &row, int64_t b, int64_t h, int64_t i, int64_t n,
                          const Columns &keys) {
  const T *from = special + keys.first;
  if (keys.first + row_columns[n - 1] == keys.to) row.x[n - 1] = 0;  // a sink
  for (int64_t k = 0; k < row.n && a.special_keys; k++) row.u[k] = k < n ? from[row_columns[k]] : T(0);
  measure(row, b, h, i, row.u);
}

// out = p v
template <class T> void Task<T>::multiply_few(int64_t rows) {
  for (int64_t i = 0; i < rows; i++) {
    T *out = outs + i * value_dim;
    int64_t from = found[i].start, n = found[i].size;
    if (n > 0 && few_columns[from + n - 1] < 0) n--;  // a sink, which comes last, has no value
    gather<T>(value_rows, few_columns + from, few_p + from, n, value_dim, out);
    if (n < 0) std::fill(out, out + value_dim, std::numeric_limits<T>::quiet_NaN());
  }
}

// Keeps the support for backward, except of dense tiles or if larger than twice the inputs.
template <class T>
void Task<T>::keep_found(int64_t b, int64_t h, int64_t start, int64_t rows, bool sparse) {
  Found *to = a.found + row_index(a, b, h, start);
  int64_t before = (int64_t)lists->columns.size();
  int64_t size = sparse ? found[rows - 1].start + found[rows - 1].size : 0;
  lists->rows += rows;
  bool kept = sparse && a.keep_lists && !spoiled &&
              before + size <= 2 * (dim + value_dim) * lists->rows;
  for (int64_t i = 0; i < rows; i++) {
    // with `once`, products are not those of backward, and rounded differently
    to[i] = kept ? found[i] : Found{0, sparse || once ? UNKNOWN : ALL};
    to[i].start += before;
  }
  if (!kept) return;
  lists->columns.insert(lists->columns.end(), few_columns, few_columns + size);
  lists->scores.insert(lists->scores.end(), few_x, few_x + size);
}

// Keeps columns and weights of the tile's rows: those above `least`, and NaN.
template <class T>
void Task<T>::keep_weights(int64_t b, int64_t h, int64_t start, int64_t rows, bool sparse,
                           const Columns &keys) {
  const int64_t first = first_of(a, b), n = keys.to - keys.first;
  Found *to = a.found + row_index(a, b, h, start);
  std::vector<int32_t> &columns = lists->columns;
  std::vector<T> &weights = lists->scores;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t before = (int64_t)columns.size();
    const T *p = sparse ? few_p + found[i].start : scores + i * stride;
    const int32_t *at = sparse ? few_columns + found[i].start : nullptr;
    for (int64_t k = 0; k < (sparse ? found[i].size : keys.width ? n : 0); k++) {
      if (p[k] <= (T)a.least || (at && at[k] < 0)) continue;  // a sink has no column
      columns.push_back((int32_t)(first + (at ? at[k] : keys.first + k)));
      weights.push_back(p[k]);
    }
    to[i] = {before, (int64_t)columns.size() - before};
  }
}

// Gradients of rows with known support, if other entries have no gradient.
template <class T>
void Task<T>::few_backward(int64_t b, int64_t h, int64_t start, int64_t rows, const Found *support,
                           const int32_t *all_columns, const T *all_scores, Slopes &by) {
  for (int64_t i = 0; i < rows; i++) {
    const int32_t *columns = all_columns + support[i].start;
    const T *out = outs + i * value_dim;
    T *query = queries + i * dim;
    int64_t n = support[i].size, met = n - (n && columns[n - 1] < 0);
    std::copy_n(all_scores + support[i].start, n, few);
    dots<T>({values, value_dim}, columns, met, value_dim, out, few_grad);
    std::fill(few_grad + met, few_grad + padded<T>(n), T(0));
    if (n) {
      T top = *std::max_element(few, few + n);
      Row<T> row = few_row(b, h, start + i, columns, few_grad, n, support[i], top);
      row.known = true;
      by.theta += map.few.backward(row);
      if (met < n) by.sink += few_grad[met];
    }
    if (a.grad_bias.data) {
      T *bias = at<T>(a.grad_bias, b, h, start + i, first_of(a, b));
      for (int64_t k = 0; k < met; k++) bias[columns[k] * a.grad_bias.stride[3]] += few_grad[k];
    }
    scatter<T>({sum_values, value_dim}, columns, few, met, value_dim, out);
    scatter<T>({sum_keys, dim}, columns, few_grad, met, dim, query);
    gather<T>({key_rows, dim}, columns, few_grad, met, dim, query);  // the gradient of query
  }
  copy_back<T>(queries, rows, a.dim, (T)a.scale, at<T>(a.grad_query, b, h, start),
               a.grad_query.stride[2]);
}
