// Softmax whose temperature depends on the entropy of its row.
#pragma once
#include "shares.h"

// w = e^(beta (x - top)), beta a polynomial of the entropy of softmax(x)
template <class T> struct Adaptive : Plain<T> {
  T top, log_total, entropy, beta, slope;  // d beta / d entropy
  Adaptive(const Row<T> &row) : Plain<T>(row), top(row.top), beta(1), slope(0) {
    Vec<T> all_weights = Vec<T>{}, moment = Vec<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> y = load(row.x + j) - top, w = exp(y);
      all_weights += w;
      moment += w > 0 ? w * y : Vec<T>{};
    }
    T total = sum<T>(all_weights);
    log_total = std::log(total), entropy = log_total - sum<T>(moment) / total;
    if (!(entropy > T(0.5))) return;
    T value = 0, rises = 0;
    for (T coefficient : {T(-0.037), T(0.481), T(-2.3), T(4.917), T(-1.791)})
      rises = rises * entropy + value, value = value * entropy + coefficient;
    if (value > 1) beta = value, slope = rises;
  }
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> y = x - top, w = exp(beta * y);
    return {w, beta * w, w > 0 ? w * y : Vec<T>{}};
  }
};

// ds = beta p (g - delta) - pull q (log q + entropy), q = softmax(x), pull = dL / d entropy
template <class T> T adaptive_backward(Row<T> &row) {
  Adaptive<T> map(row);
  Vec<T> total = Vec<T>{}, inner = Vec<T>{}, moment = Vec<T>{}, moment_g = Vec<T>{};
  EACH_VECTOR(row, j) {
    Parts<T> parts = map.parts(load(row.x + j));
    Vec<T> g = row.keep ? load(row.g + j) * load(row.keep + j) : load(row.g + j);
    total += parts.w, inner += parts.w * g, moment += parts.v, moment_g += parts.v * g;
    store<T>(row.g + j, g);
  }
  const T inverse = 1 / sum<T>(total), delta = sum<T>(inner) * inverse;
  const T pull = map.slope * (sum<T>(moment_g) - delta * sum<T>(moment)) * inverse;
  EACH_VECTOR(row, j) {
    Vec<T> x = load(row.x + j), g = load(row.g + j), log_q = x - map.top - map.log_total;
    Vec<T> p = map.parts(x).w * inverse, q = exp(log_q);
    Vec<T> spread = q > 0 ? q * (log_q + map.entropy) : Vec<T>{};
    store<T>(row.g + j, map.beta * p * (g - delta) - pull * spread);
    store<T>(row.x + j, row.keep ? p * load(row.keep + j) : p);
  }
  return 0;
}
