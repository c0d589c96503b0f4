// Elementwise operations on blocks of points, compiled once for every instruction set and chosen at run time.
//
// A block is a matrix [rows][width]: a row holds one feature's values over the points. `width` is a multiple of
// `lanes` of the kernels, and no alignment is needed. An output may be one of the inputs, if both have the same layout.

#pragma once

namespace anode {

#define ANODE_UNARY(each)                                                                                        \
  each(copy) each(negate) each(absolute) each(sign) each(relu) each(tanh) each(sigmoid) each(softplus)           \
  each(silu) each(gelu) each(gelu_tanh) each(elu) each(leaky_relu) each(exp) each(expm1) each(log) each(log1p)   \
  each(sqrt) each(rsqrt) each(reciprocal) each(sin) each(cos) each(tan) each(square) each(erf) each(erfc)        \
  each(sinh) each(cosh) each(atan)

#define ANODE_BINARY(each)                                                                                       \
  each(add) each(subtract) each(multiply) each(divide) each(power) each(maximum) each(minimum) each(less)        \
  each(less_equal) each(greater) each(greater_equal) each(equal) each(not_equal) each(relu_pull)                 \
  each(tanh_pull) each(sigmoid_pull) each(tanh_bend) each(sigmoid_bend)

#define ANODE_NAME(name) name,
enum class Unary : int { ANODE_UNARY(ANODE_NAME) };
enum class Binary : int { ANODE_BINARY(ANODE_NAME) };
#undef ANODE_NAME

#define ANODE_NAME(name) #name,
constexpr const char* kUnaryNames[] = {ANODE_UNARY(ANODE_NAME)};
constexpr const char* kBinaryNames[] = {ANODE_BINARY(ANODE_NAME)};
#undef ANODE_NAME

/// An operand of several rows: row r is the vector at + r * stride (the same row each time if stride is 0), or, if
/// splat, the number at[r * stride] for all points.
template <class T>
struct Operand {
  const T* at;
  long stride;
  bool splat;
};

template <class T>
struct Elementwise {
  /// out = f(a), or out += f(a) if `add`. `derivative` receives f'(a), laid out as out, unless it is null. p and q are
  /// the beta and threshold of softplus; p is the alpha of elu and the slope of leaky_relu. At kinks, derivatives are
  /// those of torch.
  void (*unary)(Unary, Operand<T> a, T p, T q, long rows, long width, T* out, T* derivative, bool add);

  /// out = a op b, or out += a op b. Comparisons give 1 or 0. relu_pull(g, value) = value > 0 ? g : 0,
  /// tanh_pull(g, value) = g (1 - value^2), sigmoid_pull(g, value) = g value (1 - value). The derivatives of these two
  /// by the value are tanh_bend(g, value) = -2 g value and sigmoid_bend(g, value) = g (1 - 2 value).
  void (*binary)(Binary, Operand<T> a, Operand<T> b, long rows, long width, T* out, bool add);

  /// out = c != 0 ? a : b, or out += that.
  void (*select)(Operand<T> c, Operand<T> a, Operand<T> b, long rows, long width, T* out, bool add);

  /// Row g of out is the sum of rows g * outer + i * inner of a, over i < length; is added to if `add`.
  void (*sum_rows)(const T* a, long groups, long outer, long length, long inner, long width, T* out, bool add);

  /// The same with the largest instead of the sum. NaN counts as the largest.
  void (*largest_row)(const T* a, long groups, long outer, long length, long inner, long width, T* out);

  /// Row r of out, [rows][narrow], is the sum of row r of a * b over the pieces of `narrow` points each.
  void (*fold)(Operand<T> a, Operand<T> b, long rows, long width, long narrow, T* out);

  /// sums[r * step] += the sum over the points of row r, which is at a + r * stride.
  void (*sum_points)(const T* a, long stride, long rows, long width, T* sums, long step);
};

/// The operations for the best instruction set of this CPU, or for the one called `name`.
template <class T>
const Elementwise<T>& elementwise(const char* name = nullptr);

}  // namespace anode
