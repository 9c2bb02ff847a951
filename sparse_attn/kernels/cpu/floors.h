// Floors: the score below which entries have neither share nor slope; -inf if many are above.
#pragma once
#include "projections.h"
#include "truncated.h"
#include "unnormalized.h"

// share of a row above which products over all its entries are faster
constexpr double MOST = 0.2;
// with gradients also their number, because the keys and values that a long row's entries meet do
// not fit into a core's cache
constexpr double MOST_ENTRIES = 400;
constexpr int64_t TRIED = 8;  // rows of a tile that are checked against it
constexpr double ROOM = 1.5 * MOST;  // for the supports of a tile

// rounded down: an entry too many has a share of 0
template <class T> T down_from(T top, T width) {
  T bound = top - width;
  return bound - 4 * std::numeric_limits<T>::epsilon() * (std::abs(bound) + width);
}

template <class T> T sparsemax_floor(Row<T> &row) { return down_from(row.top, T(1)); }
template <class T> T sparsegen_floor(Row<T> &row) { return down_from(row.top, 1 - row.theta); }
template <class T> T entmax_floor(Row<T> &row) { return down_from(row.top, 1 / (row.theta - 1)); }
template <class T> T gap_floor(Row<T> &row) { return down_from(row.top, MaxGap<T>(row).width); }
template <class T> T t_floor(Row<T> &row) { return down_from(row.top, row.theta); }

template <class T> T r_floor(Row<T> &row) {
  if (1 - row.theta > MOST) return -INF<T>;
  T low = RSoftmax<T>(row).low;
  row.known = true;
  return low;
}

template <class T> T positive_floor(Row<T> &row) {
  return row.top >= Relu<T>::tiny ? Relu<T>::tiny : -INF<T>;
}

// the least score whose weight, in row.v, is at least the bound
template <class T> T least_of(const Row<T> &row, const Truncated<T> &map) {
  Vec<T> negated = all(-INF<T>);
  EACH_VECTOR(row, j) {
    Vec<T> x = -load(row.x + j);
    negated = (load(row.v + j) >= map.bound) & (x > negated) ? x : negated;
  }
  return -largest<T>(negated);
}

// the floor of a weight that, with all smaller weights, stays within what top-p drops
template <class T> T top_p_floor(Row<T> &row) {
  Truncated<T> map(row);
  row.high = map.total;
  const T rest = (1 - row.theta) * map.total;
  T weight = map.total / row.valid;
  for (int step = 0; step < 3; step++) {
    Vec<T> mass = Vec<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> w = load(row.v + j);
      mass += w <= weight ? w : Vec<T>{};
    }
    T found = sum<T>(mass);
    if (found <= rest) return down_from(row.top, -std::log(weight));
    weight *= T(0.9) * rest / found;
  }
  return -INF<T>;
}
template <class T> T threshold_floor(Row<T> &row) { return least_of(row, Threshold<T>(row)); }

// whether a floor depends on the scores only by the largest
template <class T> bool by_top(T (*floor)(Row<T> &)) {
  return floor == sparsemax_floor<T> || floor == sparsegen_floor<T> || floor == entmax_floor<T> ||
         floor == gap_floor<T> || floor == t_floor<T>;
}
