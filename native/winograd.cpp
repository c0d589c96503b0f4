#include "winograd.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace anode {
namespace {

constexpr long kTiles = 25;  // at once: few enough for what they are transformed to to stay in the cache

long tiles_along(long size) { return (size + kOut - 1) / kOut; }

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
  float* some = arena.take<float>(9 * lanes);
  std::memset(some, 0, 9 * lanes * sizeof(float));
  for (long panel = 0; panel < stride_ / lanes; ++panel)
    for (long c = 0; c < channels_; ++c) {
      for (long lane = 0; lane < lanes; ++lane) {
        const long o = panel * lanes + lane;
        for (int i = 0; i < 9; ++i)  // going back, channels exchange their roles and all is seen from the other side
          some[i * lanes + lane] = o >= channels_ ? 0.0f
                                   : backward     ? weight[(c * channels_ + o) * 9 + 8 - i]
                                                  : weight[(o * channels_ + c) * 9 + i];
      }
      kernels_.transform_weight(some, packed + (panel * channels_ + c) * lanes, size);
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

void Winograd::gradient(const float* sums, float* out) const {
  const long lanes = kernels_.lanes;
  std::vector<float> some(9 * lanes);
  for (long o = 0; o < channels_; ++o)
    for (long first = 0; first < channels_; first += lanes) {
      kernels_.transform_gradient(sums + o * stride_ + first, long(channels_) * stride_, some.data());
      for (long c = first; c < std::min<long>(first + lanes, channels_); ++c)
        for (int i = 0; i < 9; ++i) out[(o * channels_ + c) * 9 + i] = some[i * lanes + c - first];
    }
}

}  // namespace anode
