// 3x3 convolutions of images in channels-last layout, with zero padding, and the gradient of their weights.

#pragma once

#include <functional>

#include "conv_kernels.h"
#include "memory.h"

namespace anode {

/// Some images [count][height][width][channels].
struct Images {
  long count, height, width;
  long pixels() const { return height * width; }
};

/// Called with `pixels` neighbours in a row of an output image, starting at (y, x), as soon as they are computed.
using Done = std::function<void(long image, long y, long x, long pixels, float* values)>;

/// The convolutions for a given number of input and output channels, in rows of `stride` numbers.
class Winograd {
 public:
  Winograd(const ConvKernels& kernels, int channels, int stride)
      : kernels_(kernels), channels_(channels), stride_(stride) {}

  /// Weights [channels][channels][3][3], transformed and packed: for convolve() to convolve, or to pull cotangents back.
  const float* pack(const float* weight, bool backward, Arena&) const;

  /// out = the convolution of x with packed weights. What rows have beyond their channels becomes zero.
  void convolve(const float* x, const Images&, const float* packed, float* out, Arena&, const Done&) const;

  /// Adds to the sums that gradient() turns into a gradient, from an input and the cotangent of its output.
  void add(const float* x, const float* cotangent, const Images&, float* sums, Arena&) const;
  long sums() const { return long(kPoints) * channels_ * stride_; }

  /// The gradient of the weights, [channels][channels][3][3], from sums.
  void gradient(const float* sums, float* out) const;

 private:
  const ConvKernels& kernels_;
  const int channels_, stride_;
};

}  // namespace anode
