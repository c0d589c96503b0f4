// Compiled once for every instruction set, with ANODE_ISA its name. Uses nothing of the standard library: an inline
// function of it, compiled here for a newer processor, could be the copy that the linker keeps for all.

#include "kernels.h"

#include "activations.h"

namespace anode {
namespace ANODE_ISA {

/// Value of an activation; its derivative too, where that is kept.
template <class T, Activation A>
ANODE_INLINE V<T> activate(V<T> x, T* derivative) {
  V<T> value = x, slope;
  if constexpr (A == Activation::relu) return x < 0 ? V<T>{} : x;  // so that NaN stays NaN
  if constexpr (A == Activation::tanh) return hyperbolic_tangent<T>(x);
  if constexpr (A == Activation::softplus) softplus<T>(x, value, slope);
  if constexpr (A == Activation::silu) silu<T>(x, value, slope);
  if constexpr (A == Activation::gelu) gelu<T>(x, value, slope);
  if constexpr (keeps_derivative(A))
    if (derivative) store(derivative, slope);
  return value;
}

template <class T, Activation A, bool Derivative>
void activate_all(T* x, long count, T* derivative) {
  for (long at = 0; at < count; at += kLanes<T>)
    store(x + at, activate<T, A>(load(x + at), Derivative ? derivative + at : nullptr));
}

/// Whether an activation is an operation or none.
constexpr bool is_cheap(Activation act) { return act == Activation::none || act == Activation::relu; }

template <class T, Activation A>
ANODE_INLINE V<T> pull_activation(V<T> cotangent, const T* seen) {
  if constexpr (A == Activation::none) return cotangent;
  V<T> s = load(seen);
  if constexpr (A == Activation::relu) return s > 0 ? cotangent : V<T>{};
  if constexpr (A == Activation::tanh) return cotangent * (1 - s * s);
  return cotangent * s;
}

/// How many vectors of each row a product has in registers, of which there are twice as many with the widest vectors.
constexpr int kAcross = ANODE_VECTOR_BYTES == 64 ? 4 : 2;

/// C vectors of each of R rows of a product: acc += packed * x, over `depth` columns.
template <class T, int R, int C>
ANODE_INLINE void multiply(const T* packed, const T* x, long depth, long width, V<T> (&acc)[R][C]) {
  for (long m = 0; m < depth; ++m) {
    V<T> row[C];
    for (int c = 0; c < C; ++c) row[c] = load(x + m * width + c * kLanes<T>);
    for (int r = 0; r < R; ++r) {
      T w = packed[m * kTile + r];
      for (int c = 0; c < C; ++c) acc[r][c] += w * row[c];
    }
  }
}

template <int R>
struct Rows {
  static constexpr int count = R;
};

/// Calls work(Rows<R>) for R at least as large as the number of rows that are left: R is a constant, and little is wasted.
template <class Work>
ANODE_INLINE void with_rows(int rows, Work work) {
  if (rows > 4) return work(Rows<kTile>{});
  if (rows > 2) return work(Rows<4>{});
  if (rows > 1) return work(Rows<2>{});
  work(Rows<1>{});
}

template <class T, Activation A>
void affine_with(const Layer<T>& layer, const T* x, long width, T* out, T* derivative) {
  for (int n = 0; n < layer.outputs; n += kTile) {
    const int rows = layer.outputs - n < kTile ? layer.outputs - n : kTile;
    const T* packed = layer.forward + long(n) * layer.inputs;
    with_rows(rows, [&](auto tile) {
      constexpr int R = decltype(tile)::count;
      across<T, kAcross>(width, [&](auto vectors, long b) {
        constexpr int C = decltype(vectors)::count;
        V<T> acc[R][C];
        for (int r = 0; r < R; ++r)
          for (V<T>& each : acc[r]) each = splat<T>(layer.bias[n + (r < rows ? r : 0)]);
        multiply<T, R, C>(packed, x + b, layer.inputs, width, acc);
        for (int r = 0; r < R && r < rows; ++r)
          for (int c = 0; c < C; ++c) {
            T* place = out + (n + r) * width + b + c * kLanes<T>;
            if constexpr (is_cheap(A))
              store(place, activate<T, A>(acc[r][c], nullptr));
            else
              store(place, acc[r][c]);
          }
      });
    });
  }
  if constexpr (A == Activation::tanh)
    hyperbolic_tangents<T>(out, layer.outputs * width);
  else if constexpr (!is_cheap(A))  // one after the other they overlap; between products each would wait for itself
    derivative ? activate_all<T, A, true>(out, layer.outputs * width, derivative)
               : activate_all<T, A, false>(out, layer.outputs * width, nullptr);
}

template <class T>
void affine(const Layer<T>& layer, Activation act, const T* x, long width, T* out, T* derivative) {
  switch (act) {
    case Activation::none: return affine_with<T, Activation::none>(layer, x, width, out, derivative);
    case Activation::relu: return affine_with<T, Activation::relu>(layer, x, width, out, derivative);
    case Activation::tanh: return affine_with<T, Activation::tanh>(layer, x, width, out, derivative);
    case Activation::softplus: return affine_with<T, Activation::softplus>(layer, x, width, out, derivative);
    case Activation::silu: return affine_with<T, Activation::silu>(layer, x, width, out, derivative);
    case Activation::gelu: return affine_with<T, Activation::gelu>(layer, x, width, out, derivative);
  }
}

template <class T, Activation A, bool Add>
void pull_with(const Layer<T>& layer, const T* cotangent, const T* seen, long width, T* out) {
  const int inputs = layer.inputs - layer.skipped;
  for (int m = 0; m < inputs; m += kTile) {
    const int rows = inputs - m < kTile ? inputs - m : kTile;
    const T* packed = layer.backward + long(m) * layer.outputs;
    with_rows(rows, [&](auto tile) {
      constexpr int R = decltype(tile)::count;
      across<T, kAcross>(width, [&](auto vectors, long b) {
        constexpr int C = decltype(vectors)::count;
        V<T> acc[R][C];
        for (auto& row : acc)  // GCC fills = {} by `rep stos`: up to 2x the time
          for (V<T>& each : row) each = V<T>{};
        multiply<T, R, C>(packed, cotangent + b, layer.outputs, width, acc);
        for (int r = 0; r < R && r < rows; ++r)
          for (int c = 0; c < C; ++c) {
            const long at = (m + r) * width + b + c * kLanes<T>;
            V<T> pulled = pull_activation<T, A>(acc[r][c], A == Activation::none ? nullptr : seen + at);
            store(out + at, Add ? load(out + at) + pulled : pulled);
          }
      });
    });
  }
}

template <class T>
void pull(const Layer<T>& layer, Activation act, const T* cotangent, const T* seen, long width, T* out, bool add) {
  if (add) return pull_with<T, Activation::none, true>(layer, cotangent, nullptr, width, out);
  switch (act) {
    case Activation::none: return pull_with<T, Activation::none, false>(layer, cotangent, seen, width, out);
    case Activation::relu: return pull_with<T, Activation::relu, false>(layer, cotangent, seen, width, out);
    case Activation::tanh: return pull_with<T, Activation::tanh, false>(layer, cotangent, seen, width, out);
    default: return pull_with<T, Activation::softplus, false>(layer, cotangent, seen, width, out);
  }
}

/// The sum of a vector's N lanes. Halves first: lane by lane, these sums took a sixth of the time of `sums`.
template <class T, int N>
ANODE_INLINE T total(const T (&lanes)[N]) {
  if constexpr (N == 2) {
    return lanes[0] + lanes[1];
  } else {
    typedef T Half __attribute__((vector_size(N / 2 * sizeof(T)), aligned(sizeof(T)), may_alias));
    T sums[N / 2];
    *(Half*)sums = *(const Half*)lanes + *(const Half*)(lanes + N / 2);
    return total<T, N / 2>(sums);
  }
}

template <class T>
ANODE_INLINE T total(V<T> v) {
  T lanes[kLanes<T>];
  store(lanes, v);
  return total<T, kLanes<T>>(lanes);
}

/// R x C entries of the sum of cotangent x^T over some pairs: as many as there are registers for.
template <class T, int R, int C>
ANODE_INLINE void sums_tile(int n, int m, int inputs, int count, const T* const* cotangents, const T* const* x,
                            long width, T* weight) {
  V<T> acc[R][C] = {};
  for (int s = 0; s < count; ++s) {
    const T *g = cotangents[s] + long(n) * width, *in = x[s] + long(m) * width;
    for (long b = 0; b < width; b += kLanes<T>) {
      V<T> left[R];
      for (int r = 0; r < R; ++r) left[r] = load(g + r * width + b);
      for (int c = 0; c < C; ++c) {
        V<T> right = load(in + c * width + b);
        for (int r = 0; r < R; ++r) acc[r][c] += left[r] * right;
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) weight[long(n + r) * inputs + m + c] += total<T>(acc[r][c]);
}

/// R rows of the sums, between two columns.
template <class T, int R>
void sums_rows(int n, int m, int end, int inputs, int count, const T* const* cotangents, const T* const* x, long width,
               T* weight) {
  for (; m + 4 <= end; m += 4) sums_tile<T, R, 4>(n, m, inputs, count, cotangents, x, width, weight);
  for (; m < end; ++m) sums_tile<T, R, 1>(n, m, inputs, count, cotangents, x, width, weight);
}

template <class T>
void sums(int outputs, int inputs, int count, const T* const* cotangents, const T* const* x, long width,
          const LayerSums<T>& sums) {
  constexpr int columns = 32 / sizeof(T);  // so many rows of x, of all pairs, stay in the first cache
  constexpr int R = ANODE_VECTOR_BYTES == 64 ? 4 : 3;
  for (int m = 0; m < inputs; m += columns) {
    const int end = m + columns < inputs ? m + columns : inputs;
    int n = 0;
    for (; n + R <= outputs; n += R) sums_rows<T, R>(n, m, end, inputs, count, cotangents, x, width, sums.weight);
    for (; n < outputs; ++n) sums_rows<T, 1>(n, m, end, inputs, count, cotangents, x, width, sums.weight);
  }
  for (int n = 0; n < outputs; ++n) {
    V<T> sum = {};
    for (int s = 0; s < count; ++s)
      for (long b = 0; b < width; b += kLanes<T>) sum += load(cotangents[s] + n * width + b);
    sums.bias[n] += total<T>(sum);
  }
}

template <class T>
void combine(int count, const T* weights, const T* const* k, const T* y, const T* h, long features, long width,
             T* out) {
  for (long b = 0; b < width; b += kLanes<T>) {
    V<T> sizes[kMostSlopes];  // h comes first, because weights above 1 make sums of large slopes overflow
    for (int s = 0; s < count; ++s) sizes[s] = weights[s] * load(h + b);
    for (long i = 0; i < features; ++i) {
      const long at = i * width + b;
      V<T> sum = sizes[0] * load(k[0] + at);
      for (int s = 1; s < count; ++s) sum += sizes[s] * load(k[s] + at);
      store(out + at, y ? load(y + at) + sum : sum);
    }
  }
}

template <class T>
void combine_pointwise(int count, const T* const* weights, const T* const* k, const T* y, const T* h, long features,
                       long width, T* out) {
  for (long i = 0; i < features; ++i)
    for (long b = 0; b < width; b += kLanes<T>) {
      const long at = i * width + b;
      V<T> sum = load(weights[0] + b) * load(k[0] + at);
      for (int s = 1; s < count; ++s) sum += load(weights[s] + b) * load(k[s] + at);
      sum *= load(h + b);
      store(out + at, y ? load(y + at) + sum : sum);
    }
}

template <class T>
void squares(int count, const T* weights, const T* const* k, const T* y, const T* y1, T rtol, T atol, long features,
             long width, T* out) {
  for (long b = 0; b < width; b += kLanes<T>) {
    V<T> sum = {};
    for (long i = 0; i < features; ++i) {
      const long at = i * width + b;
      V<T> error = weights[0] * load(k[0] + at);
      for (int s = 1; s < count; ++s) error += weights[s] * load(k[s] + at);
      V<T> before = absolute<T>(load(y + at)), after = absolute<T>(load(y1 + at));
      const V<T> scale = (before > after ? before : after) * rtol + atol;
      error = error / scale + (scale - scale);  // NaN where the state overflowed
      sum += error * error;
    }
    store(out + b, sum);
  }
}

extern const Elementwise<float> elementwise_for_float;
extern const Elementwise<double> elementwise_for_double;

#define ANODE_TEXT_OF(x) #x
#define ANODE_TEXT(x) ANODE_TEXT_OF(x)

extern const Kernels<float> for_float = {
    ANODE_TEXT(ANODE_ISA), kLanes<float>, &elementwise_for_float, affine, pull, sums, combine, combine_pointwise, squares};
extern const Kernels<double> for_double = {
    ANODE_TEXT(ANODE_ISA), kLanes<double>, &elementwise_for_double, affine, pull, sums, combine, combine_pointwise, squares};

}  // namespace ANODE_ISA
}  // namespace anode
