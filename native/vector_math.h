// Vectors of points, and the exponential and logarithmic functions on them.
//
// Every function is straight-line code, so that the processor works on several vectors at once, and takes every
// argument: infinities, NaN, subnormal numbers, both zeros. The compiler may fuse any product with a sum; where a
// product has to be exact, its factors have few enough bits. tests/engine/test_elementwise.py measures the errors.
//
// The polynomials are minimax approximations, with the lowest power first.

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
  static constexpr int mantissa = 23, bias = 127;
  static constexpr uint32_t sign = 0x80000000u, one = 0x3f800000u, root_half = 0x3f3504f3u;
  static constexpr uint32_t upper_half = 0xfffff000u;  // leaves 12 bits of a number: the product of two such is exact
  static constexpr float round = 12582912.0f;          // 1.5 * 2^23: adding it rounds to whole numbers
  static constexpr float whole = 8388608.0f;           // 2^23: from here on all numbers are whole
  static constexpr float smallest_normal = 1.17549435e-38f;
  static constexpr float log2e = 1.44269504089f;
  static constexpr float ln2_high = 0.693115234375f, ln2_low = 3.1946184945309e-5f;  // high has 12 bits
  static constexpr float exp_lowest = -105.0f, exp_largest = 90.0f, expm1_lowest = -20.0f,
                         expm1_largest = 89.0f, sigmoid_largest = 88.0f;
  static constexpr float exp_powers[] = {0.50000000614f, 0.16666542139f, 0.041666279688f, 0.0083667625864f,
                                         0.0013946742891f};
  static constexpr float exp2_powers[] = {1.0f,           0.69314720671f,   0.24022651214f,   0.055503272142f,
                                          0.0096180256026f, 0.0013400432165f, 0.00015469731977f};
  static constexpr float tanh_largest = 10.0f;
  static constexpr float half_ln2 = 0.3465735912322998046875f, half_ln2_low = -9.5232714997888e-10f;  // 21 bits
  static constexpr float tanh_powers[] = {-0.33333322712f, 0.13331182749f, -0.052726783321f};
  static constexpr float log_powers[] = {0.66666765252f, 0.39978628465f, 0.29847068857f};
};

template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(ANODE_VECTOR_BYTES)));
  typedef uint64_t I __attribute__((vector_size(ANODE_VECTOR_BYTES)));
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr uint64_t sign = 0x8000000000000000u, one = 0x3ff0000000000000u, root_half = 0x3fe6a09e667f3bcdu;
  static constexpr uint64_t upper_half = 0xfffffffff8000000u;  // leaves 26 bits
  static constexpr double round = 6755399441055744.0;          // 1.5 * 2^52
  static constexpr double whole = 4503599627370496.0;          // 2^52
  static constexpr double smallest_normal = 2.2250738585072014e-308;
  static constexpr double log2e = 1.4426950408889634074;
  static constexpr double ln2_high = 0.6931471805601177038625, ln2_low = -1.723944452561483477316e-13;  // high: 40 bits
  static constexpr double exp_lowest = -746.0, exp_largest = 712.0, expm1_lowest = -45.0,
                          expm1_largest = 710.0, sigmoid_largest = 709.0;
  static constexpr double exp_powers[] = {
      0.50000000000000041658,   0.16666666666666683971,     0.041666666666583467186,    0.0083333333333155642738,
      0.001388888893026377575,  0.0001984126990147288901,   0.000024801506176139834024, 2.7557228948252235404e-6,
      2.7625861689886765785e-7, 2.5114263121112119582e-8};
  static constexpr double exp2_powers[] = {
      1.0,                        0.69314718055994530835,   0.24022650695910159577,    0.055504108664821699003,
      0.0096181291075872534294,   0.001333355814639035047,  0.00015403530463727981589, 0.000015252733856295573396,
      1.3215432534254118261e-6,   1.0178051192117846665e-7, 7.0741945626131047707e-9,  4.4566754636398607237e-10};
  static constexpr double tanh_largest = 20.0;
  static constexpr double half_ln2 = 0.34657359027997269862, half_ln2_low = -4.3915917162026329e-17;  // 49 bits
  static constexpr double tanh_powers[] = {
      -0.33333333333332486046, 0.13333333332784290105,    -0.053968252782950000357,
      0.021869370784371366862, -0.0088573111012061169092, 0.0034448665557648077595};
  static constexpr double log_powers[] = {
      0.66666666666666987859, 0.39999999999613320513, 0.28571428703464593365, 0.22222202188001369039,
      0.1818339130690276891,  0.15318177712831321339, 0.14757096665106404061};
};

template <class T>
using V = typename Simd<T>::V;
template <class T>
using I = typename Simd<T>::I;
template <class T>
constexpr int kLanes = ANODE_VECTOR_BYTES / sizeof(T);

/// A number of vectors that are treated together.
template <int C>
struct Vectors {
  static constexpr int count = C;
};

/// Calls work(Vectors<C>, b) for all places b of a row, C vectors at a time. What is left is treated by fewer vectors.
template <class T, int C, class Work>
ANODE_INLINE void across(long width, Work work, long b = 0) {
  for (; b + C * kLanes<T> <= width; b += C * kLanes<T>) work(Vectors<C>{}, b);
  if constexpr (C > 1) across<T, C / 2>(width, work, b);
}
template <class T>
constexpr T kInfinity = __builtin_inf();
template <class T>
constexpr T kNan = __builtin_nan("");

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
  return (V<T>)((I<T>)x & ~Simd<T>::sign);
}

/// y >= 0 with the sign of x. Also for functions that have the sign of x, so that f(-0) is -0.
template <class T>
ANODE_INLINE V<T> with_sign_of(V<T> y, V<T> x) {
  return (V<T>)((I<T>)y | ((I<T>)x & Simd<T>::sign));
}

/// Short polynomials in Horner's order; of long ones even and odd powers apart, because each operation of a sequence
/// waits for the one before.
template <class T, int N>
ANODE_INLINE V<T> polynomial(V<T> x, const T (&powers)[N]) {
  constexpr int step = N > 9 ? 2 : 1;
  V<T> square = step == 2 ? x * x : x, last = splat<T>(powers[N - 1]), before = splat<T>(powers[N - 2]);
  for (int k = N - 1 - step; k >= 0; k -= step) last = last * square + powers[k];
  if constexpr (step == 1) return last;
  for (int k = N - 4; k >= 0; k -= 2) before = before * square + powers[k];
  return N % 2 ? before * x + last : last * x + before;
}

/// e^x = 2^n (1 + r + rest), where |r| is about log(2) / 2 at most, and exact. The lowest bits of `whole` are those of n.
template <class T>
struct Exponent {
  V<T> r, rest;
  I<T> whole;

  /// The argument is x, plus a small tail if there is one.
  explicit ANODE_INLINE Exponent(V<T> x, const V<T>* tail = nullptr) {
    using S = Simd<T>;
    V<T> shifted = x * S::log2e + S::round, n = shifted - S::round;
    V<T> low = n * -S::ln2_low;
    if (tail) low += *tail;
    r = x - n * S::ln2_high;
    V<T> all = r + low;
    rest = polynomial<T>(all, S::exp_powers) * all * all + low;
    whole = (I<T>)shifted;
  }

  /// 2^n, put together from its bits.
  static ANODE_INLINE V<T> scale(I<T> n) { return (V<T>)((n + Simd<T>::bias) << Simd<T>::mantissa); }
};

/// e^(x + tail) / 2^halvings. The power of two is two factors, because it alone may be too large or small a number.
template <class T, int halvings = 0>
ANODE_INLINE V<T> exponential(V<T> x, const V<T>* tail = nullptr) {
  using S = Simd<T>;
  x = x < S::exp_lowest ? splat<T>(S::exp_lowest) : x;
  x = x > S::exp_largest ? splat<T>(S::exp_largest) : x;
  const Exponent<T> e(x, tail);
  const I<T> half = e.whole >> 1;
  const V<T> scale = e.scale(half);
  return ((e.r + e.rest) * scale + scale) * e.scale(e.whole - half - halvings);
}

/// e^x for x <= 0, which needs fewer operations.
template <class T>
ANODE_INLINE V<T> decay(V<T> x) {
  using S = Simd<T>;
  const Exponent<T> e(x < S::exp_lowest ? splat<T>(S::exp_lowest) : x);
  const V<T> scale = e.scale(e.whole + 64);  // 2^n itself may be too small a number
  return ((e.r + e.rest) * scale + scale) * T(0x1p-64);
}

/// 2^x for x <= 0, as exact as x is; 0 where that is subnormal.
template <class T>
ANODE_INLINE V<T> power_of_two(V<T> x) {
  using S = Simd<T>;
  constexpr T lowest = -S::bias;  // for which scale() is 0
  x = x < lowest ? splat<T>(lowest) : x;
  const V<T> shifted = x + S::round;
  return polynomial<T>(x - (shifted - S::round), S::exp2_powers) * Exponent<T>::scale((I<T>)shifted);
}

/// (1 - e^x) / 2 as a sum of two numbers, the second small, given scale = 2^n / 2.
template <class T>
ANODE_INLINE V<T> half_complement(const Exponent<T>& e, V<T> scale, V<T>& small) {
  const V<T> before = T(0.5) - scale, sum = before - scale * e.r, lost = (before - sum) - scale * e.r;
  small = lost - scale * e.rest;
  return sum;
}

template <class T>
ANODE_INLINE V<T> expm1(V<T> x) {
  using S = Simd<T>;
  V<T> inside = x < S::expm1_lowest ? splat<T>(S::expm1_lowest) : x;
  inside = inside > S::expm1_largest ? splat<T>(S::expm1_largest) : inside;
  const Exponent<T> e(inside);
  V<T> small, sum = half_complement<T>(e, e.scale(e.whole - 1), small);
  return with_sign_of<T>(absolute<T>((sum + small) * 2), x);
}

/// k log(2) + log(1 + f), for 1 + f from sqrt(1/2) to sqrt(2) and whole k. With s = f / (2 + f) the logarithm of 1 + f is
/// 2 artanh(s) = f - s (f - R(s^2)), where the part that is not f is small.
template <class T>
ANODE_INLINE V<T> log_of(V<T> k, V<T> f) {
  using S = Simd<T>;
  V<T> s = f / (f + 2), z = s * s, half_square = f * f * T(0.5);
  V<T> rest = polynomial<T>(z, S::log_powers) * z;
  return k * S::ln2_high - ((half_square - (s * (half_square + rest) + k * S::ln2_low)) - f);
}

/// The k for which x / 2^k is between sqrt(1/2) and sqrt(2), for normal x > 0: as a number, and in the place of the
/// exponent, where subtracting it from a number divides that by 2^k.
template <class T>
ANODE_INLINE V<T> binary_exponent(V<T> x, I<T>& shift) {
  using S = Simd<T>;
  const I<T> k = ((I<T>)x + (S::one - S::root_half)) >> S::mantissa;  // plus bias
  shift = (k - S::bias) << S::mantissa;
  return (V<T>)(k | (I<T>)splat<T>(S::whole)) - (S::whole + S::bias);
}

/// x > 0 as 2^k m, with m between sqrt(1/2) and sqrt(2).
template <class T>
ANODE_INLINE V<T> split(V<T> x, V<T>& k) {
  using S = Simd<T>;
  const auto subnormal = x < S::smallest_normal;
  x = subnormal ? x * (2 * S::whole) : x;
  I<T> shift;
  k = binary_exponent<T>(x, shift);
  k = subnormal ? k - (S::mantissa + 1) : k;
  return (V<T>)((I<T>)x - shift);
}

/// `inside` where 0 < x < infinity, else the logarithm of x; of NaN and infinity, `x_itself`.
template <class T>
ANODE_INLINE V<T> log_outside(V<T> x, V<T> inside, V<T> x_itself) {
  V<T> outside = x == 0 ? splat<T>(-kInfinity<T>) : x < 0 ? splat<T>(kNan<T>) : x_itself;
  return (x > 0) & (x_itself < kInfinity<T>) ? inside : outside;
}

template <class T>
ANODE_INLINE V<T> logarithm(V<T> x) {
  V<T> k, m = split<T>(x, k);
  return log_outside<T>(x, log_of<T>(k, m - 1), x);
}

/// log(1 + x). Where 1 + x = 2^k m, m - 1 is computed from x, which unlike 1 + x is not rounded.
template <class T>
ANODE_INLINE V<T> log1p(V<T> x) {
  using S = Simd<T>;
  const V<T> sum = x + 1;
  I<T> shift;
  V<T> k = binary_exponent<T>(sum, shift);
  V<T> scale = sum > S::whole * 4 ? V<T>{} : (V<T>)(S::one - shift);  // of large x, the 1 is nothing
  V<T> f = (V<T>)((I<T>)x - shift) + (scale - 1);
  return log_outside<T>(sum, with_sign_of<T>(log_of<T>(k, f), x), x);
}

/// log(1 + x) for 0 <= x <= 1, where k is 0 or 1.
template <class T>
ANODE_INLINE V<T> log1p_of_part(V<T> x) {
  const auto large = x > T(0.41421356);
  return log_of<T>(large ? splat<T>(1) : V<T>{}, large ? x * T(0.5) - T(0.5) : x);
}

}  // namespace ANODE_ISA
}  // namespace anode
