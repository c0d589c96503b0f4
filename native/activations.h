// Activation functions on vectors of points, with the derivatives that are kept with the values.

#pragma once

#include "vector_math.h"

namespace anode {
namespace ANODE_ISA {

/// With |x| = n log(2) / 2 + r, s = 2^n and t = tanh(r), tanh(|x|) = ((s - 1) + (s + 1) t) / ((s + 1) + (s - 1) t).
/// The polynomial of tanh has half as many terms as that of the exponential: this takes 0.8 of the time. For n > 0 the
/// quotient is 1 - 2 / s + (2 / s + (4 - 2 / s) t) / ((s + 1) + (s - 1) t), whose rounded part is small.
template <class T>
struct Tangent {
  V<T> t, shifted;  // the lowest bits of `shifted` are those of n

  Tangent() = default;
  explicit ANODE_INLINE Tangent(V<T> x) {
    using S = Simd<T>;
    V<T> a = absolute<T>(x);
    a = a > S::tanh_largest ? splat<T>(S::tanh_largest) : a;
    shifted = a * (2 * S::log2e) + S::round;
    const V<T> n = shifted - S::round, r = a - n * S::half_ln2, z = r * r;
    t = r + (polynomial<T>(z, S::tanh_powers) * (r * z) - n * S::half_ln2_low);
  }

  /// tanh(|x|) with the sign of x.
  ANODE_INLINE V<T> of(V<T> x) const {
    const V<T> s = Exponent<T>::scale((I<T>)shifted), d = Exponent<T>::scale(1 - (I<T>)shifted);  // 2 / s
    const auto far = shifted != Simd<T>::round;
    const V<T> part = (4 - d) * t + (far ? d : V<T>{}), start = far ? 1 - d : V<T>{};
    return with_sign_of<T>(start + part / ((s - 1) * t + (s + 1)), x);
  }
};

template <class T>
ANODE_INLINE V<T> hyperbolic_tangent(V<T> x) {
  return Tangent<T>(x).of(x);
}

/// The same in place for `count` numbers, a multiple of kLanes. Each operation of one tanh waits for the one before,
/// and a processor looks only some hundred operations ahead: with all first halves before all second halves it finds
/// work in more vectors, which takes 0.77 of the time.
template <class T>
ANODE_INLINE void hyperbolic_tangents(T* x, long count) {
  constexpr int most = 32;
  Tangent<T> halves[most];
  for (long first = 0; first < count; first += most * kLanes<T>) {
    const long left = (count - first) / kLanes<T>, vectors = left < most ? left : most;
    T* at = x + first;
    for (long i = 0; i < vectors; ++i) halves[i] = Tangent<T>(load(at + i * kLanes<T>));
    for (long i = 0; i < vectors; ++i) store(at + i * kLanes<T>, halves[i].of(load(at + i * kLanes<T>)));
  }
}

/// 1 / (1 + 2^n (1 + r)) = 2^-n / (2^-n + 1 + r); 0 where 2^-n is subnormal.
template <class T>
ANODE_INLINE V<T> sigmoid(V<T> x) {
  using S = Simd<T>;
  V<T> argument = -x < S::expm1_lowest ? splat<T>(S::expm1_lowest) : -x;
  argument = argument > S::sigmoid_largest ? splat<T>(S::sigmoid_largest) : argument;
  const Exponent<T> e(argument);
  const V<T> scale = e.scale(0 - e.whole), sum = scale + 1, lost = scale - (sum - 1);
  return scale / (sum + (e.r + (e.rest + lost)));
}

/// log(1 + e^x) and its derivative; x itself beyond the threshold, as torch has it.
template <class T>
ANODE_INLINE void softplus(V<T> x, V<T>& value, V<T>& derivative, T threshold = 20) {
  V<T> e = decay<T>(-absolute<T>(x));
  value = (x > 0 ? x : V<T>{}) + log1p_of_part<T>(e);
  derivative = (x > 0 ? splat<T>(1) : e) / (e + 1);
  value = x > threshold ? x : value;
  derivative = x > threshold ? splat<T>(1) : derivative;
}

template <class T>
ANODE_INLINE void silu(V<T> x, V<T>& value, V<T>& derivative) {
  V<T> s = sigmoid<T>(x);
  value = x * s;
  derivative = s * (x * (1 - s) + 1);
}

/// Coefficients of a polynomial that is e^(x^2 / 2) P(X > x) for a normal X and 0 <= x <= 13.2, as a function of
/// slope / (x + shift) + offset, which is between -1 and 1. Beyond, e^(-x^2 / 2) is negligible.
template <class T>
struct NormalTail;

template <>
struct NormalTail<float> {
  static constexpr float slope = 8.8560606f, shift = 3.5f, offset = -1.5303030f;
  static constexpr float powers[] = {0.15169884996045f,    0.19660038376848f,     0.10604488503064f,
                                     0.038534102513537f,   0.007682547932849f,    -0.00014240745500903f,
                                     -0.0004242020468038f, -1.825708323475e-5f,   2.409708419627e-5f};
};

template <>
struct NormalTail<double> {
  static constexpr double slope = 13.78787878787878808269, shift = 5, offset = -1.757575757575757616537;
  static constexpr double powers[] = {
      0.1270813843795574406294,    0.1670113112850656410335,   0.1105204459545098997222,  0.05927164359756171433479,
      0.0254505276325226289566,    0.008456901764048379543295, 0.00199783516485066570649, 0.0002484177139760848011293,
      -0.00002302233964447523555784, -0.00001506532679756164672953, -0.000001101893436659357950564,
      6.459528494596132743345e-7,  1.125652918396487843868e-7, -3.098468842474940873555e-8, -7.64086550845494568772e-9,
      1.838363308515754349332e-9,  4.579348900559297339516e-10, -1.008039758280873354147e-10, -2.029537959060523149339e-11};
};

template <class T>
ANODE_INLINE void gelu(V<T> x, V<T>& value, V<T>& derivative) {
  using Tail = NormalTail<T>;
  V<T> e = power_of_two<T>(x * x * T(-0.72134752044448170368));  // e^(-x^2 / 2)
  V<T> tail = e * polynomial<T>(Tail::slope / (absolute<T>(x) + Tail::shift) + Tail::offset, Tail::powers);
  V<T> below = x < 0 ? tail : 1 - tail;
  value = x * below;
  derivative = below + x * e * T(0.39894228040143267794);
}

/// The same with the approximation x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class T>
ANODE_INLINE void gelu_tanh(V<T> x, V<T>& value, V<T>& derivative) {
  constexpr T twice_root = T(1.5957691216057307118), cubic = T(0.044715);
  V<T> square = x * x;
  V<T> s = sigmoid<T>(x * twice_root * (square * cubic + 1));
  value = x * s;
  derivative = s + value * (1 - s) * twice_root * (square * (3 * cubic) + 1);
}

}  // namespace ANODE_ISA
}  // namespace anode
