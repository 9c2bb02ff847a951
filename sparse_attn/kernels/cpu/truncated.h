// Softmax over the largest scores of a row: top-p and threshold-softmax.
#pragma once
#include "shares.h"

// w = e^(x - top) where it is at least `bound`; gradients as of softmax over these entries
template <class T> struct Truncated : Plain<T> {
  T top, bound, total;
  // leaves e^(x - top) in row.v
  Truncated(Row<T> &row) : Plain<T>(row), top(row.top), bound(0) {
    Vec<T> all_weights = Vec<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> w = exp(load(row.x + j) - top);
      store<T>(row.v + j, w);
      all_weights += w;
    }
    total = sum<T>(all_weights);
  }
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> w = exp(x - top);
    w = w >= bound ? w : Vec<T>{};
    return {w, w, w};
  }
};

template <class T> struct Threshold : Truncated<T> {
  // the maxima, whose weight is 1, always stay
  Threshold(Row<T> &row) : Truncated<T>(row) { this->bound = std::min(row.theta * this->total, T(1)); }
};

// The bound is the least weight that, with all smaller ones, exceeds a share 1 - p of the total:
// found by the mass below a guess, as the quantile of r-softmax is by counts.
template <class T> struct TopP : Truncated<T> {
  TopP(Row<T> &row) : Truncated<T>(row) {
    const T rest = (1 - row.theta) * this->total;
    T above = 1, mass_above = this->total;  // a weight, whose mass exceeds the rest
    T below = rest / row.valid, mass_below = 0;
    for (int step = 0; above > below; step++) {
      T share = (rest - mass_below) / (mass_above - mass_below);
      T mid = step % 3 == 2 ? std::sqrt(below * above) : below + (above - below) * share;
      if (!(mid >= below && mid < above)) mid = below;
      Vec<T> low = Vec<T>{}, high = all(-INF<T>), mass = Vec<T>{};
      EACH_VECTOR(row, j) {
        Vec<T> w = load(row.v + j), negated = -w;
        auto under = w <= mid;
        mass += under ? w : Vec<T>{};
        low = under & (w > low) ? w : low;
        high = ~under & (negated > high) ? negated : high;
      }
      T found = sum<T>(mass);
      if (found > rest) above = largest<T>(low), mass_above = found;
      else below = -largest<T>(high), mass_below = found;
    }
    this->bound = above;
  }
};
