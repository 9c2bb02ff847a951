// Softmax over the largest scores of a row: top-p, threshold-softmax and max-gap.
#pragma once
#include "shares.h"

// w = e^(x - top) if at least `bound`; gradients as for softmax over these entries
template <class T> struct Truncated : Plain<T> {
  T top, bound, here, total;  // sums over x, and over all entries
  // leaves e^(x - top) in row.v, unless the bound is known
  Truncated(Row<T> &row) : Plain<T>(row), top(row.top), bound(row.low), here(0), total(0) {
    if (row.known) return;
    Vec<T> all_weights = Vec<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> w = exp(load(row.x + j) - top);
      store<T>(row.v + j, w);
      all_weights += w;
    }
    here = sum<T>(all_weights), total = row.below ? row.high : here;
  }
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> w = exp(x - top);
    w = w >= bound ? w : Vec<T>{};
    return {w, w, w};
  }
};

template <class T> struct Threshold : Truncated<T> {
  // the maxima, whose weight is 1, always stay
  Threshold(Row<T> &row) : Truncated<T>(row) {
    if (!row.known) this->bound = row.low = std::min(row.theta * this->total, T(1));
  }
};

// entries x >= max x - width
template <class T> struct MaxGap : Plain<T> {
  T top, width;
  MaxGap(const Row<T> &row)
      : Plain<T>(row), top(row.top), width(std::max(-std::log(row.theta / row.valid), T(0))) {}
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> y = x - top, w = exp(y);
    w = y >= -width ? w : Vec<T>{};
    return {w, w, w};
  }
};

// The bound is the least weight that, with all smaller ones, exceeds a share 1 - p of the total. It
// is found by the mass below a guess, like the quantile of r-softmax by counts.
template <class T> struct TopP : Truncated<T> {
  TopP(Row<T> &row) : Truncated<T>(row) {
    if (!row.known) this->bound = row.low = search(row, (1 - row.theta) * this->total);
  }
  T search(const Row<T> &row, T rest) const {
    // `above` exceeds the rest, with all smaller ones; `below` does not
    const T outside = this->total - this->here;
    T above = 1, below = rest / row.valid, mass_above = this->total, mass_below = outside;
    T mid = below + (above - below) * (rest / this->total), last = 0, last_mass = 0;
    for (int step = 0; above > below; step++) {
      if (step % 4 == 3) mid = std::sqrt(below * above);
      if (!(mid >= below && mid < above)) mid = below;
      Vec<T> low = Vec<T>{}, high = all(-INF<T>), mass = Vec<T>{};
      EACH_VECTOR(row, j) {
        Vec<T> w = load(row.v + j), under = w <= mid ? w : Vec<T>{};
        mass += under;
        low = larger(under, low);
        high = larger(w <= mid ? all(-INF<T>) : -w, high);
      }
      T found = outside + sum<T>(mass), least = -largest<T>(high), most = largest<T>(low);
      if (found > rest) {
        if (found - most <= rest) return most;
        above = most, mass_above = found;
      } else {
        if (found + least > rest) return least;
        below = least, mass_below = found;
      }
      T slope = step ? (found - last_mass) / (mid - last)
                     : (mass_above - mass_below) / (above - below);
      last = mid, last_mass = found;
      mid += (rest - found) / slope;
    }
    return above;
  }
};
