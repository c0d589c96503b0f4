// 3x3 convolutions of images whose channels lie last, with a border of zeros, and their gradients.

#pragma once

#include "memory.h"

namespace anode {

/// Some images [count][height][width][channels].
struct Images {
  long count, height, width;
};

class Winograd {
 public:
  /// weight: [outputs][inputs][3][3], numbers of channels that lanes() divides.
  Winograd(const float* weight, int outputs, int inputs);

  /// out = the convolution of x.
  void forward(const float* x, const Images&, float* out, int threads) const;

  /// out = the cotangent of x, from that of the output.
  void backward(const float* cotangent, const Images&, float* out, int threads) const;

  /// Adds up the gradient of the weights, of an input and the cotangent of its output.
  void add(const float* x, const float* cotangent, const Images&, int threads);

  /// That gradient, [outputs][inputs][3][3]; the sums begin anew.
  void take(float* gradient);

  /// Channels have to be a multiple of this.
  static int lanes();

 private:
  void convolve(const float* x, const Images&, const float* packed, int inputs, int outputs, float* out,
                int threads) const;

  int outputs_, inputs_;
  Loan arena_;
  float *forward_, *backward_;  // weights, transformed and packed, of each point
  float* sums_ = nullptr;       // of each strand and point, [outputs][inputs]
};

}  // namespace anode
