// Elementary functions on vectors of points. Every argument of exp here is at most zero.
//
// Errors are of the size of rounding: below 3 units in the last place of the result, as tests/native measures.

#pragma once

#include <cstdint>

namespace anode {
namespace ANODE_ISA {

#ifndef ANODE_VECTOR_BYTES
#define ANODE_VECTOR_BYTES 16
#endif

#define ANODE_INLINE inline __attribute__((always_inline))

template <class T>
struct Simd;

template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(ANODE_VECTOR_BYTES)));
  typedef uint32_t I __attribute__((vector_size(ANODE_VECTOR_BYTES)));
  static constexpr float lowest = -87.0f, round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  static constexpr float log2e = 1.44269504089f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr int mantissa = 23, bias = 127, exp_terms = 7, log_terms = 7;
};

template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(ANODE_VECTOR_BYTES)));
  typedef uint64_t I __attribute__((vector_size(ANODE_VECTOR_BYTES)));
  static constexpr double lowest = -708.0, round = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double log2e = 1.4426950408889634074, ln2_high = 0.693147180369123816490,
                          ln2_low = 1.90821492927058770002e-10;
  static constexpr int mantissa = 52, bias = 1023, exp_terms = 13, log_terms = 16;
};

template <class T>
using V = typename Simd<T>::V;
template <class T>
constexpr int kLanes = ANODE_VECTOR_BYTES / sizeof(T);

template <class T>
ANODE_INLINE V<T> splat(T x) {
  return x - V<T>{};
}

template <class T>
ANODE_INLINE V<T> load(const T* p) {
  V<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
ANODE_INLINE void store(T* p, V<T> v) {
  __builtin_memcpy(p, &v, sizeof v);
}

template <class T>
ANODE_INLINE V<T> absolute(V<T> x) {
  return x < 0 ? -x : x;
}

constexpr double kInverseFactorials[] = {1.0,           1.0,           1.0 / 2,        1.0 / 6,         1.0 / 24,
                                         1.0 / 120,     1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                         1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

/// e^x - 1 and e^x for x <= 0.
template <class T>
ANODE_INLINE void exponential(V<T> x, V<T>& minus_one, V<T>& value) {
  using S = Simd<T>;
  auto nothing = x < S::lowest;
  x = nothing ? splat<T>(S::lowest) : x;
  V<T> shifted = x * S::log2e + S::round;
  V<T> n = shifted - S::round;
  V<T> r = x - n * S::ln2_high - n * S::ln2_low;
  // r^2/2! + r^3/3! + ..., from the last term.
  V<T> p = splat<T>(T(kInverseFactorials[S::exp_terms]));
  for (int k = S::exp_terms - 1; k > 1; --k) p = p * r + T(kInverseFactorials[k]);
  V<T> q = r + p * r * r;
  V<T> scale = (V<T>)(((typename S::I)shifted + S::bias) << S::mantissa);  // 2^n, put together from its bits
  minus_one = scale * q + (scale - 1);
  value = nothing ? V<T>{} : scale * q + scale;  // what is left would not be small beside a large factor
}

/// log(1 + x) for 0 <= x <= 1, as 2 artanh(x / (2 + x)).
template <class T>
ANODE_INLINE V<T> log_one_plus(V<T> x) {
  V<T> s = x / (x + 2), s2 = s * s;
  V<T> p = splat<T>(T(1) / T(2 * Simd<T>::log_terms + 1));
  for (int k = Simd<T>::log_terms - 1; k >= 0; --k) p = p * s2 + T(1) / T(2 * k + 1);
  return p * s * 2;
}

template <class T>
ANODE_INLINE V<T> hyperbolic_tangent(V<T> x) {
  V<T> e, minus_one;
  exponential<T>(-2 * absolute<T>(x), minus_one, e);
  V<T> y = -minus_one / (minus_one + 2);
  return x < 0 ? -y : y;
}

/// Value and derivative of an activation that keeps its derivative.
template <class T>
ANODE_INLINE void softplus(V<T> x, V<T>& value, V<T>& derivative) {
  V<T> e, minus_one;
  exponential<T>(-absolute<T>(x), minus_one, e);
  value = (x > 0 ? x : V<T>{}) + log_one_plus<T>(e);
  derivative = (x > 0 ? splat<T>(1) : e) / (e + 1);
  value = x > 20 ? x : value;  // as torch has it
  derivative = x > 20 ? splat<T>(1) : derivative;
}

template <class T>
ANODE_INLINE void silu(V<T> x, V<T>& value, V<T>& derivative) {
  V<T> e, minus_one;
  exponential<T>(-absolute<T>(x), minus_one, e);
  V<T> sigmoid = (x > 0 ? splat<T>(1) : e) / (e + 1);
  value = x * sigmoid;
  derivative = sigmoid * (x * (1 - sigmoid) + 1);
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
  constexpr int last = sizeof(ScaledErfc<T>::powers) / sizeof(T) - 1;
  a = a > T(6.5) ? splat<T>(T(6.5)) : a;
  V<T> u = (3 / (a + 3)) * T(2 / (1 - low)) - T((1 + low) / (1 - low));
  V<T> p = splat<T>(ScaledErfc<T>::powers[last]);
  for (int k = last - 1; k >= 0; --k) p = p * u + ScaledErfc<T>::powers[k];
  return e * p;
}

template <class T>
ANODE_INLINE void gelu(V<T> x, V<T>& value, V<T>& derivative) {
  V<T> e, minus_one;
  exponential<T>(x * x * T(-0.5), minus_one, e);
  V<T> tail = complement_of_error_function<T>(absolute<T>(x) * T(0.70710678118654752440), e) * T(0.5);
  V<T> below = x < 0 ? tail : 1 - tail;
  value = x * below;
  derivative = below + x * e * T(0.39894228040143267794);
}

}  // namespace ANODE_ISA
}  // namespace anode
