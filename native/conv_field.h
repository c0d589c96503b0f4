// The field of convolutions 1x1, 3x3 and 1x1 on images whose channels lie last, and its derivative.
//
// Images are worked off a few at a time, from the first convolution to the last, so that what is between them stays in
// the cache. Of an evaluation only the second activation is kept for the backward pass: the first is a product with few
// channels, made again in less time than it would take to read it from memory.

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
  /// parameters: weights [filters][channels], [filters][filters][3][3], [channels][filters]; their biases; and, if f
  /// depends on time, its weights [filters], [filters][3][3], [channels]. They are copied.
  ConvField(int channels, int filters, Activation, bool time, const std::vector<const float*>& parameters,
            const char* instructions);

  /// How many numbers a pixel of what evaluate() keeps has.
  int stride() const { return stride_; }

  /// slope = f; `kept` [images][pixels][stride] may be null.
  void evaluate(const Times&, const float* x, const Images&, float* slope, float* kept, int threads) const;

  /// pulled = the cotangent of x, from that of the slope; those of the parameters are added up.
  void pull(const Times&, const float* x, const float* kept, const float* cotangent, const Images&, float* pulled,
            int threads);

  /// What was added up, in the order of the parameters; the sums begin anew.
  void take(const std::vector<float*>& gradients);

 private:
  struct Biases;
  struct Sums;

  /// A matrix [outputs][inputs], or its transposed, as the kernels want it.
  const float* pack(const float* weight, int outputs, int inputs, bool transposed);

  /// Everything that is added to the outputs of the layers at some time.
  Biases biases(float t, Arena&) const;
  long images_at_once(const Images&) const;
  void evaluate_some(const Times&, const float* x, const Images&, float* slope, float* second, Arena&) const;
  void pull_some(const Times&, const float* x, const float* second, const float* cotangent, const Images&,
                 float* pulled, const Sums&, Arena&) const;

  /// The first convolution and activation of some images; returns the biases of each.
  std::vector<Biases> first_layer(const Times&, const float* x, const Images&, float* hidden, Arena&) const;

  /// Rows of whole vectors to rows of channels.
  void narrow(const float* wide, long rows, float* to) const;

  /// sums [channels][stride] += transposed few [rows][channels] times many [rows][stride]. What is added is summed up by
  /// itself first: added to large sums one by one, as many small numbers would lose their last digits.
  void accumulate(const float* few, const float* many, long rows, float* sums, Arena&) const;

  /// Adds what concerns biases and time, of one image.
  void add_up(float t, const Images& image, const float* g, const float* at_second, const float* at_hidden,
              const Sums&, Arena&) const;
  Sums sums(int strand);

  const ConvKernels& kernels_;
  const int channels_, filters_, wide_channels_, stride_;  // the latter two in whole vectors
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
