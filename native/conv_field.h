// The field of 1x1, 3x3 and 1x1 convolutions on images in channels-last layout, and its derivative.
//
// A few images at a time go through all convolutions, so that intermediate results stay in the cache. Only the second
// activation is kept for the backward pass. The first is a product with few channels: computing it again takes less
// time than reading it from memory.

#pragma once

#include <vector>

#include "winograd.h"

namespace anode {

/// The time, or the times of all images.
struct Times {
  const float* t;
  bool each;
  float of(long image) const { return t[each ? image : 0]; }
  Times from(long image) const { return {t + (each ? image : 0), each}; }
};

class ConvField {
 public:
  /// inputs, outputs: channels of the images and of their slopes. parameters: weights [filters][inputs],
  /// [filters][filters][3][3], [outputs][filters]; their biases; and, if f depends on time, its weights [filters],
  /// [filters][3][3], [outputs]. They are copied.
  ConvField(int inputs, int outputs, int filters, Activation, bool time, const std::vector<const float*>& parameters,
            const char* instructions);

  /// The number of values per pixel that evaluate() keeps.
  int stride() const { return stride_; }

  /// slope = f; `kept` [images][pixels][stride] may be null.
  void evaluate(const Times&, const float* x, const Images&, float* slope, float* kept, int threads) const;

  /// pulled = the cotangent of x, from that of the slope. The gradients of the parameters accumulate.
  void pull(const Times&, const float* x, const float* kept, const float* cotangent, const Images&, float* pulled,
            int threads);

  /// Returns the accumulated gradients, in the order of the parameters, and resets them.
  void take(const std::vector<float*>& gradients);

 private:
  struct Biases;
  struct Sums;

  /// Packs a matrix [outputs][inputs], or its transpose, for the kernels.
  const float* pack(const float* weight, int outputs, int inputs, bool transposed);

  /// The biases of the layers at a given time.
  Biases biases(float t, Arena&) const;
  long images_at_once(const Images&) const;
  void evaluate_some(const Times&, const float* x, const Images&, float* slope, float* second, Arena&) const;
  void pull_some(const Times&, const float* x, const float* second, const float* cotangent, const Images&,
                 float* pulled, const Sums&, Arena&) const;

  /// The first convolution and activation of some images; returns the biases of each.
  std::vector<Biases> first_layer(const Times&, const float* x, const Images&, float* hidden, Arena&) const;

  /// Rows of whole vectors to rows of channels.
  void narrow(const float* wide, long rows, long channels, float* to) const;

  /// sums [channels][stride] += transposed few [rows][channels] times many [rows][stride]. The product is summed
  /// separately first: adding many small numbers to large sums one by one would lose their last digits.
  void accumulate(const float* few, int channels, const float* many, long rows, float* sums, Arena&) const;

  /// Adds one image's gradients of biases and time weights.
  void add_up(float t, const Images& image, const float* g, const float* at_second, const float* at_hidden,
              const Sums&, Arena&) const;
  Sums sums(int strand);

  const ConvKernels& kernels_;
  const int inputs_, outputs_, filters_, wide_inputs_, wide_outputs_, stride_;  // the last three in whole vectors
  const Activation act_;
  const bool time_;
  const Winograd winograd_;
  Loan arena_;
  const float *first_, *first_back_, *last_, *last_back_, *middle_;  // packed
  const float* middle_back_ = nullptr;                               // packed when it is first needed
  std::vector<float> middle_weight_;
  std::vector<float> bias_[3], timed_[3];  // timed_[1] for every kind of pixel
  std::vector<float> sums_;                // of every strand
};

}  // namespace anode
