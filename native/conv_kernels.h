// The inner loops of convolutions, compiled once for every instruction set.
//
// Images have their channels last, so that a vector instruction treats several channels of a pixel. Rows of channels are
// filled up to a multiple of `lanes`, and matrices are packed [outputs / lanes][inputs][lanes].
//
// 3x3 convolutions use Winograd's minimal filtering. An output tile of 4x4 pixels depends on 6x6 pixels of the input.
// After a transform, both are 36 numbers per channel, and the convolution is 36 products of matrices [tiles][channels]:
// 36 multiplications instead of 144.
//
// Reference: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016. The matrices are those of
// the points 0, 1, -1, 2, -2 and infinity.

#pragma once

#include "kernels.h"

namespace anode {

constexpr int kOut = 4, kIn = 6, kPoints = kIn * kIn;

struct ConvKernels {
  int lanes;

  /// Weights 3x3 of as many outputs as there are lanes, [3][3][lanes], to numbers `point` apart.
  void (*transform_weight)(const float* from, float* to, long point);

  /// From numbers of as many inputs as there are lanes, `point` apart, back to gradients [3][3][lanes].
  void (*transform_gradient)(const float* from, long point, float* to);

  /// Pixels 6x6 of all channels, rows of them `row` apart, to numbers `point` apart.
  void (*transform_input)(const float* from, long row, long channels, float* to, long point);

  /// Cotangents 4x4 of an output tile, likewise, for the gradient of the weights.
  void (*transform_cotangent)(const float* from, long row, long channels, float* to, long point);

  /// Back to 4x4 pixels.
  void (*transform_output)(const float* from, long point, long channels, float* to, long row);

  /// out [rows][outputs] = x times a packed matrix; rows of x are `stride` apart.
  void (*multiply)(const float* x, long stride, long rows, long inputs, const float* packed, long outputs, float* out);

  /// sums [outputs][inputs] += transposed g times x [rows][inputs]; rows of g are `stride` apart.
  void (*accumulate)(const float* g, long stride, const float* x, long rows, long outputs, long inputs, float* sums);

  /// x [rows][channels] = act(x + bias), for an activation that is a function of its own value's derivative.
  void (*activate)(Activation, const float* bias, long rows, long channels, float* x);

  /// cotangent *= the derivative of the activation whose value is `seen`.
  void (*pull)(Activation, const float* seen, long count, float* cotangent);

  /// sums [channels] += the sum of x's rows, which are `stride` apart.
  void (*sum)(const float* x, long stride, long rows, long channels, float* sums);
};

/// The kernels for the best instruction set of this CPU, or for the one called `name`.
const ConvKernels& conv_kernels(const char* name = nullptr);

}  // namespace anode
