// A perceptron's parameters, packed for the kernels, and what it computes for one block of points.

#pragma once

#include <cstring>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace anode {

/// The shape of a perceptron: dim -> hidden -> ... -> dim.
struct Shape {
  std::vector<int> sizes;               // of the input, the hidden layers, the output
  std::vector<Activation> activations;  // of each layer's output
  bool time;

  int layers() const { return int(sizes.size()) - 1; }
  int dim() const { return sizes.front(); }
  bool is_last(int l) const { return l + 1 == layers(); }

  /// How many rows of a block an evaluation writes down of the layers before this one: of each its value and, where
  /// that is kept, its derivative. Of the last layer nothing is needed that has no activation.
  long rows_before(int layer) const {
    long rows = 0;
    for (int l = 0; l < layer; ++l)
      if (!is_last(l) || activations[l] != Activation::none)
        rows += long(sizes[l + 1]) * (keeps_derivative(activations[l]) ? 2 : 1);
    return rows;
  }
  long hidden_rows() const { return rows_before(layers()); }

  /// Parameters of one member.
  long parameters() const {
    long all = time ? sizes[1] : 0;
    for (int l = 0; l < layers(); ++l) all += long(sizes[l] + 1) * sizes[l + 1];
    return all;
  }
};

/// Where parameters, or their gradients, lie: of every layer, one member after the other.
template <class T>
struct Parameters {
  std::vector<T*> weights, biases;
  T* time = nullptr;
};

/// The gradients of one member's parameters, added up.
template <class T>
struct Sums {
  std::vector<LayerSums<T>> layers;
  T* begin = nullptr;
  long size = 0;

  Sums(const Shape& shape, Arena& arena) : size(shape.parameters()) {
    begin = arena.take<T>(size);
    std::memset(begin, 0, size * sizeof(T));
    T* at = begin;
    for (int l = 0; l < shape.layers(); ++l) {
      const long n = shape.sizes[l + 1], m = shape.sizes[l];
      LayerSums<T> layer{at, at + n * m, nullptr};
      at += n * m + n;
      if (l == 0 && shape.time) {
        layer.time = at;
        at += n;
      }
      layers.push_back(layer);
    }
  }

  void add_to(const Parameters<T>& total, const Shape& shape, int member) const {
    for (int l = 0; l < shape.layers(); ++l) {
      const long n = shape.sizes[l + 1], m = shape.sizes[l];
      add(total.weights[l] + member * n * m, layers[l].weight, n * m);
      add(total.biases[l] + member * n, layers[l].bias, n);
      if (layers[l].time) add(total.time + member * n, layers[l].time, n);
    }
  }

 private:
  static void add(T* to, const T* from, long count) {
    for (long i = 0; i < count; ++i) to[i] += from[i];
  }
};

/// What an evaluation leaves behind: the state, and what hidden layers made of it.
template <class T>
struct Evaluation {
  T* x = nullptr;
  T* hidden = nullptr;
};

/// One member's network.
template <class T>
class Network {
 public:
  Network(const Shape& shape, const Parameters<const T>& all, int member, Arena& arena) : shape_(shape) {
    for (int l = 0; l < shape.layers(); ++l) {
      const int n = shape.sizes[l + 1], m = shape.sizes[l];
      const T* w = all.weights[l] + long(member) * n * m;
      layers_.push_back({m, n, pack(w, n, m, m, 1, arena), pack(w, m, n, 1, m, arena),
                         copy(all.biases[l] + long(member) * n, n, arena),
                         l == 0 && shape.time ? copy(all.time + long(member) * n, n, arena) : nullptr});
    }
  }

  /// The slope at a state. Its hidden layers are written down too.
  void evaluate(const Kernels<T>& kernels, const Evaluation<T>& at, const T* times, long width, T* slope) const {
    for (int l = 0; l < shape_.layers(); ++l) {
      const Activation act = shape_.activations[l];
      const long size = layers_[l].outputs * width;
      T* value = at.hidden + shape_.rows_before(l) * width;
      T* out = shape_.is_last(l) && act == Activation::none ? slope : value;
      kernels.affine(layers_[l], act, input_of(l, at, width), times, width, out, value + size);
      if (shape_.is_last(l) && out != slope) std::memcpy(slope, value, size * sizeof(T));
    }
  }

  /// What an evaluation gave to a layer.
  const T* input_of(int layer, const Evaluation<T>& at, long width) const {
    return layer == 0 ? at.x : at.hidden + shape_.rows_before(layer - 1) * width;
  }

  /// Pull the cotangent of a slope back to the state. `cotangents` has room for those of all layers' outputs; the one
  /// of the last layer is the slope's own.
  void pull(const Kernels<T>& kernels, const Evaluation<T>& at, const std::vector<T*>& cotangents, long width,
            T* at_state) const {
    const int end = shape_.layers() - 1;
    if (const Activation act = shape_.activations[end]; act != Activation::none) {
      const T* seen = seen_of(end, at, width);
      T* cotangent = cotangents[end];
      for (long i = 0; i < layers_[end].outputs * width; ++i)
        cotangent[i] = act == Activation::relu   ? (seen[i] > 0 ? cotangent[i] : T(0))
                       : act == Activation::tanh ? cotangent[i] * (1 - seen[i] * seen[i])
                                                 : cotangent[i] * seen[i];
    }
    for (int l = end; l > 0; --l)
      kernels.pull(layers_[l], shape_.activations[l - 1], cotangents[l], seen_of(l - 1, at, width), width,
                   cotangents[l - 1]);
    kernels.pull(layers_[0], Activation::none, cotangents[0], nullptr, width, at_state);
  }

 private:
  /// What the derivative of a layer's activation is computed from: its value, or itself where it was kept.
  const T* seen_of(int layer, const Evaluation<T>& at, long width) const {
    const long skipped = keeps_derivative(shape_.activations[layer]) ? layers_[layer].outputs : 0;
    return at.hidden + (shape_.rows_before(layer) + skipped) * width;
  }

  /// Entry (i, j) of a matrix lies at i * down + j * right.
  static const T* pack(const T* w, int rows, int columns, long down, long right, Arena& arena) {
    const int tiles = (rows + kTile - 1) / kTile;
    T* packed = arena.take<T>(std::size_t(tiles) * columns * kTile);
    T* at = packed;
    for (int tile = 0; tile < tiles; ++tile)
      for (int j = 0; j < columns; ++j)
        for (int r = 0; r < kTile; ++r) {
          const int i = tile * kTile + r;
          *at++ = i < rows ? w[i * down + j * right] : T(0);
        }
    return packed;
  }

  static const T* copy(const T* from, int count, Arena& arena) {
    T* to = arena.take<T>(count);
    std::memcpy(to, from, count * sizeof(T));
    return to;
  }

  Shape shape_;
  std::vector<Layer<T>> layers_;
};

}  // namespace anode
