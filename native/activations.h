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

/// Coefficients of a polynomial that is e^(a^2) erfc(a) for 0 <= a <= 6.5, as a function of 3 / (3 + a) brought to the
/// interval from -1 to 1: the Chebyshev series up to the terms that the precision asks for, in powers. Their sizes add
/// up to the largest value, so that nothing is lost to rounding.
template <class T>
struct ScaledErfc;

template <>
struct ScaledErfc<float> {
  static constexpr float powers[] = {
      0.31203524345763091259f,  0.36713086194730555531f,   0.20549370192112367456f,
      0.085621663491964805918f, 0.025284465583899872729f,  0.0044818363341671063867f,
      0.00010673944822634552f,  -0.00013721513062815125f,  -0.000017317255962407014f};
};

template <>
struct ScaledErfc<double> {
  static constexpr double powers[] = {
      0.31203524151332438845,     0.36713103122652739577,    0.20549379966169937945,     0.085619389134178365441,
      0.025283677310008916210,    0.0044901296477982178566,  0.00010897654711647982589,  -0.00014856199781399156387,
      -0.000019943389151779163384, 0.0000054456660609527006897, 0.0000011358474493932307047, -2.8711758618414453147e-7,
      -5.4222184961303020585e-8,  1.9707832258771197210e-8,  1.7518639955411294410e-9,   -1.3914535165671767078e-9,
      4.2206255353768658143e-11,  7.2009214280692929547e-11, -9.8847691470768439815e-12};
};

/// erfc(a) for a >= 0, given e^(-a^2); the error is of the size of rounding errors of 1.
template <class T>
ANODE_INLINE V<T> complement_of_error_function(V<T> a, V<T> e) {
  constexpr double low = 3.0 / 9.5;
  a = a > T(6.5) ? splat<T>(T(6.5)) : a;
  V<T> u = (3 / (a + 3)) * T(2 / (1 - low)) - T((1 + low) / (1 - low));
  return e * polynomial<T>(u, ScaledErfc<T>::powers);
}

template <class T>
ANODE_INLINE void gelu(V<T> x, V<T>& value, V<T>& derivative) {
  V<T> e = decay<T>(x * x * T(-0.5));
  V<T> tail = complement_of_error_function<T>(absolute<T>(x) * T(0.70710678118654752440), e) * T(0.5);
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
