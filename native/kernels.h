// The inner loops, compiled once for every instruction set and chosen at run time.
//
// Everything works on blocks: a matrix [features][width] whose rows are contiguous over the points of a batch, so that
// one vector instruction treats several points and no product needs a horizontal sum. `width` is a multiple of
// `lanes`, and blocks are aligned to 64 bytes.

#pragma once

#include "elementwise.h"

namespace anode {

enum class Activation : int { none, relu, tanh, softplus, silu, gelu };

/// Whether the derivative of an activation is kept with its value, instead of being computed from it.
constexpr bool keeps_derivative(Activation act) {
  return act == Activation::softplus || act == Activation::silu || act == Activation::gelu;
}

constexpr int kMostSlopes = 32;

/// How many rows of a matrix a kernel computes at once, each in several vectors: as many as have registers, so that their
/// sums wait neither for each other nor for the loads.
constexpr int kTile = 6;

/// One affine map of one member. Matrices are packed in groups of kTile rows, the last filled with zeros.
template <class T>
struct Layer {
  int inputs, outputs;
  int skipped;        // how many of the first inputs need no cotangent
  const T* forward;   // of W:           [outputs / kTile][inputs][kTile]
  const T* backward;  // of W transposed: [(inputs - skipped) / kTile][outputs][kTile]
  const T* bias;      // [outputs]
};

/// The gradients of one layer, added up.
template <class T>
struct LayerSums {
  T* weight;  // [outputs][inputs]
  T* bias;    // [outputs]
};

template <class T>
struct Kernels {
  const char* name;
  int lanes;
  const Elementwise<T>* elementwise;

  /// out = act(W x + bias). `derivative` is written if it is not null.
  void (*affine)(const Layer<T>&, Activation, const T* x, long width, T* out, T* derivative);

  /// out = (W^T cotangent) times the derivative of the activation whose value, or kept derivative, is `seen`; or that
  /// is added to out.
  void (*pull)(const Layer<T>&, Activation, const T* cotangent, const T* seen, long width, T* out, bool add);

  /// Adds `count` pairs of cotangents [outputs][width] and inputs [inputs][width] to the sums.
  void (*sums)(int outputs, int inputs, int count, const T* const* cotangents, const T* const* x, long width,
               const LayerSums<T>&);

  /// out = y + h * (w_0 k_0 + w_1 k_1 + ...), with one h per point; y may be null for zero.
  void (*combine)(int count, const T* weights, const T* const* k, const T* y, const T* h, long features, long width,
                  T* out);

  /// The same with one weight per point: weights[i][width].
  void (*combine_pointwise)(int count, const T* const* weights, const T* const* k, const T* y, const T* h,
                            long features, long width, T* out);

  /// For every point, the sum over features of ((w_0 k_0 + ...) / (atol + rtol max(|y|, |y1|)))^2.
  void (*squares)(int count, const T* weights, const T* const* k, const T* y, const T* y1, T rtol, T atol,
                  long features, long width, T* out);
};

/// The kernels of the best instruction set of this processor for this number of points, or those called `name`.
template <class T>
const Kernels<T>& kernels(long points, const char* name = nullptr);

/// The names of the instruction sets that this processor can use, best first, separated by spaces.
const char* instruction_sets();

}  // namespace anode
