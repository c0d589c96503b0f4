// Blocks of points, and sums of them, for both directions of a solve.

#pragma once

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "method.h"

namespace anode {

constexpr long kBlockRows = 64;    // few enough for a block's evaluations to stay in the cache
constexpr long kLargeRows = 1024;  // from which on torch's threads are waited for; see share_borrowed

/// How many strands each of some members has: together enough for the threads of most machines.
inline int strands_of_each(int members) { return std::max(1, 16 / members); }

/// Rows that are worked on together, and how wide their block is.
struct Piece {
  long first, rows, width;
};

/// So many rows, cut into blocks of about the same size.
inline std::vector<Piece> cut_rows(long first, long count, long lanes) {
  const long blocks = (count + kBlockRows - 1) / kBlockRows;
  std::vector<Piece> pieces;
  for (long i = 0; i < blocks; ++i) {
    const long begin = i * count / blocks, rows = (i + 1) * count / blocks - begin;
    pieces.push_back({first + begin, rows, (rows + lanes - 1) / lanes * lanes});
  }
  return pieces;
}

/// Room for the state of a block, with a row for the time in front of it.
template <class T>
T* take_state(Arena& arena, long dim, long width) {
  return arena.take<T>((dim + 1) * width) + width;
}

/// The time of each point of a state.
template <class T>
T* times_of(T* state, long width) {
  return state - width;
}

/// Rows [rows][dim] as a block; what is over is filled with copies of the last row, which is as finite as that is.
template <class T>
void load_rows(const T* from, long rows, long dim, long width, T* block) {
  for (long b = 0; b < width; ++b) {
    const T* row = from + (b < rows ? b : rows - 1) * dim;
    for (long i = 0; i < dim; ++i) block[i * width + b] = row[i];
  }
}

/// The same for cotangents: what is over has none.
template <class T>
void load_cotangent(const T* from, long rows, long dim, long width, T* block) {
  for (long b = 0; b < width; ++b)
    for (long i = 0; i < dim; ++i) block[i * width + b] = b < rows ? from[b * dim + i] : T(0);
}

/// A weighted sum of some slopes.
template <class T>
struct Sum {
  int count = 0;
  T weights[kMostSlopes];
  const T* parts[kMostSlopes];

  void add(double weight, const T* part) {
    weights[count] = T(weight);
    parts[count++] = part;
  }
};

template <class T>
Sum<T> sum_of(const Weights& row, const std::vector<T*>& slopes) {
  Sum<T> sum;
  for (auto [i, weight] : row) sum.add(weight, slopes[i]);
  return sum;
}

}  // namespace anode
