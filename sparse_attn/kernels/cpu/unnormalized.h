// Mappings whose rows need not sum to one: softpick, clipped softmax, sigmoid and relu.
#pragma once
#include "shares.h"

template <class T> INLINE Vec<T> kept(const Row<T> &row, int64_t j, Vec<T> value) {
  return row.keep ? value * load(row.keep + j) : value;
}

// p and its slope are functions of one score alone
template <class T> struct Sigmoid1 {
  T bias;
  explicit Sigmoid1(const Row<T> &row)
      : bias(row.theta == INF<T> ? -std::log(T(row.valid)) : row.theta) {}
  INLINE Parts<T> parts(Vec<T> x) const {
    Vec<T> y = x + bias;
    Vec<T> small = exp(-magnitude(y));
    Vec<T> fraction = 1 / (small + 1);
    Vec<T> p = y > 0 ? fraction : small * fraction;
    Vec<T> slope = small * fraction * fraction;
    return {p, slope, slope};
  }
};

template <class T> struct Relu1 {
  T share;
  explicit Relu1(const Row<T> &row) : share(T(1) / row.valid) {}
  INLINE Parts<T> parts(Vec<T> x) const {
    auto positive = x > 0;
    return {positive ? x * share : Vec<T>{}, positive ? all(share) : Vec<T>{}, Vec<T>{}};
  }
};

template <class T, template <class> class Map> void alone_forward(Row<T> &row) {
  Map<T> map(row);
  EACH_VECTOR(row, j) store<T>(row.x + j, kept(row, j, map.parts(load(row.x + j)).w));
}

template <class T, template <class> class Map> T alone_backward(Row<T> &row) {
  Map<T> map(row);
  Vec<T> by_theta = Vec<T>{};
  EACH_VECTOR(row, j) {
    Parts<T> parts = map.parts(load(row.x + j));
    Vec<T> g = kept(row, j, load(row.g + j));
    by_theta += g * parts.v;
    store<T>(row.x + j, kept(row, j, parts.w));
    store<T>(row.g + j, g * parts.u);
  }
  return sum<T>(by_theta);
}

// p = max(0, size) / (sum |size| + EPS), size = e^(x - s) - e^(-s), s = max(0, top)
template <class T> struct Softpick {
  static constexpr T EPS = T(1e-8);
  T shift, least, inverse;
  explicit Softpick(Row<T> &row) : shift(std::max(row.top, T(0))), least(std::exp(-shift)) {
    Vec<T> total = Vec<T>{};
    const bool small = shift < 80;  // beyond, only e^(x - s) counts
    EACH_VECTOR(row, j) {
      Vec<T> x = load(row.x + j);
      Vec<T> size = small ? expm1(x) * least : exp(x - shift) - least;
      size = x > -INF<T> ? size : Vec<T>{};
      total += magnitude(size);
      store<T>(row.u + j, size);
    }
    inverse = 1 / (sum<T>(total) + EPS);
  }
};

template <class T> void softpick_forward(Row<T> &row) {
  Softpick<T> pick(row);
  EACH_VECTOR(row, j) {
    Vec<T> p = at_least(load(row.u + j), Vec<T>{}) * pick.inverse;
    store<T>(row.x + j, kept(row, j, p));
  }
}

// ds = e^(x - s) (g - delta) / sum where size > 0, e^(x - s) delta / sum where size < 0
template <class T> T softpick_backward(Row<T> &row) {
  Softpick<T> pick(row);
  int64_t owner = first_equal(row, row.top);
  Vec<T> inner = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> g = kept(row, j, load(row.g + j));
    store<T>(row.g + j, g);
    inner += at_least(load(row.u + j), Vec<T>{}) * g;
  }
  T delta = sum<T>(inner) * pick.inverse;
  EACH_VECTOR(row, j) {
    Vec<T> size = load(row.u + j), away = load(row.g + j) - delta;
    Vec<T> slope = exp(load(row.x + j) - pick.shift) * pick.inverse;
    store<T>(row.g + j, slope * (size > 0 ? away : size < 0 ? all(delta) : Vec<T>{}));
    store<T>(row.x + j, kept(row, j, at_least(size, Vec<T>{}) * pick.inverse));
  }
  // the shift cancels but for EPS
  if (row.top > 0) row.g[owner] -= delta * Softpick<T>::EPS * pick.inverse;
  return 0;
}

// p = max(0, (1 - gamma) softmax + gamma); theta is gamma, or alpha above 0 for -alpha / n
template <class T> struct Clipped {
  T gamma, by_theta, inverse;
  explicit Clipped(Row<T> &row)
      : gamma(std::max(row.theta > 0 ? -row.theta / row.valid : row.theta,
                       std::numeric_limits<T>::lowest())),
        by_theta(row.theta > 0 ? T(-1) / row.valid : 1) {
    Vec<T> total = Vec<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> w = exp(load(row.x + j) - row.top);
      store<T>(row.u + j, w);
      total += w;
    }
    inverse = 1 / sum<T>(total);
  }
  INLINE Vec<T> clip(Vec<T> share) const {
    return at_least(share + (1 - share) * gamma, Vec<T>{});
  }
};

template <class T> void clipped_forward(Row<T> &row) {
  Clipped<T> clipped(row);
  EACH_VECTOR(row, j)
    store<T>(row.x + j, kept(row, j, clipped.clip(load(row.u + j) * clipped.inverse)));
}

template <class T> T clipped_backward(Row<T> &row) {
  Clipped<T> clipped(row);
  Vec<T> inner = Vec<T>{}, total = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> share = load(row.u + j) * clipped.inverse, p = clipped.clip(share);
    Vec<T> g = p > 0 ? kept(row, j, load(row.g + j)) : Vec<T>{};
    total += g * (1 - share);
    g *= 1 - clipped.gamma;
    inner += g * share;
    store<T>(row.g + j, g);
    store<T>(row.u + j, share);
    store<T>(row.x + j, kept(row, j, p));
  }
  T delta = sum<T>(inner);
  EACH_VECTOR(row, j) store<T>(row.g + j, load(row.u + j) * (load(row.g + j) - delta));
  return sum<T>(total) * clipped.by_theta;
}
