// Compiled once for every instruction set, like kernels.cpp.

#include "winograd_kernels.h"

#include "vector_math.h"

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

void transform_input(const float* from, long row, long column, long channels, float* to, long point) {
  transform<6, 6>(from, row, column, channels, to, kIn * point, point, [](auto& in, auto& out) { input_line(in, out); });
}

void transform_cotangent(const float* from, long row, long column, long channels, float* to, long point) {
  transform<4, 6>(from, row, column, channels, to, kIn * point, point,
                  [](auto& in, auto& out) { cotangent_line(in, out); });
}

void transform_output(const float* from, long point, long channels, float* to, long row, long column) {
  transform<6, 4>(from, kIn * point, point, channels, to, row, column,
                  [](auto& in, auto& out) { output_line(in, out); });
}

constexpr int kRows = 6, kWide = 2 * kLanes<float>;

template <int R>
ANODE_INLINE void multiply_tile(const float* x, long inputs, const float* packed, float* out, long outputs) {
  F acc[R][2] = {};
  for (long c = 0; c < inputs; ++c) {
    F u0 = load(packed + c * kWide), u1 = load(packed + c * kWide + kLanes<float>);
    for (int r = 0; r < R; ++r) {
      float s = x[r * inputs + c];
      acc[r][0] += s * u0;
      acc[r][1] += s * u1;
    }
  }
  for (int r = 0; r < R; ++r) {
    store(out + r * outputs, acc[r][0]);
    store(out + r * outputs + kLanes<float>, acc[r][1]);
  }
}

void multiply(const float* x, long rows, long inputs, const float* packed, long outputs, float* out) {
  for (long o = 0; o < outputs; o += kWide) {
    const float* some = packed + o * inputs;
    long t = 0;
    for (; t + kRows <= rows; t += kRows)
      multiply_tile<kRows>(x + t * inputs, inputs, some, out + t * outputs + o, outputs);
    for (; t < rows; ++t) multiply_tile<1>(x + t * inputs, inputs, some, out + t * outputs + o, outputs);
  }
}

template <int R>
ANODE_INLINE void accumulate_tile(const float* g, const float* x, long rows, long outputs, long inputs, float* sums) {
  F acc[R][2];
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half) acc[r][half] = load(sums + r * inputs + half * kLanes<float>);
  for (long t = 0; t < rows; ++t) {
    F x0 = load(x + t * inputs), x1 = load(x + t * inputs + kLanes<float>);
    for (int r = 0; r < R; ++r) {
      float s = g[t * outputs + r];
      acc[r][0] += s * x0;
      acc[r][1] += s * x1;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half) store(sums + r * inputs + half * kLanes<float>, acc[r][half]);
}

void accumulate(const float* g, const float* x, long rows, long outputs, long inputs, float* sums) {
  for (long c = 0; c < inputs; c += kWide) {
    long o = 0;
    for (; o + kRows <= outputs; o += kRows)
      accumulate_tile<kRows>(g + o, x + c, rows, outputs, inputs, sums + o * inputs + c);
    for (; o < outputs; ++o) accumulate_tile<1>(g + o, x + c, rows, outputs, inputs, sums + o * inputs + c);
  }
}

}  // namespace

extern const WinogradKernels for_winograd = {kWide,           transform_input, transform_cotangent,
                                             transform_output, multiply,        accumulate};

}  // namespace ANODE_ISA
}  // namespace anode
