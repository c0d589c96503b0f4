// Blocks of points, and sums of them, for both directions of a solve.

#pragma once

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "method.h"

namespace anode {

constexpr long kBlockRows = 64;    // few enough for a block's evaluations to stay in the cache
constexpr long kLargeRows = 1024;  // from this number of rows on, torch's threads are used; see share_borrowed

/// The number of strands per member: in total enough for the threads of most machines.
inline int strands_of_each(int members) { return std::max(1, 16 / members); }

struct Range {
  long first, last;
};

/// Range i of `count` things in `parts` ranges of about the same size.
inline Range range_of(long i, long parts, long count) { return {i * count / parts, (i + 1) * count / parts}; }

/// Rows that are processed together, and the width of their block.
struct Piece {
  long first, rows, width;
};

/// Splits rows into blocks of about the same size.
inline std::vector<Piece> cut_rows(long first, long count, long lanes) {
  const long blocks = (count + kBlockRows - 1) / kBlockRows;
  std::vector<Piece> pieces;
  for (long i = 0; i < blocks; ++i) {
    const Range range = range_of(i, blocks, count);
    const long rows = range.last - range.first;
    pieces.push_back({first + range.first, rows, (rows + lanes - 1) / lanes * lanes});
  }
  return pieces;
}

/// Memory for the state of a block, with a leading row for the time.
template <class T>
T* take_state(Arena& arena, long dim, long width) {
  return arena.take<T>((dim + 1) * width) + width;
}

/// The time of each point of a state.
template <class T>
T* times_of(T* state, long width) {
  return state - width;
}

/// Writes rows [rows][dim] to a block. The rest of the block is filled with copies of the last row, to stay finite.
template <class T>
void load_rows(const T* from, long rows, long dim, long width, T* block) {
  for (long b = 0; b < width; ++b) {
    const T* row = from + (b < rows ? b : rows - 1) * dim;
    for (long i = 0; i < dim; ++i) block[i * width + b] = row[i];
  }
}

/// The same for cotangents; the rest of the block is filled with zeros.
template <class T>
void load_cotangent(const T* from, long rows, long dim, long width, T* block) {
  for (long b = 0; b < width; ++b)
    for (long i = 0; i < dim; ++i) block[i * width + b] = b < rows ? from[b * dim + i] : T(0);
}

/// A weighted sum of slopes.
template <class T>
struct Sum {
  int count = 0;
  T weights[kMostSlopes];
  const T* parts[kMostSlopes];

  Sum& add(double weight, const T* part) {
    weights[count] = T(weight);
    parts[count++] = part;
    return *this;
  }
};

template <class T>
Sum<T> sum_of(const Weights& row, const std::vector<T*>& slopes) {
  Sum<T> sum;
  for (auto [i, weight] : row) sum.add(weight, slopes[i]);
  return sum;
}

}  // namespace anode
