#include "winograd.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "team.h"
#include "winograd_kernels.h"

namespace anode {
namespace {

constexpr long kTiles = 24;   // at once: few enough for what they are transformed to to stay in the cache
constexpr int kStrands = 8;   // of sums, which so do not depend on the number of threads

long tiles_along(long size) { return (size + kOut - 1) / kOut; }

/// The three numbers that a line of weights is at each point.
const double kWeightLine[kIn][3] = {{1.0 / 4, 0, 0},
                                    {-1.0 / 6, -1.0 / 6, -1.0 / 6},
                                    {-1.0 / 6, 1.0 / 6, -1.0 / 6},
                                    {1.0 / 24, 1.0 / 12, 1.0 / 6},
                                    {1.0 / 24, -1.0 / 12, 1.0 / 6},
                                    {0, 0, 1}};
/// From the points back to the three weights, for gradients.
const double kGradientLine[3][kIn] = {{1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 1}};

/// Where a tile lies: which image, and its first pixel.
struct Tile {
  long image, y, x;
  Tile(long index, const Images& images) {
    const long across = tiles_along(images.width), down = tiles_along(images.height);
    image = index / (across * down);
    y = index / across % down * kOut;
    x = index % across * kOut;
  }
};

/// N x N pixels from (y, x): where they are, or, if some are outside of the image, a copy with zeros there.
template <int N>
const float* pixels(const float* from, const Images& images, long image, long y, long x, long channels, float* copy,
                    long& row) {
  const float* base = from + image * images.height * images.width * channels;
  if (y >= 0 && x >= 0 && y + N <= images.height && x + N <= images.width) {
    row = images.width * channels;
    return base + (y * images.width + x) * channels;
  }
  row = N * channels;
  for (long i = 0; i < N; ++i)
    for (long j = 0; j < N; ++j) {
      float* to = copy + (i * N + j) * channels;
      const bool inside = y + i >= 0 && x + j >= 0 && y + i < images.height && x + j < images.width;
      if (inside)
        std::memcpy(to, base + ((y + i) * images.width + x + j) * channels, channels * sizeof(float));
      else
        std::memset(to, 0, channels * sizeof(float));
    }
  return copy;
}

/// The transformed weights of each point, packed: weight(o, c, i, j).
template <class Weight>
float* transformed(int outputs, int inputs, Weight weight, Arena& arena) {
  const int lanes = winograd_kernels().lanes;
  float* packed = arena.take<float>(std::size_t(kPoints) * outputs * inputs);
  for (int o = 0; o < outputs; ++o)
    for (int c = 0; c < inputs; ++c)
      for (int p = 0; p < kIn; ++p)
        for (int q = 0; q < kIn; ++q) {
          double sum = 0;
          for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 3; ++j) sum += kWeightLine[p][i] * kWeightLine[q][j] * double(weight(o, c, i, j));
          const long at = (long(o / lanes) * inputs + c) * lanes + o % lanes;
          packed[long(p * kIn + q) * outputs * inputs + at] = float(sum);
        }
  return packed;
}

}  // namespace

int Winograd::lanes() { return winograd_kernels().lanes; }

Winograd::Winograd(const float* weight, int outputs, int inputs) : outputs_(outputs), inputs_(inputs) {
  if (outputs % lanes() || inputs % lanes()) throw std::invalid_argument("channels have to be a multiple of lanes()");
  forward_ = transformed(outputs, inputs,
                         [&](int o, int c, int i, int j) { return weight[((long(o) * inputs + c) * 3 + i) * 3 + j]; },
                         *arena_);
  backward_ = transformed(inputs, outputs,
                          [&](int c, int o, int i, int j) {
                            return weight[((long(o) * inputs + c) * 3 + 2 - i) * 3 + 2 - j];
                          },
                          *arena_);
}

void Winograd::forward(const float* x, const Images& images, float* out, int threads) const {
  convolve(x, images, forward_, inputs_, outputs_, out, threads);
}

void Winograd::backward(const float* cotangent, const Images& images, float* out, int threads) const {
  convolve(cotangent, images, backward_, outputs_, inputs_, out, threads);
}

void Winograd::convolve(const float* x, const Images& images, const float* packed, int inputs, int outputs, float* out,
                        int threads) const {
  const WinogradKernels& kernels = winograd_kernels();
  const long tiles = images.count * tiles_along(images.height) * tiles_along(images.width);
  share_borrowed(int((tiles + kTiles - 1) / kTiles), threads, [&](int block) {
    Loan arena;
    const long first = block * kTiles, count = std::min(kTiles, tiles - first);
    float* in = arena->take<float>(kPoints * kTiles * inputs);
    float* product = arena->take<float>(kPoints * kTiles * outputs);
    float* copy = arena->take<float>(kPoints * std::max(inputs, outputs));
    for (long t = 0; t < count; ++t) {
      const Tile tile(first + t, images);
      long row;
      const float* from = pixels<kIn>(x, images, tile.image, tile.y - 1, tile.x - 1, inputs, copy, row);
      kernels.transform_input(from, row, inputs, inputs, in + t * inputs, kTiles * inputs);
    }
    for (long point = 0; point < kPoints; ++point)
      kernels.multiply(in + point * kTiles * inputs, count, inputs, packed + point * outputs * inputs, outputs,
                       product + point * kTiles * outputs);
    for (long t = 0; t < count; ++t) {
      const Tile tile(first + t, images);
      float* image = out + tile.image * images.height * images.width * outputs;
      const bool whole = tile.y + kOut <= images.height && tile.x + kOut <= images.width;
      float* to = whole ? image + (tile.y * images.width + tile.x) * outputs : copy;
      kernels.transform_output(product + t * outputs, kTiles * outputs, outputs, to,
                               (whole ? images.width : kOut) * outputs, outputs);
      for (long i = 0; !whole && i < std::min<long>(kOut, images.height - tile.y); ++i)
        std::memcpy(image + ((tile.y + i) * images.width + tile.x) * outputs, copy + i * kOut * outputs,
                    std::min<long>(kOut, images.width - tile.x) * outputs * sizeof(float));
    }
  });
}

void Winograd::add(const float* x, const float* cotangent, const Images& images, int threads) {
  const WinogradKernels& kernels = winograd_kernels();
  const long tiles = images.count * tiles_along(images.height) * tiles_along(images.width);
  const long blocks = (tiles + kTiles - 1) / kTiles, size = long(outputs_) * inputs_;
  if (!sums_) {
    sums_ = arena_->take<float>(kStrands * kPoints * size);
    std::memset(sums_, 0, kStrands * kPoints * size * sizeof(float));
  }
  share_borrowed(kStrands, threads, [&](int strand) {
    Loan arena;
    float* in = arena->take<float>(kPoints * kTiles * inputs_);
    float* at = arena->take<float>(kPoints * kTiles * outputs_);
    float* copy = arena->take<float>(kPoints * std::max(inputs_, outputs_));
    float* sums = sums_ + strand * kPoints * size;
    for (long block = strand * blocks / kStrands; block < (strand + 1) * blocks / kStrands; ++block) {
      const long first = block * kTiles, count = std::min(kTiles, tiles - first);
      for (long t = 0; t < count; ++t) {
        const Tile tile(first + t, images);
        long row;
        const float* from = pixels<kIn>(x, images, tile.image, tile.y - 1, tile.x - 1, inputs_, copy, row);
        kernels.transform_input(from, row, inputs_, inputs_, in + t * inputs_, kTiles * inputs_);
        from = pixels<kOut>(cotangent, images, tile.image, tile.y, tile.x, outputs_, copy, row);
        kernels.transform_cotangent(from, row, outputs_, outputs_, at + t * outputs_, kTiles * outputs_);
      }
      for (long point = 0; point < kPoints; ++point)
        kernels.accumulate(at + point * kTiles * outputs_, in + point * kTiles * inputs_, count, outputs_, inputs_,
                           sums + point * size);
    }
  });
}

void Winograd::take(float* gradient) {
  const long size = long(outputs_) * inputs_;
  std::memset(gradient, 0, size * 9 * sizeof(float));
  if (!sums_) return;
  for (long at = 0; at < size; ++at)
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) {
        double sum = 0;
        for (int p = 0; p < kIn; ++p)
          for (int q = 0; q < kIn; ++q) {
            const double weight = kGradientLine[i][p] * kGradientLine[j][q];
            if (weight == 0) continue;
            for (int strand = 0; strand < kStrands; ++strand)
              sum += weight * double(sums_[(strand * kPoints + p * kIn + q) * size + at]);
          }
        gradient[at * 9 + i * 3 + j] = float(sum);
      }
  std::memset(sums_, 0, kStrands * kPoints * size * sizeof(float));
}

}  // namespace anode
