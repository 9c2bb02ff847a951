// Projections onto the simplex, on one row.
//
// p = (1 + e (y - tau))_+^(1/e), y = (x - top) / temperature, u = p^(1-e);
// ds = u (g - gamma) / temperature + kappa, gamma = sum u g / sum u.
#pragma once
#include <algorithm>

#include "shares.h"

// A power knows e, the core value c of an entry at a root, p(c) and u(c), and the Newton step of
// the root. For e = 1 and 1/2 the root is rho = 1 - e tau, which stays accurate where thousands of
// entries are nearly equal, and c = 1 + e (y - tau); for any e the root is tau and c = log p, which
// stays accurate as e goes to 0.
//
// Newton's steps converge quadratically: what is left after a step of `small` is rounding. Those of
// e = 1 come to an end instead, when the support no longer changes.

template <class T> T small_step() { return std::sqrt(std::numeric_limits<T>::epsilon()) / 8; }

template <class T> struct PowerOne {
  static constexpr T e = 1;
  static T small() { return 8 * std::numeric_limits<T>::epsilon(); }
  static constexpr T start = 1;
  INLINE Vec<T> core(Vec<T> y, T rho) const { return at_least(y + rho, Vec<T>{}); }
  INLINE Vec<T> p(Vec<T> c) const { return c; }
  INLINE Vec<T> u(Vec<T> c) const { return c > 0 ? all(T(1)) : Vec<T>{}; }
  T step(T total, T slope) const { return (1 - total) / slope; }
  T scale(T rho) const { return rho; }
};
template <class T> struct PowerTwo {
  static constexpr T e = 0.5;
  static T small() { return small_step<T>(); }
  static constexpr T start = 1;
  INLINE Vec<T> core(Vec<T> y, T rho) const { return at_least(y * T(0.5) + rho, Vec<T>{}); }
  INLINE Vec<T> p(Vec<T> c) const { return c * c; }
  INLINE Vec<T> u(Vec<T> c) const { return c; }
  T step(T total, T slope) const { return (1 - std::sqrt(total)) * std::sqrt(total) / slope; }
  T scale(T rho) const { return rho; }
};
template <class T> struct PowerAny {
  T e;
  static T small() { return small_step<T>(); }
  static constexpr T start = 0;
  // log(1 + e x) / e is x to the last digit well above this e
  explicit PowerAny(T e) : e(e > T(1e-11) ? e : T(1e-11)) {}
  INLINE Vec<T> core(Vec<T> y, T tau) const {
    return log1p(at_least((y - tau) * e, all(T(-1)))) * (1 / e);
  }
  INLINE Vec<T> p(Vec<T> c) const { return exp(c); }
  INLINE Vec<T> u(Vec<T> c) const { return c > -INF<T> ? exp(c * (1 - e)) : Vec<T>{}; }
  T step(T total, T slope) const {
    return std::expm1(e * std::log(total)) / e * std::pow(total, 1 - e) / slope;
  }
  T scale(T tau) const { return 1 - e * tau; }
};

// of scores times unit, which is 1 but where their sum could overflow, or the terms of a gradient
// before they are added up
template <class T> struct Temperature {
  T value = 1, by_sum = 0, by_theta = 0, unit = 1;
};

template <class T, class Power> struct Projection {
  Power power;
  T top, inverse, root = Power::start;
  Projection(Row<T> &row, Power power, T temperature)
      : power(power), top(row.top), inverse(1 / temperature) {
    if (row.known) root = row.low;
    const T small = Power::small();
    for (int i = 0; i < 40 && !row.known; i++) {
      Vec<T> total = Vec<T>{}, slope = Vec<T>{};
      EACH_VECTOR(row, j) {
        Vec<T> c = core(load(row.x + j));
        total += power.p(c);
        slope += power.u(c);
      }
      T step = power.step(sum<T>(total), sum<T>(slope));
      root += step;
      if (!(std::abs(step) > small * power.scale(root))) break;
    }
    row.low = root;
  }
  INLINE Vec<T> core(Vec<T> x) const { return power.core((x - top) * inverse, root); }
};

template <class T> INLINE void keep_forward(Row<T> &row) {
  if (!row.keep) return;
  EACH_VECTOR(row, j) store<T>(row.x + j, load(row.x + j) * load(row.keep + j));
}

template <class T> void maxima(Row<T> &row) {
  int64_t ties = 0;
  for (int64_t j = 0; j < row.n; j++) ties += row.x[j] == row.top;
  for (int64_t j = 0; j < row.n; j++) row.x[j] = row.x[j] == row.top ? T(1) / ties : 0;
  if (row.g) std::fill(row.g, row.g + row.n, T(0));
}

template <class T, class Power> void project_forward(Row<T> &row, Power power, T temperature) {
  if (!(temperature > 0)) return maxima(row), keep_forward(row);
  Projection<T, Power> projection(row, power, temperature);
  EACH_VECTOR(row, j) {
    Vec<T> p = power.p(projection.core(load(row.x + j)));
    store<T>(row.x + j, row.keep ? p * load(row.keep + j) : p);
  }
}

// d log p / de = l^2 (1 - e^-w - w) / w^2, l = log p, w = e l
template <class T> INLINE Vec<T> log_power_slope(Vec<T> l, T e) {
  Vec<T> w = l * e;
  Vec<T> series = (w * (w * (w * (w * T(1.0 / 720) - T(1.0 / 120)) + T(1.0 / 24)) - T(1.0 / 6)));
  series = -series - T(0.5);
  Vec<T> far = magnitude(w) < T(0.02) ? all(T(1)) : w;
  Vec<T> exact = (1 - exp(-far) - far) / (far * far);
  return l * l * (magnitude(w) < T(0.02) ? series : exact);
}

// the gradient by alpha, sum p (d log p / de) (g - gamma), from weights p in row.u
template <class T> T entmax_by_alpha(const Row<T> &row, T e, T gamma) {
  Vec<T> total = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> p = load(row.u + j);
    auto support = p > 0;
    Vec<T> l = log(support ? p : all(T(1)));
    total += support ? p * log_power_slope(l, e) * (load(row.g + j) - gamma) : Vec<T>{};
  }
  return sum<T>(total);
}

// ds = u (g - gamma) / temperature + kappa, gamma = sum u g / sum u
template <class T, class Power>
T project_backward(Row<T> &row, Power power, Temperature<T> temperature, bool entmax) {
  if (!(temperature.value > 0)) return maxima(row), keep_forward(row), T(0);
  Projection<T, Power> projection(row, power, temperature.value);
  Vec<T> slopes = Vec<T>{}, inner = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> g = load(row.g + j);
    if (row.keep) store<T>(row.g + j, g = g * load(row.keep + j));
    Vec<T> u = power.u(projection.core(load(row.x + j)));
    slopes += u;
    inner += u * g;
  }
  T gamma = sum<T>(inner) / sum<T>(slopes), inverse = 1 / temperature.value, dtheta = 0;
  if (entmax && row.want_theta) {
    EACH_VECTOR(row, j) store<T>(row.u + j, power.p(projection.core(load(row.x + j))));
    dtheta = entmax_by_alpha(row, power.e, gamma);
  }
  Vec<T> stretch = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> x = load(row.x + j), c = projection.core(x), u = power.u(c), p = power.p(c);
    Vec<T> ds = u * (load(row.g + j) - gamma);
    stretch += u > 0 ? ds * ((x - row.top) * inverse) : Vec<T>{};
    store<T>(row.g + j, ds * inverse);
    store<T>(row.v + j, x);
    store<T>(row.x + j, row.keep ? p * load(row.keep + j) : p);
  }
  // D = sum u (g - gamma) y, dL/dtemperature = -D / temperature
  T pull = -sum<T>(stretch) * inverse;
  T kappa = pull * temperature.by_sum;
  if (kappa != 0)
    EACH_VECTOR(row, j) {
      Vec<T> ds = load(row.g + j);
      store<T>(row.g + j, load(row.v + j) > -INF<T> ? ds + kappa : ds);
    }
  return entmax ? dtheta : pull * temperature.by_theta;
}

enum class Rescale { none, gen, cone, hourglass };

template <class T, Rescale how> Temperature<T> temperature(Row<T> &row) {
  if (how == Rescale::none) return {};
  if (how == Rescale::gen) return {1 - row.theta, 0, -1};
  const T most = std::numeric_limits<T>::max() / 4, least = std::numeric_limits<T>::min();
  const T nq = std::min(row.valid * row.theta, most), below = 1 + nq, tiny = std::sqrt(least);
  const T largest = largest_size<T>(row, 0);
  T unit = 1;
  if (largest > most / row.n) unit = T(0.25) / row.n;
  if (largest < tiny && nq < tiny) unit = 1 / tiny;
  if (unit != 1) {
    row.top *= unit;
    EACH_VECTOR(row, j) store<T>(row.x + j, load(row.x + j) * unit);
  }
  Vec<T> total = Vec<T>{};
  EACH_VECTOR(row, j) {
    Vec<T> x = load(row.x + j);
    total += x > -INF<T> ? x : Vec<T>{};
  }
  T s = sum<T>(total);
  T size = how == Rescale::hourglass ? std::abs(s) : s;
  T sign = how == Rescale::hourglass ? T((s > 0) - (s < 0)) : T(1);
  T value = (size + nq * unit) / below;
  // the inverse of a smaller one overflows, so the maxima share as at 0
  if (!(value >= least * std::max(unit, T(1)))) return {0, 0, 0, unit};
  return {value, sign / below, row.valid * (unit - size) / (below * below), unit};
}

template <class T, Rescale how> void sparsemax_forward(Row<T> &row) {
  project_forward(row, PowerOne<T>{}, temperature<T, how>(row).value);
}
template <class T, Rescale how> T sparsemax_backward(Row<T> &row) {
  Temperature<T> heat = temperature<T, how>(row);
  T by_theta = project_backward(row, PowerOne<T>{}, heat, false);
  if (heat.unit != 1) EACH_VECTOR(row, j) store<T>(row.g + j, load(row.g + j) * heat.unit);
  return by_theta;
}

template <class T> void entmax_forward(Row<T> &row) {
  const T e = row.theta - 1;
  if (e == 1) return project_forward(row, PowerOne<T>{}, T(1));
  if (e == T(0.5)) return project_forward(row, PowerTwo<T>{}, T(1));
  if (e == 0) return share_forward<T, Softmax>(row);
  project_forward(row, PowerAny<T>(e), T(1));
}

template <class T> T entmax_backward(Row<T> &row) {
  const T e = row.theta - 1;
  if (e == 1) return project_backward(row, PowerOne<T>{}, Temperature<T>{}, true);
  if (e == T(0.5)) return project_backward(row, PowerTwo<T>{}, Temperature<T>{}, true);
  if (e == 0 && !row.want_theta) return share_backward<T, Softmax>(row);
  row.known &= e != 0;  // forward was softmax then, without a root
  return project_backward(row, PowerAny<T>(e), Temperature<T>{}, true);
}
