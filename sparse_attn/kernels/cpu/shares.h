// Probability mappings on one row of scores, forward and backward.
//
// A row is padded with -inf to whole vectors; -inf is a masked entry. Formulas: the docstrings of
// sparse_attn/mappings; gradients: ds_j = c u_j (g_j - gamma) + kappa, see the bodies below.
#pragma once
#include "simd.h"

template <class T> struct Row {
  T *x;       // scores; then the weights, dropout applied
  T *g;       // gradient of the weights; then that of the scores
  T *u, *v;   // scratch
  const T *keep;  // 0 or 1 / (1 - dropout), or null
  int64_t n;  // whole vectors
  T theta;
  bool want_theta;
  int64_t valid;  // number of valid entries
  T top;          // the largest valid entry
  int64_t below;  // valid entries left out of x, all less than those in x
  // result of the mapping's search: neighbours of the quantile, a root or the least weight
  T low, high;
  bool known;  // whether low and high are given
  T inverse;   // 1 / sum w, of shares
  T delta;     // sum p g
  bool part;   // whether x is a part of the row, with all of the above given
};

#define EACH_VECTOR(row, j) for (int64_t j = 0; j < (row).n; j += LANES<T>)

// ---- p = w / sum w. Parts: the weight w up to a factor, the slope u, the slope by theta v.

template <class T> struct Parts {
  Vec<T> w, u, v;
};

// Gradients by the statistics of a row: theta, and the first entries that equal `value`.
template <class T> struct Pull {
  T theta, value[2], slope[2];
};

template <class T> struct Plain {
  static constexpr bool by_theta = false, by_entries = false;
  Plain(const Row<T> &) {}
  Pull<T> pull(const Row<T> &, T theta) const { return {theta, {}, {}}; }
};

template <class T> struct Softmax : Plain<T> {
  T top;
  Softmax(const Row<T> &row) : Plain<T>(row), top(row.top) {}
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> w = exp(x - top);
    return {w, w, w};
  }
};

template <class T> INLINE T largest_size(const Row<T> &row, T shift) {
  Vec<T> best = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> x = load(row.x + j);
    Vec<T> size = magnitude(x + shift);
    best = (x > -INF<T>) & (size > best) ? size : best;
  }
  return largest<T>(best);
}

template <class T> struct SoftmaxAbs : Plain<T> {
  T top;
  SoftmaxAbs(Row<T> &row) : Plain<T>(row), top(row.part ? row.low : largest_size<T>(row, 0)) {
    row.low = top;
  }
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> w = exp(magnitude(x) - top);
    return {w, x > 0 ? w : x < 0 ? -w : Vec<T>{}, w};
  }
};

// w = (z + shift)^2 + eps over its largest value, which the squares alone would overflow
template <class T> struct SquarePlus : Plain<T> {
  T shift, eps, size, scaled_eps;
  SquarePlus(Row<T> &row, T shift, T eps) : Plain<T>(row), shift(shift), eps(eps) {
    T largest = row.part ? row.low : largest_size<T>(row, shift), root = std::sqrt(eps);
    row.low = largest;
    size = largest > root ? largest : root;
    scaled_eps = size > 0 ? (root / size) * (root / size) : 1;
    // below the smallest normal number 1 / size overflows
    size = size > 0 ? std::max(size, std::numeric_limits<T>::min()) : 1;
  }
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> z = (x + shift) / size;
    Vec<T> w = z * z + scaled_eps;
    return {w, z * (2 / size), all(T(1) / size / size)};
  }
};

template <class T> struct Spherical : SquarePlus<T> {
  static constexpr bool by_theta = true;
  Spherical(Row<T> &row) : SquarePlus<T>(row, 0, row.theta) {}
};

template <class T> struct Taylor : SquarePlus<T> {
  Taylor(Row<T> &row) : SquarePlus<T>(row, 1, 1) {}
};

template <class T> struct Relu : Plain<T> {
  T top;
  bool some;
  static constexpr T tiny = std::numeric_limits<T>::min();
  Relu(const Row<T> &row) : Plain<T>(row), top(row.top), some(row.top >= tiny) {}
  INLINE Parts<T> parts(Vec<T> x) const {
    if (!some) return {all(T(1)), Vec<T>{}, Vec<T>{}};
    auto positive = x >= tiny;
    Vec<T> one = all(T(1) / top);
    return {positive ? x / top : Vec<T>{}, positive ? one : Vec<T>{}, Vec<T>{}};
  }
};

// w = e^(a z) sigma(z + b) over its largest value, which is at the largest z
template <class T, bool times_exp> struct Sigmoid : Plain<T> {
  static constexpr bool by_theta = times_exp;
  T top, bias, top_part;
  Sigmoid(const Row<T> &row)
      : Plain<T>(row), top(row.top), bias(times_exp ? row.theta : 0),
        top_part(top + bias < 0 ? top + bias : 0) {}
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> y = x + bias;
    Vec<T> small = exp(-magnitude(y));
    Vec<T> fraction = 1 / (small + 1);
    Vec<T> power = at_most(y, Vec<T>{}) - top_part;
    Vec<T> w = exp(times_exp ? power + (x - top) : power) * fraction;
    Vec<T> v = w * (y > 0 ? small * fraction : fraction);
    return {w, times_exp ? w + v : v, v};
  }
};

// w = (1 + y/t) e^y inside y > -t, y = z - max z
template <class T> struct Within : Plain<T> {
  static constexpr bool by_theta = true;
  T top, t, inverse;
  Within(const Row<T> &row, T t) : Plain<T>(row), top(row.top) { set(t); }
  void set(T width) {
    // below the smallest normal number 1 / t overflows
    t = width >= std::numeric_limits<T>::min() ? width : 0;
    inverse = t > 0 ? 1 / t : 0;
  }
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> y = x - top;
    if (!(t > 0)) {
      Vec<T> w = y == 0 ? all(T(1)) : Vec<T>{};
      return {w, w, Vec<T>{}};
    }
    auto inside = y > -t;
    Vec<T> e = inside ? exp(y) : Vec<T>{};
    Vec<T> h = e * inverse;
    Vec<T> w = inside ? e + h * y : Vec<T>{};
    return {w, w + h, h};
  }
};

// the first entry of this value, or -1
template <class T> INLINE int64_t first_equal(const Row<T> &row, T value) {
  EACH_VECTOR(row, j)
    if (uint32_t found = lanes(load(row.x + j) == value)) return j + __builtin_ctz(found);
  return -1;
}

template <class T> struct TSoftmax : Within<T> {
  static constexpr bool by_entries = true;
  TSoftmax(const Row<T> &row) : Within<T>(row, row.theta) {}
  Pull<T> pull(const Row<T> &row, T t) const { return {t, {row.top, row.top}, {-t, 0}}; }
};

template <class T> struct Neighbours {
  T low, high;
};

template <class T> INLINE int64_t count_up_to(const Row<T> &row, T bound) {
  int64_t total = 0;
  EACH_VECTOR(row, j) total += __builtin_popcount(lanes(load(row.x + j) <= bound));
  return total;
}

// max{x <= bound}, min{x > bound}
template <class T> INLINE Neighbours<T> around(const Row<T> &row, T bound) {
  Vec<T> low = all(-INF<T>), high = all(-INF<T>);
  EACH_VECTOR(row, j) {
    Vec<T> x = load(row.x + j);
    auto under = x <= bound;
    low = larger(under ? x : all(-INF<T>), low);
    high = larger(under ? all(-INF<T>) : -x, high);
  }
  return {largest<T>(low), -largest<T>(high)};
}

// s_(k) and s_(k+1) of the valid entries, k from 0, by counting instead of sorting. Interpolation
// finds a bound with k + 1 entries below it; with ties there is none, and steps go value by value.
template <class T> inline Neighbours<T> order_statistics(const Row<T> &row, int64_t k) {
  const int64_t n = row.valid, target = k + 1 + row.n - n;  // with the masked entries
  Vec<T> total = Vec<T>{}, squares = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> x = load(row.x + j);
    Vec<T> y = x > -INF<T> ? x - row.top : Vec<T>{};
    total += y;
    squares += y * y;
  }
  const T size = sum<T>(total), mean = size / n, variance = sum<T>(squares) / n - mean * mean;
  T below = row.top + size, above = row.top;  // no entry is farther from the top than all together
  // the quantile of a normal distribution, which is nearly logistic, and scores for each entry
  const T spread = T(0.5876) * std::sqrt(std::max(variance, T(0)));
  const T share = (k + T(1)) / (n + 1);
  T mid = row.top + mean + spread * std::log(share / (1 - share));
  T step = spread / (n * share * (1 - share)), last = 0;
  int64_t last_count = 0;
  for (int tries = 0; tries < 12; tries++) {
    if (!(mid >= below && mid < above)) mid = below + (above - below) / 2;
    if (!(mid < above)) break;
    int64_t c = count_up_to(row, mid);
    if (c == target) return around(row, mid);
    (c < target ? below : above) = mid;
    if (tries) step = (mid - last) / (c - last_count);  // a secant
    last = mid, last_count = c;
    mid += (target - c) * step;
  }
  for (;;) {
    mid = below + (above - below) / 2;
    if (!(mid < above)) mid = below;
    Neighbours<T> near = around(row, mid);
    if (count_up_to(row, mid) < target) below = near.high;  // may be the one
    else above = near.low;
    if (!(below < above)) break;
  }
  return {above, count_up_to(row, above) > target ? above : around(row, above).high};
}

template <class T> struct RSoftmax : Within<T> {
  static constexpr bool by_entries = true;
  T low, high, part;
  RSoftmax(Row<T> &row) : Within<T>(row, 0), low(row.top), high(row.top), part(0) {
    T position = row.theta * (row.valid - 1);
    int64_t k = (int64_t)(position * (1 + std::numeric_limits<T>::epsilon()));  // as `whole_below`
    if (k >= row.valid - 1) return;
    part = std::max(position - k, T(0));
    Neighbours<T> s = row.known ? Neighbours<T>{row.low, row.high} : order_statistics(row, k);
    low = row.low = s.low, high = row.high = s.high;
    T shifted_low = low - row.top, shifted_high = high - row.top;
    this->set(-(shifted_low + part * (shifted_high - shifted_low)));
  }
  Pull<T> pull(const Row<T> &row, T t) const {
    return {-t * (row.valid - 1) * (high - low), {low, high}, {(part - 1) * t, -part * t}};
  }
};

template <class T, template <class> class Map> void share_forward(Row<T> &row) {
  Map<T> map(row);
  Vec<T> total = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> x = load(row.x + j);
    Vec<T> w = x > -INF<T> ? map.parts(x).w : Vec<T>{};
    total += w;
    store<T>(row.x + j, w);
  }
  row.inverse = 1 / sum<T>(total);
  EACH_VECTOR(row, j) {
    Vec<T> p = load(row.x + j) * row.inverse;
    store<T>(row.x + j, row.keep ? p * load(row.keep + j) : p);
  }
}

// inverse and delta of a whole row; leaves the parts in x, u and v
template <class T, class Map> void add_up(Row<T> &row, const Map &map) {
  Vec<T> total = Vec<T>{}, inner = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> x = load(row.x + j), g = load(row.g + j);
    auto valid = x > -INF<T>;
    Parts<T> parts = map.parts(x);
    Vec<T> w = valid ? parts.w : Vec<T>{};
    total += w;
    inner += w * (row.keep ? g * load(row.keep + j) : g);
    store<T>(row.x + j, w);
    store<T>(row.u + j, valid ? parts.u : Vec<T>{});
    if (Map::by_theta) store<T>(row.v + j, valid ? parts.v : Vec<T>{});
  }
  row.inverse = 1 / sum<T>(total), row.delta = sum<T>(inner) * row.inverse;
}

// ds = u (g - delta), delta = sum p g; dtheta from sum v (g - delta)
template <class T, template <class> class Map> T share_backward(Row<T> &row) {
  Map<T> map(row);
  Vec<T> theta = Vec<T>{};
  auto differentiate = [&](int64_t j, Parts<T> parts) {
    Vec<T> g = load(row.g + j), p = parts.w * row.inverse;
    if (row.keep) g *= load(row.keep + j), p *= load(row.keep + j);
    Vec<T> away = (g - row.delta) * row.inverse;
    if (Map<T>::by_theta) theta += parts.v * away;
    store<T>(row.g + j, parts.u * away);
    store<T>(row.x + j, p);
  };
  if (row.part) {
    EACH_VECTOR(row, j) {
      Vec<T> x = load(row.x + j), none = Vec<T>{};
      auto valid = x > -INF<T>;
      Parts<T> parts = map.parts(x);
      differentiate(j, {valid ? parts.w : none, valid ? parts.u : none, valid ? parts.v : none});
    }
    return Map<T>::by_theta ? sum<T>(theta) : 0;
  }
  int64_t owners[2] = {-1, -1};
  for (int i = 0; i < 2 && Map<T>::by_entries; i++)
    owners[i] = first_equal(row, map.pull(row, 0).value[i]);
  add_up(row, map);
  EACH_VECTOR(row, j) {
    Vec<T> v = Map<T>::by_theta ? load(row.v + j) : Vec<T>{};
    differentiate(j, {load(row.x + j), load(row.u + j), v});
  }
  Pull<T> pull = map.pull(row, Map<T>::by_theta ? sum<T>(theta) : 0);
  for (int i = 0; i < 2; i++)
    if (owners[i] >= 0) row.g[owners[i]] += pull.slope[i];
  return pull.theta;
}

template <class T, template <class> class Map> Pull<T> share_pull(Row<T> &row, T by_theta) {
  return Map<T>(row).pull(row, by_theta);
}
