#include "winograd.h"

#include <algorithm>
#include <cstring>

namespace anode {
namespace {

constexpr long kTiles = 25;  // at once: few enough for what they are transformed to to stay in the cache

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

/// Calls piece(first, count) for all tiles, some of them at a time and about as many each time.
template <class Piece>
void in_blocks(const Images& images, Piece piece) {
  const long tiles = images.count * tiles_along(images.height) * tiles_along(images.width);
  const long blocks = (tiles + kTiles - 1) / kTiles;
  for (long block = 0; block < blocks; ++block) {
    const long first = block * tiles / blocks;
    piece(first, (block + 1) * tiles / blocks - first);
  }
}

/// N x N pixels from (y, x): where they are, or, if some are outside of the image, a copy with zeros there.
template <int N>
const float* pixels(const float* from, const Images& images, long image, long y, long x, long stride, float* copy,
                    long& row) {
  const float* base = from + image * images.pixels() * stride;
  if (y >= 0 && x >= 0 && y + N <= images.height && x + N <= images.width) {
    row = images.width * stride;
    return base + (y * images.width + x) * stride;
  }
  row = N * stride;
  std::memset(copy, 0, N * N * stride * sizeof(float));
  const long left = std::max(0L, -x), right = std::min<long>(N, images.width - x);
  for (long i = std::max(0L, -y); i < std::min<long>(N, images.height - y); ++i)
    std::memcpy(copy + (i * N + left) * stride, base + ((y + i) * images.width + x + left) * stride,
                (right - left) * stride * sizeof(float));
  return copy;
}

}  // namespace

const float* Winograd::pack(const float* weight, bool backward, Arena& arena) const {
  const long lanes = kernels_.lanes, size = long(channels_) * stride_;
  float* packed = arena.take<float>(kPoints * size);
  std::memset(packed, 0, kPoints * size * sizeof(float));
  for (long o = 0; o < channels_; ++o)
    for (long c = 0; c < channels_; ++c) {
      // Going back, the roles of the channels are exchanged and everything is seen from the other side.
      const float* w = weight + (backward ? c * channels_ + o : o * channels_ + c) * 9;
      for (int p = 0; p < kIn; ++p)
        for (int q = 0; q < kIn; ++q) {
          double sum = 0;
          for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 3; ++j)
              sum += kWeightLine[p][i] * kWeightLine[q][j] * double(w[backward ? 8 - 3 * i - j : 3 * i + j]);
          packed[(p * kIn + q) * size + (o / lanes * channels_ + c) * lanes + o % lanes] = float(sum);
        }
    }
  return packed;
}

void Winograd::convolve(const float* x, const Images& images, const float* packed, float* out, Arena& arena,
                        const Done& done) const {
  const Arena::Mark mark = arena.mark();
  float* in = arena.take<float>(kPoints * kTiles * stride_);
  float* product = arena.take<float>(kPoints * kTiles * stride_);
  float* copy = arena.take<float>(kPoints * stride_);
  in_blocks(images, [&](long first, long count) {
    for (long t = 0; t < count; ++t) {
      const Tile tile(first + t, images);
      long row;
      const float* from = pixels<kIn>(x, images, tile.image, tile.y - 1, tile.x - 1, stride_, copy, row);
      kernels_.transform_input(from, row, stride_, in + t * stride_, kTiles * stride_);
    }
    for (long point = 0; point < kPoints; ++point)
      kernels_.multiply(in + point * kTiles * stride_, stride_, count, channels_, packed + point * channels_ * stride_,
                        stride_, product + point * kTiles * stride_);
    for (long t = 0; t < count; ++t) {
      const Tile tile(first + t, images);
      const long down = std::min<long>(kOut, images.height - tile.y), across = std::min<long>(kOut, images.width - tile.x);
      const bool whole = down == kOut && across == kOut;
      float* to = out + ((tile.image * images.height + tile.y) * images.width + tile.x) * stride_;
      const long row = images.width * stride_;
      kernels_.transform_output(product + t * stride_, kTiles * stride_, stride_, whole ? to : copy,
                                whole ? row : kOut * stride_);
      for (long i = 0; i < down; ++i) {
        if (!whole) std::memcpy(to + i * row, copy + i * kOut * stride_, across * stride_ * sizeof(float));
        done(tile.image, tile.y + i, tile.x, across, to + i * row);
      }
    }
  });
  arena.rewind(mark);
}

void Winograd::add(const float* x, const float* cotangent, const Images& images, float* sums, Arena& arena) const {
  const Arena::Mark mark = arena.mark();
  float* in = arena.take<float>(kPoints * kTiles * stride_);
  float* at = arena.take<float>(kPoints * kTiles * stride_);
  float* copy = arena.take<float>(kPoints * stride_);
  in_blocks(images, [&](long first, long count) {
    for (long t = 0; t < count; ++t) {
      const Tile tile(first + t, images);
      long row;
      const float* from = pixels<kIn>(x, images, tile.image, tile.y - 1, tile.x - 1, stride_, copy, row);
      kernels_.transform_input(from, row, stride_, in + t * stride_, kTiles * stride_);
      from = pixels<kOut>(cotangent, images, tile.image, tile.y, tile.x, stride_, copy, row);
      kernels_.transform_cotangent(from, row, stride_, at + t * stride_, kTiles * stride_);
    }
    for (long point = 0; point < kPoints; ++point)
      kernels_.accumulate(at + point * kTiles * stride_, stride_, in + point * kTiles * stride_, count, channels_,
                          stride_, sums + point * channels_ * stride_);
  });
  arena.rewind(mark);
}

void Winograd::gradient(const float* sums, int count, long apart, float* out) const {
  for (long o = 0; o < channels_; ++o)
    for (long c = 0; c < channels_; ++c) {
      double points[kPoints];
      for (int point = 0; point < kPoints; ++point) {
        points[point] = 0;
        for (int k = 0; k < count; ++k)
          points[point] += sums[k * apart + (point * channels_ + o) * long(stride_) + c];
      }
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) {
          double sum = 0;
          for (int p = 0; p < kIn; ++p)
            for (int q = 0; q < kIn; ++q) sum += kGradientLine[i][p] * kGradientLine[j][q] * points[p * kIn + q];
          out[((o * channels_ + c) * 3 + i) * 3 + j] = float(sum);
        }
    }
}

}  // namespace anode
