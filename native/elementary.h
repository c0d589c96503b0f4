// Trigonometric and hyperbolic functions, erf, erfc and powers on vectors of points. See vector_math.h.

#pragma once

#include "activations.h"

namespace anode {
namespace ANODE_ISA {

template <class T>
struct Elementary;

template <>
struct Elementary<float> {
  static constexpr float quarters[] = {1.5703125f, 0.00048375129699707f, 7.5495336204767e-8f, 2.5632829192546e-12f,
                                       6.1232339957368e-17f};  // pi / 2, in parts of 11 bits
  static constexpr float most_quarters = 2097152.0f;
  static constexpr float sin_powers[] = {-0.16666655995f, 0.0083322253528f, -0.00019522212391f};
  static constexpr float cos_powers[] = {0.041666652154f, -0.001388758387f, 2.445983454e-5f};
  static constexpr float atan_powers[] = {-0.33333319957f, 0.19998703603f, -0.14247238687f, 0.10617796207f,
                                          -0.06132640398f};
  static constexpr float eighth = 0.78539818525314f, eighth_low = -2.1855695000931e-8f;  // of a turn
  static constexpr float sinh_powers[] = {0.16666666509f, 0.0083333495588f, 0.00019836229455f, 2.8166431544e-6f};
  static constexpr float erf_powers[] = {0.12837916591f,    -0.3761262714f,   0.11283600212f, -0.026854445582f,
                                         0.0051895364619f, -0.00080208456984f, 7.8891191575e-5f};
  static constexpr float two_thirds = 0.666748046875f, two_thirds_low = -8.1380208333333e-5f;
  static constexpr float power_powers[] = {0.60000214506f, 0.4282187165f, 0.35103719034f};
  static constexpr float largest_exponent = 1.2676506e30f;  // 2^100
};

template <>
struct Elementary<double> {
  static constexpr double quarters[] = {1.570796326850540935993, -5.564431676050702289815e-11,
                                        -1.365865540221250623874e-21};  // in parts of 34 bits
  static constexpr double most_quarters = 1125899906842624.0;
  static constexpr double sin_powers[] = {-0.16666666666666645196,   0.0083333333333249228317,
                                          -0.00019841269831451931535, 2.7557314177016094855e-6,
                                          -2.505082434668765727e-8,  1.590020256352302935e-10};
  static constexpr double cos_powers[] = {0.041666666666666656657,    -0.0013888888888883275794,
                                          0.000024801587294785415431, -2.7557315781275785764e-7,
                                          2.0875905356027657388e-9,   -1.136852627400569132e-11};
  static constexpr double atan_powers[] = {
      -0.33333333333333299418, 0.19999999999978673809,  -0.14285714282415427447, 0.11111110882914065652,
      -0.09090900359470475595, 0.076921027828076735536, -0.066635529380896980353, 0.05850940309705327113,
      -0.050522191871632749268, 0.03837427252008270196, -0.01822865410053223695};
  static constexpr double eighth = 0.7853981633974482789995, eighth_low = 3.061616997868382943065e-17;
  static constexpr double sinh_powers[] = {0.16666666666666667173,   0.0083333333333331800156,
                                           0.00019841269841414206429, 2.75573191617054741e-6,
                                           2.5052122505625361699e-8, 1.605730284474762725e-10,
                                           7.7575834823699304286e-13};
  static constexpr double erf_powers[] = {
      0.12837916709551256679,    -0.37612638903183546628,   0.11283791670945253232,    -0.026866170643276218303,
      0.0052239776074234678405,  -0.00085483259896967580333, 0.00012055295320494294236, -0.000014924744663335489733,
      1.6447517677871873706e-6,  -1.6209175911748695663e-7, 1.372297626592450327e-8,   -7.8011888740977515657e-10};
  static constexpr double two_thirds = 0.6666666716337203979492, two_thirds_low = -4.967053731282552083333e-9;
  static constexpr double power_powers[] = {
      0.60000000000000587461, 0.42857142856365893646, 0.33333333580526159093, 0.27272692708099499268,
      0.23079441625901137676, 0.19900400991034128833, 0.19661658910101490111};
  static constexpr double largest_exponent = 1.2676506002282294e30;
};

/// x minus n quarter turns. The first products are exact as long as n has few bits; what rounding takes from the first
/// difference that is not exact is given back.
ANODE_INLINE V<double> remainder_of_turn(V<double> x, V<double> n) {
  constexpr auto& q = Elementary<double>::quarters;
  V<double> exact = x - n * q[0], r = exact - n * q[1];
  return r + (((exact - r) - n * q[1]) - n * q[2]);
}

ANODE_INLINE V<float> remainder_of_turn(V<float> x, V<float> n) {
  constexpr auto& q = Elementary<float>::quarters;
  V<float> exact = (x - n * q[0]) - n * q[1], r = exact - n * q[2];
  return (r + (((exact - r) - n * q[2]) - n * q[3])) - n * q[4];
}

/// Both at once. Within about 8e5 (float: 1e4) they are exact to rounding; beyond, as if x were rounded; where even the
/// number of turns is lost they are 0 and 1.
template <class T>
ANODE_INLINE void sine_cosine(V<T> x, V<T>& sine, V<T>& cosine) {
  using S = Simd<T>;
  x = absolute<T>(x) > Elementary<T>::most_quarters ? x * 0 : x;  // NaN for infinity
  V<T> shifted = x * T(0.63661977236758134308) + S::round;
  V<T> r = remainder_of_turn(x, shifted - S::round), z = r * r;
  V<T> s = x == 0 ? x : r + r * z * polynomial<T>(z, Elementary<T>::sin_powers);  // so that -0 stays -0
  V<T> c = (1 - z * T(0.5)) + z * z * polynomial<T>(z, Elementary<T>::cos_powers);
  const I<T> quarter = (I<T>)shifted;
  const auto odd = (quarter & 1) != 0;
  constexpr int top = sizeof(T) * 8 - 2;  // from the second bit to that of the sign
  sine = (V<T>)((I<T>)(odd ? c : s) ^ ((quarter & 2) << top));
  cosine = (V<T>)((I<T>)(odd ? s : c) ^ (((quarter + 1) & 2) << top));
}

/// With one division, x is brought to between -tan(pi / 8) and tan(pi / 8).
template <class T>
ANODE_INLINE V<T> arc_tangent(V<T> x) {
  using E = Elementary<T>;
  V<T> a = absolute<T>(x), none = {}, one = splat<T>(1);
  const auto steep = a > T(2.414213562373095), medium = a > T(0.41421356237309503);
  V<T> t = (steep ? -one : medium ? a - 1 : a) / (steep ? a : medium ? a + 1 : one), z = t * t;
  V<T> turn = steep ? splat<T>(2) : medium ? one : none;
  V<T> rest = t * z * polynomial<T>(z, E::atan_powers) + turn * E::eighth_low;
  return with_sign_of<T>(turn * E::eighth + (t + rest), x);
}

/// sinh and cosh.
template <class T>
ANODE_INLINE void hyperbolic(V<T> x, V<T>& sine, V<T>& cosine) {
  V<T> a = absolute<T>(x), z = a * a;
  V<T> e = exponential<T, 1>(a), inverse = T(0.25) / e;  // e^a / 2 and e^-a / 2
  V<T> near = a + a * z * polynomial<T>(z, Elementary<T>::sinh_powers);
  sine = with_sign_of<T>(a < 1 ? near : e - inverse, x);
  cosine = e + inverse;
}

/// The first half of a number's bits: products of two such are exact.
template <class T>
ANODE_INLINE V<T> upper(V<T> x) {
  return (V<T>)((I<T>)x & Simd<T>::upper_half);
}

/// Coefficients of a polynomial that is (a + 3) e^(a^2) erfc(a) for all a >= 0 where erfc(a) is not 0, as a function of
/// slope / (a + 3) - offset, which is between -1 and 1: the Chebyshev series up to the terms that the precision asks
/// for, in powers. Their sizes add up to the largest value, so that nothing is lost to rounding.
template <class T>
struct ScaledErfc;

template <>
struct ScaledErfc<float> {
  static constexpr float slope = 7.7647058823529f, offset = 1.5882352941176f;
  static constexpr float powers[] = {1.3092449458039f,     0.93171802748681f,   0.50277327055879f,   0.19951172257697f,
                                     0.052677725996799f,   0.0059561375157556f, -0.0013851890710417f,
                                     -0.00055220872054678f, 2.3361943825862e-5f, 3.2208576483878e-5f};
};

template <>
struct ScaledErfc<double> {
  static constexpr double slope = 6.6666666666666666667, offset = 1.2222222222222222222;
  static constexpr double powers[] = {
      1.1685713227657259095,      0.9101210154426477433,      0.55955286292421573953,     0.26311501008590976189,
      0.087031570527845630983,    0.015019508411685774225,    -0.0018411424283605937074,  -0.0016076968914743878152,
      -0.00011046595102075488641, 0.0001410854687151613528,   0.000022383542397634885414, -0.00001468712603595724988,
      -2.6249822109448315056e-6,  1.8809516019729798093e-6,   2.1636099272934913059e-7,   -2.7011475933895956902e-7,
      1.8319443250033947322e-9,   3.80589778482541583e-8,     -6.0338888284810482756e-9,  -4.4553761594749862923e-9,
      1.4530122363566126831e-9,   3.1179347541889784161e-10,  -1.5433897684029448692e-10};
};

/// erfc(a) for a >= 0, given e^(-a^2).
template <class T>
ANODE_INLINE V<T> complement_of_error_function(V<T> a, V<T> e) {
  const V<T> inverse = 1 / (a + 3);
  return e * inverse * polynomial<T>(inverse * ScaledErfc<T>::slope - ScaledErfc<T>::offset, ScaledErfc<T>::powers);
}

/// erf(x) for x between -1 and 1.
template <class T>
ANODE_INLINE V<T> error_function_near_zero(V<T> x) {
  return x + x * polynomial<T>(x * x, Elementary<T>::erf_powers);
}

/// erf(x), and e^(-x^2).
template <class T>
ANODE_INLINE V<T> error_function(V<T> x, V<T>& e) {
  V<T> a = absolute<T>(x);
  e = decay<T>(-a * a);
  V<T> far = 1 - complement_of_error_function<T>(a, e);
  return with_sign_of<T>(a < 1 ? error_function_near_zero<T>(a) : far, x);
}

/// erfc(x), and e^(-x^2). The square is a sum of two numbers, so that small values are right to the last places too.
template <class T>
ANODE_INLINE V<T> complementary_error_function(V<T> x, V<T>& e) {
  V<T> a = absolute<T>(x);
  a = a > T(40) ? splat<T>(40) : a;  // from where on e is 0, and which is squared without overflow
  const V<T> square = upper<T>(a * a), high = upper<T>(a), rest = (square - high * high) - (a - high) * (a + high);
  e = exponential<T>(-square, &rest);
  const V<T> above = complement_of_error_function<T>(a, e), far = x < 0 ? 2 - above : above;
  return a < T(0.5) ? 1 - error_function_near_zero<T>(x) : far;
}

/// With -fno-math-errno this is an instruction.
ANODE_INLINE float root_of(float x) { return __builtin_sqrtf(x); }
ANODE_INLINE double root_of(double x) { return __builtin_sqrt(x); }

template <class T>
ANODE_INLINE V<T> square_root(V<T> x) {
  V<T> y;
  for (int i = 0; i < kLanes<T>; ++i) y[i] = root_of(x[i]);
  return y;
}

/// log(x) for finite x > 0, as a sum of two numbers of which the first is an upper half: log(m) = 2 artanh(s)
/// = 2/3 s (3 + s^2 + ...), with every factor in two parts.
template <class T>
ANODE_INLINE void logarithm_in_parts(V<T> x, V<T>& high, V<T>& low) {
  using S = Simd<T>;
  using E = Elementary<T>;
  V<T> k, m = split<T>(x, k), f = m - 1, inverse = 1 / (m + 1);
  V<T> below = upper<T>(m + 1), below_low = m - (below - 1);
  V<T> s = upper<T>(f * inverse), s_low = ((f - s * below) - s * below_low) * inverse;
  V<T> square = s * s, square_low = s_low * (2 * s + s_low), z = square + square_low;
  V<T> rest = z * z * polynomial<T>(z, E::power_powers) + square_low;
  V<T> series = upper<T>(square + rest + 3), series_low = (square - (series - 3)) + rest;
  V<T> product = s * series, product_low = s_low * series + series_low * (s + s_low);
  V<T> sum = upper<T>(product + product_low), sum_low = product_low - (sum - product);
  V<T> log_m = sum * E::two_thirds;
  V<T> log_m_low = sum * E::two_thirds_low + sum_low * T(2.0 / 3) + k * S::ln2_low;
  high = upper<T>(k * S::ln2_high + log_m + log_m_low);
  low = log_m_low - ((high - k * S::ln2_high) - log_m);
}

/// x >= 0, rounded to a whole number.
template <class T>
ANODE_INLINE V<T> rounded(V<T> x) {
  return x < Simd<T>::whole ? (x + Simd<T>::whole) - Simd<T>::whole : x;
}

/// a^b, as std::pow has it.
template <class T>
ANODE_INLINE V<T> power(V<T> a, V<T> b) {
  constexpr T most = Elementary<T>::largest_exponent;  // even, and with it every power but those of 1 is 0 or infinite
  const auto one = (b == 0) | (a == 1);
  V<T> x = absolute<T>(a), exponent = b > most ? splat<T>(most) : b < -most ? splat<T>(-most) : b;
  V<T> high, low;
  logarithm_in_parts<T>(x, high, low);
  V<T> b_high = upper<T>(exponent), b_low = exponent - b_high;
  V<T> product = b_high * high, tail = b_low * high + exponent * low;
  tail = absolute<T>(product) < 1000 ? tail : V<T>{};  // beyond, the power is 0 or infinite, and the tail not small
  V<T> y = exponential<T>(product, &tail);
  const auto outside = (x == 0) | (x == kInfinity<T>);
  y = outside ? ((x == 0) ^ (b > 0) ? splat<T>(kInfinity<T>) : V<T>{}) : y;
  V<T> size = absolute<T>(exponent), half = size * T(0.5);
  const auto whole = rounded<T>(size) == size, odd = whole & (rounded<T>(half) != half);
  y = odd ? with_sign_of<T>(y, a) : y;
  y = ((a < 0) & (x < kInfinity<T>) & ~whole) ? splat<T>(kNan<T>) : y;
  y = (a != a) | (b != b) ? a + b : y;
  return one ? splat<T>(1) : y;
}

}  // namespace ANODE_ISA
}  // namespace anode
