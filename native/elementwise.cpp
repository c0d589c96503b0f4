// Compiled once for every instruction set, with ANODE_ISA its name. Uses nothing of the standard library: see kernels.cpp.

#include "elementwise.h"

#include "elementary.h"

namespace anode {
namespace ANODE_ISA {
namespace {

template <class T>
ANODE_INLINE V<T> sign_of(V<T> x) {
  return (x > 0 ? splat<T>(1) : V<T>{}) - (x < 0 ? splat<T>(1) : V<T>{});
}

/// Value and derivative of the functions with kinks or parameters.
template <class T, Unary U>
ANODE_INLINE V<T> piecewise(V<T> x, [[maybe_unused]] T p, [[maybe_unused]] T q, V<T>& slope) {
  const V<T> none = {}, one = splat<T>(1);
  if constexpr (U == Unary::absolute) return slope = sign_of<T>(x), absolute<T>(x);
  if constexpr (U == Unary::sign) return slope = none, sign_of<T>(x);
  if constexpr (U == Unary::relu) return slope = x <= 0 ? none : one, x < 0 ? none : x;  // so that NaN stays NaN
  if constexpr (U == Unary::leaky_relu) return slope = x > 0 ? one : splat<T>(p), x > 0 ? x : x * p;
  if constexpr (U == Unary::softplus) {
    V<T> value;
    softplus<T>(x * p, value, slope, q);
    return x * p > q ? x : value / p;
  }
  if constexpr (U == Unary::elu) {
    V<T> below = x > 0 ? none : x;  // the exponential of a large x is not wanted
    slope = x > 0 ? one : exponential<T>(below) * p;
    return x > 0 ? x : expm1<T>(below) * p;
  }
}

template <class T>
constexpr T kTwoBySqrtPi = T(1.1283791670955125739);

/// Value and derivative of the functions that have both from one computation, or whose derivative needs the value.
template <class T, Unary U>
ANODE_INLINE V<T> smooth(V<T> x, V<T>& slope) {
  V<T> y = x, other;
  if constexpr (U == Unary::copy) slope = splat<T>(1);
  if constexpr (U == Unary::negate) y = -x, slope = splat<T>(-1);
  if constexpr (U == Unary::square) y = x * x, slope = 2 * x;
  if constexpr (U == Unary::sqrt) y = square_root<T>(x), slope = T(0.5) / y;
  if constexpr (U == Unary::rsqrt) y = 1 / square_root<T>(x), slope = T(-0.5) * y * y * y;
  if constexpr (U == Unary::reciprocal) y = 1 / x, slope = -y * y;
  if constexpr (U == Unary::tanh) y = hyperbolic_tangent<T>(x), slope = 1 - y * y;
  if constexpr (U == Unary::sigmoid) y = sigmoid<T>(x), slope = y * (1 - y);
  if constexpr (U == Unary::silu) silu<T>(x, y, slope);
  if constexpr (U == Unary::gelu) gelu<T>(x, y, slope);
  if constexpr (U == Unary::gelu_tanh) gelu_tanh<T>(x, y, slope);
  if constexpr (U == Unary::exp) y = slope = exponential<T>(x);
  if constexpr (U == Unary::expm1) y = expm1<T>(x), slope = y + 1;
  if constexpr (U == Unary::log) y = logarithm<T>(x), slope = 1 / x;
  if constexpr (U == Unary::log1p) y = log1p<T>(x), slope = 1 / (x + 1);
  if constexpr (U == Unary::sin) sine_cosine<T>(x, y, slope);
  if constexpr (U == Unary::cos) sine_cosine<T>(x, other, y), slope = -other;
  if constexpr (U == Unary::tan) sine_cosine<T>(x, y, other), y /= other, slope = y * y + 1;
  if constexpr (U == Unary::atan) y = arc_tangent<T>(x), slope = 1 / (x * x + 1);
  if constexpr (U == Unary::sinh) hyperbolic<T>(x, y, slope);
  if constexpr (U == Unary::cosh) hyperbolic<T>(x, slope, y);
  if constexpr (U == Unary::erf) y = error_function<T>(x, other), slope = other * kTwoBySqrtPi<T>;
  if constexpr (U == Unary::erfc) y = complementary_error_function<T>(x, other), slope = other * -kTwoBySqrtPi<T>;
  return y;
}

constexpr bool is_piecewise(Unary f) {
  return f == Unary::absolute || f == Unary::sign || f == Unary::relu || f == Unary::leaky_relu ||
         f == Unary::softplus || f == Unary::elu;
}

template <class T, Binary B>
ANODE_INLINE V<T> combine(V<T> a, V<T> b) {
  const V<T> none = {}, one = splat<T>(1);
  if constexpr (B == Binary::add) return a + b;
  if constexpr (B == Binary::subtract) return a - b;
  if constexpr (B == Binary::multiply) return a * b;
  if constexpr (B == Binary::divide) return a / b;
  if constexpr (B == Binary::power) return power<T>(a, b);
  if constexpr (B == Binary::maximum) return (a > b) | (a != a) ? a : b;  // NaN if either is
  if constexpr (B == Binary::minimum) return (a < b) | (a != a) ? a : b;
  if constexpr (B == Binary::less) return a < b ? one : none;
  if constexpr (B == Binary::less_equal) return a <= b ? one : none;
  if constexpr (B == Binary::greater) return a > b ? one : none;
  if constexpr (B == Binary::greater_equal) return a >= b ? one : none;
  if constexpr (B == Binary::equal) return a == b ? one : none;
  if constexpr (B == Binary::not_equal) return a != b ? one : none;
  if constexpr (B == Binary::relu_pull) return b > 0 ? a : none;
  if constexpr (B == Binary::tanh_pull) return a * (1 - b * b);
  if constexpr (B == Binary::sigmoid_pull) return a * b * (1 - b);
  if constexpr (B == Binary::tanh_bend) return -2 * a * b;
  if constexpr (B == Binary::sigmoid_bend) return a * (1 - 2 * b);
}

/// One row of an operand. A number for all points is a vector that is loaded again and again.
template <class T>
class Row {
 public:
  ANODE_INLINE Row(const Operand<T>& operand, long r)
      : all_(splat<T>(operand.at[r * operand.stride])),
        at_(operand.splat ? (const T*)&all_ : operand.at + r * operand.stride),
        step_(operand.splat ? 0 : 1) {}
  Row(const Row&) = delete;
  ANODE_INLINE V<T> operator[](long b) const { return load(at_ + b * step_); }

 private:
  V<T> all_;
  const T* at_;
  long step_;
};

/// Whether the rows of an operand lie side by side, or are all the same number: then they are one long row.
template <class T>
bool is_flat(const Operand<T>& a, long width) {
  return a.stride == (a.splat ? 0 : width);
}

ANODE_INLINE void flatten(bool flat, long& rows, long& width) {
  if (!flat) return;
  width *= rows;
  rows = rows != 0;
}

template <class T>
ANODE_INLINE void put(T* at, V<T> value, bool add) {
  store(at, add ? load(at) + value : value);
}

template <class T, Unary U, bool Slope>
void unary_rows(const Operand<T>& a, T p, T q, long rows, long width, T* out, T* derivative, bool add) {
  for (long r = 0; r < rows; ++r) {
    const Row<T> row(a, r);
    for (long b = 0; b < width; b += kLanes<T>) {
      V<T> value, slope;
      if constexpr (is_piecewise(U))
        value = piecewise<T, U>(row[b], p, q, slope);
      else
        value = smooth<T, U>(row[b], slope);
      put(out + r * width + b, value, add);
      if constexpr (Slope) store(derivative + r * width + b, slope);
    }
  }
}

template <class T>
void unary(Unary f, Operand<T> a, T p, T q, long rows, long width, T* out, T* derivative, bool add) {
  flatten(is_flat(a, width), rows, width);
  switch (f) {
#define ANODE_CASE(name)                                                                             \
  case Unary::name:                                                                                  \
    if (derivative) return unary_rows<T, Unary::name, true>(a, p, q, rows, width, out, derivative, add); \
    return unary_rows<T, Unary::name, false>(a, p, q, rows, width, out, derivative, add);
    ANODE_UNARY(ANODE_CASE)
#undef ANODE_CASE
  }
}

template <class T, Binary B>
void binary_rows(const Operand<T>& a, const Operand<T>& b, long rows, long width, T* out, bool add) {
  for (long r = 0; r < rows; ++r) {
    const Row<T> left(a, r), right(b, r);
    for (long i = 0; i < width; i += kLanes<T>) put(out + r * width + i, combine<T, B>(left[i], right[i]), add);
  }
}

template <class T>
void binary(Binary f, Operand<T> a, Operand<T> b, long rows, long width, T* out, bool add) {
  flatten(is_flat(a, width) && is_flat(b, width), rows, width);
  switch (f) {
#define ANODE_CASE(name) \
  case Binary::name: return binary_rows<T, Binary::name>(a, b, rows, width, out, add);
    ANODE_BINARY(ANODE_CASE)
#undef ANODE_CASE
  }
}

template <class T>
void select(Operand<T> c, Operand<T> a, Operand<T> b, long rows, long width, T* out, bool add) {
  flatten(is_flat(c, width) && is_flat(a, width) && is_flat(b, width), rows, width);
  for (long r = 0; r < rows; ++r) {
    const Row<T> condition(c, r), yes(a, r), no(b, r);
    for (long i = 0; i < width; i += kLanes<T>)
      put(out + r * width + i, condition[i] != 0 ? yes[i] : no[i], add);
  }
}

/// Row g of out is what `join` makes of the rows of group g, one after the other. Two vectors at a time, because each
/// waits for itself.
template <class T, class Join>
ANODE_INLINE void join_rows(const T* a, long groups, long outer, long length, long inner, long width, T* out, bool add,
                            Join join) {
  for (long g = 0; g < groups; ++g)
    across<T, 2>(width, [&](auto vectors, long b) {
      constexpr int C = decltype(vectors)::count;
      const T* at = a + g * outer * width + b;
      V<T> joined[C];
      for (int c = 0; c < C; ++c) joined[c] = load(at + c * kLanes<T>);
      for (long i = 1; i < length; ++i) {
        at += inner * width;
        for (int c = 0; c < C; ++c) joined[c] = join(joined[c], load(at + c * kLanes<T>));
      }
      for (int c = 0; c < C; ++c) put(out + g * width + b + c * kLanes<T>, joined[c], add);
    });
}

template <class T>
void sum_rows(const T* a, long groups, long outer, long length, long inner, long width, T* out, bool add) {
  join_rows(a, groups, outer, length, inner, width, out, add, [](V<T> x, V<T> y) { return x + y; });
}

template <class T>
void largest_row(const T* a, long groups, long outer, long length, long inner, long width, T* out) {
  join_rows(a, groups, outer, length, inner, width, out, false, combine<T, Binary::maximum>);
}

template <class T>
void fold(Operand<T> a, Operand<T> b, long rows, long width, long narrow, T* out) {
  for (long r = 0; r < rows; ++r) {
    const Row<T> left(a, r), right(b, r);
    for (long at = 0; at < narrow; at += kLanes<T>) {
      V<T> sum = {};
      for (long i = at; i < width; i += narrow) sum += left[i] * right[i];
      store(out + r * narrow + at, sum);
    }
  }
}

template <class T>
void sum_points(const T* a, long stride, long rows, long width, T* sums, long step) {
  for (long r = 0; r < rows; ++r) {
    V<T> lanes = {};
    for (long b = 0; b < width; b += kLanes<T>) lanes += load(a + r * stride + b);
    T sum = 0;
    for (int i = 0; i < kLanes<T>; ++i) sum += lanes[i];
    sums[r * step] += sum;
  }
}

}  // namespace

extern const Elementwise<float> elementwise_for_float = {
    unary, binary, select, sum_rows, largest_row, fold, sum_points};
extern const Elementwise<double> elementwise_for_double = {
    unary, binary, select, sum_rows, largest_row, fold, sum_points};

}  // namespace ANODE_ISA
}  // namespace anode
