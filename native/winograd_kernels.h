// The inner loops of 3x3 convolutions by Winograd's minimal filtering, compiled once for every instruction set.
//
// An output tile of 4x4 pixels depends on 6x6 pixels of the input. Transformed, both are 36 numbers a channel, between
// which the convolution is 36 products of matrices [tiles][channels]: 36 multiplications in place of 144.
//
// Reference: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016. The matrices are those of
// the points 0, 1, -1, 2, -2 and infinity.

#pragma once

namespace anode {

constexpr int kOut = 4, kIn = 6, kPoints = kIn * kIn;

struct WinogradKernels {
  int lanes;  // channels have to be a multiple of this

  /// Pixels 6x6 of all channels, `row` and `column` apart, to numbers `point` apart.
  void (*transform_input)(const float* from, long row, long column, long channels, float* to, long point);

  /// Cotangents 4x4 of an output tile, likewise, for the gradient of the weights.
  void (*transform_cotangent)(const float* from, long row, long column, long channels, float* to, long point);

  /// Back to 4x4 pixels.
  void (*transform_output)(const float* from, long point, long channels, float* to, long row, long column);

  /// out [rows][outputs] = x [rows][inputs] times packed [outputs / lanes][inputs][lanes].
  void (*multiply)(const float* x, long rows, long inputs, const float* packed, long outputs, float* out);

  /// sums [outputs][inputs] += transposed g [rows][outputs] times x [rows][inputs].
  void (*accumulate)(const float* g, const float* x, long rows, long outputs, long inputs, float* sums);
};

const WinogradKernels& winograd_kernels();

}  // namespace anode
