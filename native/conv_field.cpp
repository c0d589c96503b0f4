#include "conv_field.h"

#include <algorithm>
#include <cstring>

#include "team.h"

namespace anode {
namespace {

constexpr long kStrands = 16;             // of sums, which so do not depend on the number of threads
constexpr int kKinds = 16;                // of pixels: whether they are in the first or last line and column
constexpr long kRowsAtOnce = 48;          // of a product whose result is then worked on in the nearest cache
constexpr long kBytesAtOnce = 256 << 10;  // of an activation: it, its cotangent and the weights stay in the second one

int in_vectors(int size, int lanes) { return (size + lanes - 1) / lanes * lanes; }

/// Which of the three lines of a kernel see more than the border, from a place along a side: 1 and 2 are added if it is
/// the first and the last.
int kind_along(long place, long size) { return (place == 0 ? 1 : 0) + (place == size - 1 ? 2 : 0); }
bool sees(int kind, int line) { return !(line == 0 && (kind & 1)) && !(line == 2 && (kind & 2)); }
int kind_of(long y, long x, const Images& images) {
  return 4 * kind_along(y, images.height) + kind_along(x, images.width);
}

/// Calls piece(first, count) for some rows at a time.
template <class Piece>
void in_pieces(long rows, Piece piece) {
  for (long row = 0; row < rows; row += kRowsAtOnce) piece(row, std::min(kRowsAtOnce, rows - row));
}

/// Calls piece(kind, first, count) for stretches of a line of pixels, from x on, that are of the same kind.
template <class Piece>
void by_kind(long y, long x, long pixels, const Images& images, Piece piece) {
  for (long i = 0; i < pixels;) {
    const int kind = kind_of(y, x + i, images);
    long end = i + 1;
    while (end < pixels && kind_of(y, x + end, images) == kind) ++end;
    piece(kind, i, end - i);
    i = end;
  }
}

}  // namespace

struct ConvField::Biases {
  float *first, *middle, *last;  // [stride], [kinds][stride], [wide_outputs]
};

/// Where the gradients of everything but time, and of time, are added up.
struct ConvField::Sums {
  float *winograd, *first, *last;  // of the weights: transformed, [inputs][stride], [outputs][stride]
  float *outputs[3], *timed[3];    // of the outputs of the layers, shaped as biases; and times t
  static long size(const ConvField& f) {
    const long weights = long(f.inputs_ + f.outputs_) * f.stride_;
    return f.winograd_.sums() + weights + 2 * ((1L + kKinds) * f.stride_ + f.wide_outputs_);
  }
};

ConvField::ConvField(int inputs, int outputs, int filters, Activation act, bool time,
                     const std::vector<const float*>& parameters, const char* instructions)
    : kernels_(conv_kernels(instructions)),
      inputs_(inputs),
      outputs_(outputs),
      filters_(filters),
      wide_inputs_(in_vectors(inputs, kernels_.lanes)),
      wide_outputs_(in_vectors(outputs, kernels_.lanes)),
      stride_(in_vectors(filters, kernels_.lanes)),
      act_(act),
      time_(time),
      winograd_(kernels_, filters, stride_) {
  first_ = pack(parameters.at(0), filters, inputs, false);
  first_back_ = pack(parameters.at(0), inputs, filters, true);
  last_ = pack(parameters.at(2), outputs, filters, false);
  last_back_ = pack(parameters.at(2), filters, outputs, true);
  middle_ = winograd_.pack(parameters.at(1), false, *arena_);
  middle_weight_.assign(parameters.at(1), parameters.at(1) + 9L * filters * filters);
  const int sizes[] = {filters, filters, outputs}, wide[] = {stride_, stride_, wide_outputs_};
  for (int layer = 0; layer < 3; ++layer) {
    bias_[layer].assign(wide[layer], 0.0f);
    std::copy_n(parameters.at(3 + layer), sizes[layer], bias_[layer].begin());
    timed_[layer].assign(wide[layer] * (layer == 1 ? kKinds : 1), 0.0f);
    if (time && layer != 1) std::copy_n(parameters.at(6 + layer), sizes[layer], timed_[layer].begin());
  }
  if (!time) return;
  for (int kind = 0; kind < kKinds; ++kind)  // what a channel of ones adds there
    for (int f = 0; f < filters; ++f)
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j)
          if (sees(kind / 4, i) && sees(kind % 4, j))
            timed_[1][kind * stride_ + f] += parameters.at(7)[f * 9 + i * 3 + j];
}

const float* ConvField::pack(const float* weight, int outputs, int inputs, bool transposed) {
  const long lanes = kernels_.lanes, size = long(in_vectors(outputs, lanes)) * inputs;
  float* packed = arena_->take<float>(size);
  std::memset(packed, 0, size * sizeof(float));
  for (long o = 0; o < outputs; ++o)
    for (long c = 0; c < inputs; ++c)
      packed[(o / lanes * inputs + c) * lanes + o % lanes] = weight[transposed ? c * outputs + o : o * inputs + c];
  return packed;
}

ConvField::Biases ConvField::biases(float t, Arena& arena) const {
  const auto at = [&](int layer, long kinds) {
    const long size = bias_[layer].size();
    float* to = arena.take<float>(kinds * size);
    for (long i = 0; i < kinds * size; ++i) to[i] = bias_[layer][i % size] + t * timed_[layer][i];
    return to;
  };
  return {at(0, 1), at(1, kKinds), at(2, 1)};
}

long ConvField::images_at_once(const Images& images) const {
  return std::max<long>(1, kBytesAtOnce / (images.pixels() * stride_ * long(sizeof(float))));
}

std::vector<ConvField::Biases> ConvField::first_layer(const Times& times, const float* x, const Images& images,
                                                      float* hidden, Arena& arena) const {
  std::vector<Biases> of_image;
  for (long i = 0; i < images.count; ++i) {
    of_image.push_back(i && !times.each ? of_image[0] : biases(times.of(i), arena));
    in_pieces(images.pixels(), [&](long row, long rows) {
      row += i * images.pixels();
      kernels_.multiply(x + row * inputs_, inputs_, rows, inputs_, first_, stride_, hidden + row * stride_);
      kernels_.activate(act_, of_image[i].first, rows, stride_, hidden + row * stride_);
    });
  }
  return of_image;
}

void ConvField::narrow(const float* wide, long rows, long channels, float* to) const {
  const long distance = in_vectors(channels, kernels_.lanes);
  for (long row = 0; row < rows; ++row)
    for (long c = 0; c < channels; ++c) to[row * channels + c] = wide[row * distance + c];
}

void ConvField::evaluate(const Times& times, const float* x, const Images& images, float* slope, float* kept,
                         int threads) const {
  const long some = images_at_once(images), pixels = images.pixels();
  share_borrowed(int((images.count + some - 1) / some), threads, [&](int group) {
    Loan arena;
    const long from = group * some;
    const Images these{std::min(some, images.count - from), images.height, images.width};
    float* second = kept ? kept + from * pixels * stride_ : arena->take<float>(these.count * pixels * stride_);
    evaluate_some(times.from(from), x + from * pixels * inputs_, these, slope + from * pixels * outputs_, second, *arena);
  });
}

void ConvField::evaluate_some(const Times& times, const float* x, const Images& images, float* slope, float* second,
                              Arena& arena) const {
  const long pixels = images.pixels();
  float* hidden = arena.take<float>(images.count * pixels * stride_);
  const std::vector<Biases> of_image = first_layer(times, x, images, hidden, arena);
  winograd_.convolve(hidden, images, middle_, second, arena, [&](long i, long y, long left, long count, float* line) {
    by_kind(y, left, count, images, [&](int kind, long first, long length) {
      kernels_.activate(act_, of_image[i].middle + kind * stride_, length, stride_, line + first * stride_);
    });
  });
  float* wide = arena.take<float>(kRowsAtOnce * wide_outputs_);
  for (long i = 0; i < images.count; ++i)
    in_pieces(pixels, [&](long row, long rows) {
      row += i * pixels;
      kernels_.multiply(second + row * stride_, stride_, rows, filters_, last_, wide_outputs_, wide);
      kernels_.activate(Activation::none, of_image[i].last, rows, wide_outputs_, wide);
      narrow(wide, rows, outputs_, slope + row * outputs_);
    });
}

void ConvField::pull(const Times& times, const float* x, const float* kept, const float* cotangent,
                     const Images& images, float* pulled, int threads) {
  if (!middle_back_) middle_back_ = winograd_.pack(middle_weight_.data(), true, *arena_);
  const long some = images_at_once(images), pixels = images.pixels(), groups = (images.count + some - 1) / some;
  const long strands = std::min(kStrands, groups);
  if (long(sums_.size()) < strands * Sums::size(*this)) sums_.resize(strands * Sums::size(*this), 0.0f);
  share_borrowed(int(strands), threads, [&](int strand) {
    Loan arena;
    for (long group = strand * groups / strands; group < (strand + 1) * groups / strands; ++group) {
      const Arena::Mark mark = arena->mark();
      const long from = group * some, pixel = from * pixels;
      const Images these{std::min(some, images.count - from), images.height, images.width};
      pull_some(times.from(from), x + pixel * inputs_, kept + pixel * stride_, cotangent + pixel * outputs_, these,
                pulled + pixel * inputs_, sums(strand), *arena);
      arena->rewind(mark);
    }
  });
}

void ConvField::pull_some(const Times& times, const float* x, const float* second, const float* cotangent,
                          const Images& images, float* pulled, const Sums& sums, Arena& arena) const {
  const long all = images.count * images.pixels();
  float* hidden = arena.take<float>(all * stride_);
  float* at_second = arena.take<float>(all * stride_);
  float* at_hidden = arena.take<float>(all * stride_);
  first_layer(times, x, images, hidden, arena);
  in_pieces(all, [&](long row, long rows) {
    float* to = at_second + row * stride_;
    kernels_.multiply(cotangent + row * outputs_, outputs_, rows, outputs_, last_back_, stride_, to);
    kernels_.pull(act_, second + row * stride_, rows * stride_, to);
  });
  winograd_.convolve(at_second, images, middle_back_, at_hidden, arena, [&](long, long, long, long count, float* line) {
    kernels_.pull(act_, hidden + (line - at_hidden), count * stride_, line);
  });
  float* wide = arena.take<float>(kRowsAtOnce * wide_inputs_);
  in_pieces(all, [&](long row, long rows) {
    kernels_.multiply(at_hidden + row * stride_, stride_, rows, filters_, first_back_, wide_inputs_, wide);
    narrow(wide, rows, inputs_, pulled + row * inputs_);
  });
  winograd_.add(hidden, at_second, images, sums.winograd, arena);
  accumulate(x, inputs_, at_hidden, all, sums.first, arena);
  accumulate(cotangent, outputs_, second, all, sums.last, arena);
  for (long i = 0; i < images.count; ++i) {
    const long from = i * images.pixels();
    add_up(times.of(i), {1, images.height, images.width}, cotangent + from * outputs_, at_second + from * stride_,
           at_hidden + from * stride_, sums, arena);
  }
}

void ConvField::accumulate(const float* few, int channels, const float* many, long rows, float* sums,
                           Arena& arena) const {
  const Arena::Mark mark = arena.mark();
  const long size = long(channels) * stride_;
  float* some = arena.take<float>(size);
  std::memset(some, 0, size * sizeof(float));
  kernels_.accumulate(few, channels, many, rows, channels, stride_, some);
  kernels_.sum(some, size, 1, size, sums);
  arena.rewind(mark);
}

void ConvField::add_up(float t, const Images& image, const float* g, const float* at_second, const float* at_hidden,
                       const Sums& sums, Arena& arena) const {
  const Arena::Mark mark = arena.mark();
  const long sizes[] = {stride_, long(kKinds) * stride_, wide_outputs_}, pixels = image.pixels();
  float* of[3];
  for (int layer = 0; layer < 3; ++layer) {
    of[layer] = arena.take<float>(sizes[layer]);
    std::memset(of[layer], 0, sizes[layer] * sizeof(float));
  }
  kernels_.sum(at_hidden, stride_, pixels, stride_, of[0]);
  for (long y = 0; y < image.height; ++y)
    by_kind(y, 0, image.width, image, [&](int kind, long first, long count) {
      kernels_.sum(at_second + (y * image.width + first) * stride_, stride_, count, stride_, of[1] + kind * stride_);
    });
  for (long row = 0; row < pixels; ++row)
    for (long c = 0; c < outputs_; ++c) of[2][c] += g[row * outputs_ + c];
  for (int layer = 0; layer < 3; ++layer)
    for (long i = 0; i < sizes[layer]; ++i) {
      sums.outputs[layer][i] += of[layer][i];
      if (time_) sums.timed[layer][i] += t * of[layer][i];
    }
  arena.rewind(mark);
}

ConvField::Sums ConvField::sums(int strand) {
  float* next = sums_.data() + strand * Sums::size(*this);
  const auto take = [&](long size) {
    float* place = next;
    next += size;
    return place;
  };
  Sums found;
  found.winograd = take(winograd_.sums());
  found.first = take(long(inputs_) * stride_);
  found.last = take(long(outputs_) * stride_);
  for (auto* of : {found.outputs, found.timed}) {
    of[0] = take(stride_);
    of[1] = take(long(kKinds) * stride_);
    of[2] = take(wide_outputs_);
  }
  return found;
}

void ConvField::take(const std::vector<float*>& gradients) {
  const long size = Sums::size(*this);
  if (sums_.empty()) sums_.resize(size, 0.0f);
  for (long from = size; from < long(sums_.size()); from += size)
    for (long i = 0; i < size; ++i) sums_[i] += sums_[from + i];
  const Sums total = sums(0);
  winograd_.gradient(total.winograd, gradients.at(1));
  for (long f = 0; f < filters_; ++f) {
    for (long c = 0; c < inputs_; ++c) gradients.at(0)[f * inputs_ + c] = total.first[c * stride_ + f];
    for (long c = 0; c < outputs_; ++c) gradients.at(2)[c * filters_ + f] = total.last[c * stride_ + f];
  }
  std::copy_n(total.outputs[0], filters_, gradients.at(3));
  std::copy_n(total.outputs[2], outputs_, gradients.at(5));
  for (long f = 0; f < filters_; ++f) {
    gradients.at(4)[f] = 0;
    for (int kind = 0; kind < kKinds; ++kind) gradients.at(4)[f] += total.outputs[1][kind * stride_ + f];
  }
  if (time_) {
    std::copy_n(total.timed[0], filters_, gradients.at(6));
    std::copy_n(total.timed[2], outputs_, gradients.at(8));
    for (long f = 0; f < filters_; ++f)
      for (int place = 0; place < 9; ++place) {
        float sum = 0;
        for (int kind = 0; kind < kKinds; ++kind)
          if (sees(kind / 4, place / 3) && sees(kind % 4, place % 3)) sum += total.timed[1][kind * stride_ + f];
        gradients.at(7)[f * 9 + place] = sum;
      }
  }
  sums_.clear();
}

}  // namespace anode
