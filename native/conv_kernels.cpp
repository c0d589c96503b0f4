// Compiled once for every instruction set, like kernels.cpp.

#include "conv_kernels.h"

#include "activations.h"

namespace anode {
namespace ANODE_ISA {
namespace {

using F = V<float>;

ANODE_INLINE void input_line(const F (&d)[6], F (&v)[6]) {
  F even = d[4] - 4 * d[2], odd = d[3] - 4 * d[1], even2 = d[4] - d[2], odd2 = 2 * (d[3] - d[1]);
  v[0] = 4 * d[0] - 5 * d[2] + d[4];
  v[1] = even + odd;
  v[2] = even - odd;
  v[3] = even2 + odd2;
  v[4] = even2 - odd2;
  v[5] = 4 * d[1] - 5 * d[3] + d[5];
}

ANODE_INLINE void output_line(const F (&m)[6], F (&y)[4]) {
  F sum1 = m[1] + m[2], sum2 = m[3] + m[4], difference1 = m[1] - m[2], difference2 = m[3] - m[4];
  y[0] = m[0] + sum1 + sum2;
  y[1] = difference1 + 2 * difference2;
  y[2] = sum1 + 4 * sum2;
  y[3] = difference1 + 8 * difference2 + m[5];
}

ANODE_INLINE void cotangent_line(const F (&g)[4], F (&v)[6]) {
  F even1 = (g[0] + g[2]) * (-1.0f / 6), odd1 = (g[1] + g[3]) * (-1.0f / 6);
  F even2 = (g[0] + 4 * g[2]) * (1.0f / 24), odd2 = (g[1] + 4 * g[3]) * (1.0f / 12);
  v[0] = g[0] * 0.25f;
  v[1] = even1 + odd1;
  v[2] = even1 - odd1;
  v[3] = even2 + odd2;
  v[4] = even2 - odd2;
  v[5] = g[3];
}

ANODE_INLINE void weight_line(const F (&w)[3], F (&v)[6]) {
  F ends = (w[0] + w[2]) * (-1.0f / 6), middle = w[1] * (-1.0f / 6);
  F far = w[0] * (1.0f / 24) + w[2] * (1.0f / 6), near = w[1] * (1.0f / 12);
  v[0] = w[0] * 0.25f;
  v[1] = ends + middle;
  v[2] = ends - middle;
  v[3] = far + near;
  v[4] = far - near;
  v[5] = w[2];
}

ANODE_INLINE void gradient_line(const F (&v)[6], F (&w)[3]) {
  F sum1 = v[1] + v[2], sum2 = v[3] + v[4];
  w[0] = v[0] + sum1 + sum2;
  w[1] = v[1] - v[2] + 2 * (v[3] - v[4]);
  w[2] = sum1 + 4 * sum2 + v[5];
}

/// A transform along the columns and then along the rows of a tile of N x N pixels, to M x M.
template <int N, int M, class Line>
ANODE_INLINE void transform(const float* from, long row, long column, long channels, float* to, long to_row,
                            long to_column, Line line) {
  for (long c = 0; c < channels; c += kLanes<float>) {
    F half[M][N];
    for (int j = 0; j < N; ++j) {
      F in[N], out[M];
      for (int i = 0; i < N; ++i) in[i] = load(from + i * row + j * column + c);
      line(in, out);
      for (int i = 0; i < M; ++i) half[i][j] = out[i];
    }
    for (int i = 0; i < M; ++i) {
      F out[M];
      line(half[i], out);
      for (int j = 0; j < M; ++j) store(to + i * to_row + j * to_column + c, out[j]);
    }
  }
}

void transform_weight(const float* from, float* to, long point) {
  const long lanes = kLanes<float>;
  transform<3, 6>(from, 3 * lanes, lanes, lanes, to, kIn * point, point,
                  [](auto& in, auto& out) { weight_line(in, out); });
}

void transform_gradient(const float* from, long point, float* to) {
  const long lanes = kLanes<float>;
  transform<6, 3>(from, kIn * point, point, lanes, to, 3 * lanes, lanes,
                  [](auto& in, auto& out) { gradient_line(in, out); });
}

void transform_input(const float* from, long row, long channels, float* to, long point) {
  transform<6, 6>(from, row, channels, channels, to, kIn * point, point,
                  [](auto& in, auto& out) { input_line(in, out); });
}

void transform_cotangent(const float* from, long row, long channels, float* to, long point) {
  transform<4, 6>(from, row, channels, channels, to, kIn * point, point,
                  [](auto& in, auto& out) { cotangent_line(in, out); });
}

void transform_output(const float* from, long point, long channels, float* to, long row) {
  transform<6, 4>(from, kIn * point, point, channels, to, row, channels,
                  [](auto& in, auto& out) { output_line(in, out); });
}

/// How many rows of a product are computed at once: as many as there are registers for two vectors of each.
constexpr int kRows = ANODE_VECTOR_BYTES == 64 ? 12 : 6, kVector = kLanes<float>;

/// R rows of a product, C vectors wide: acc += left * right, over `depth`.
///
/// The numbers of row r on the left are `step` apart, and rows `row`; the vectors of a line on the right are `vector`
/// apart, and lines `line`.
template <int R, int C>
ANODE_INLINE void product(const float* left, long row, long step, const float* right, long line, long vector,
                          long depth, F (&acc)[R][C]) {
  for (long k = 0; k < depth; ++k) {
    F u[C];
    for (int c = 0; c < C; ++c) u[c] = load(right + k * line + c * vector);
    for (int r = 0; r < R; ++r) {
      float s = left[r * row + k * step];
      for (int c = 0; c < C; ++c) acc[r][c] += s * u[c];
    }
  }
}

template <int R, int C>
void multiply_tile(const float* x, long stride, long inputs, const float* packed, float* out, long outputs) {
  F acc[R][C] = {};
  product<R, C>(x, stride, 1, packed, kVector, inputs * kVector, inputs, acc);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(out + r * outputs + c * kVector, acc[r][c]);
}

template <int R, int C>
void accumulate_tile(const float* g, long stride, const float* x, long rows, long inputs, float* sums) {
  F acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = load(sums + r * inputs + c * kVector);
  product<R, C>(g, 1, stride, x, inputs, kVector, rows, acc);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(sums + r * inputs + c * kVector, acc[r][c]);
}

/// Calls piece<R>(first) for pieces of kRows rows, and for what is left one of exactly so many.
template <int R = kRows - 1, class Piece>
ANODE_INLINE void rest_of_rows(long first, long left, Piece piece) {
  if constexpr (R > 0) {
    if (left == R)
      piece.template operator()<R>(first);
    else
      rest_of_rows<R - 1>(first, left, piece);
  }
}

template <int C>
struct Multiply {
  const float* x;
  long stride, inputs;
  const float* packed;
  float* out;
  long outputs;
  template <int R>
  void operator()(long row) const {
    multiply_tile<R, C>(x + row * stride, stride, inputs, packed, out + row * outputs, outputs);
  }
};

template <int C>
struct Accumulate {
  const float* g;
  long stride;
  const float* x;
  long rows, inputs;
  float* sums;
  template <int R>
  void operator()(long output) const {
    accumulate_tile<R, C>(g + output, stride, x, rows, inputs, sums + output * inputs);
  }
};

template <class Piece>
ANODE_INLINE void in_rows(long rows, const Piece& piece) {
  long row = 0;
  for (; row + kRows <= rows; row += kRows) piece.template operator()<kRows>(row);
  rest_of_rows(row, rows - row, piece);
}

void multiply(const float* x, long stride, long rows, long inputs, const float* packed, long outputs, float* out) {
  long o = 0;
  for (; o + 2 * kVector <= outputs; o += 2 * kVector)
    in_rows(rows, Multiply<2>{x, stride, inputs, packed + o * inputs, out + o, outputs});
  if (o < outputs) in_rows(rows, Multiply<1>{x, stride, inputs, packed + o * inputs, out + o, outputs});
}

void accumulate(const float* g, long stride, const float* x, long rows, long outputs, long inputs, float* sums) {
  long c = 0;
  for (; c + 2 * kVector <= inputs; c += 2 * kVector)
    in_rows(outputs, Accumulate<2>{g, stride, x + c, rows, inputs, sums + c});
  if (c < inputs) in_rows(outputs, Accumulate<1>{g, stride, x + c, rows, inputs, sums + c});
}

template <class Function>
ANODE_INLINE void on_rows(const float* bias, long rows, long channels, float* x, Function act) {
  for (long r = 0; r < rows; ++r)
    for (long c = 0; c < channels; c += kVector) {
      float* at = x + r * channels + c;
      store(at, act(load(at) + load(bias + c)));
    }
}

void activate(Activation act, const float* bias, long rows, long channels, float* x) {
  switch (act) {
    case Activation::none: return on_rows(bias, rows, channels, x, [](F v) { return v; });
    case Activation::tanh: return on_rows(bias, rows, channels, x, [](F v) { return hyperbolic_tangent<float>(v); });
    case Activation::softplus:
      return on_rows(bias, rows, channels, x, [](F v) {
        F value, derivative;
        softplus<float>(v, value, derivative);
        return value;
      });
    default:  // relu; NaN stays NaN
      return on_rows(bias, rows, channels, x, [](F v) { return v < 0 ? F{} : v; });
  }
}

template <class Function>
ANODE_INLINE void pull_each(const float* seen, long count, float* cotangent, Function pull) {
  for (long i = 0; i < count; i += kVector) store(cotangent + i, pull(load(cotangent + i), load(seen + i)));
}

void pull(Activation act, const float* seen, long count, float* cotangent) {
  switch (act) {
    case Activation::none: return;
    case Activation::tanh: return pull_each(seen, count, cotangent, [](F g, F s) { return g * (1 - s * s); });
    case Activation::softplus:
      return pull_each(seen, count, cotangent, [](F g, F s) { return -g * expm1<float>(-s); });
    default:  // relu, as torch has it for NaN
      return pull_each(seen, count, cotangent, [](F g, F s) { return s <= 0 ? F{} : g; });
  }
}

void sum(const float* x, long stride, long rows, long channels, float* sums) {
  for (long c = 0; c < channels; c += kVector) {
    F total = load(sums + c);
    for (long r = 0; r < rows; ++r) total += load(x + r * stride + c);
    store(sums + c, total);
  }
}

}  // namespace

extern const ConvKernels for_convolutions = {
    kVector,  transform_weight, transform_gradient, transform_input, transform_cotangent, transform_output,
    multiply, accumulate,       activate,           pull,            sum};

}  // namespace ANODE_ISA
}  // namespace anode
