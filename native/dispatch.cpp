// Which of the compiled kernels this processor can run.

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "conv_kernels.h"
#include "elementwise.h"
#include "kernels.h"

namespace anode {

#define ANODE_DECLARE(isa)                                  \
  namespace isa {                                           \
  extern const Kernels<float> for_float;                    \
  extern const Kernels<double> for_double;                  \
  extern const Elementwise<float> elementwise_for_float;    \
  extern const Elementwise<double> elementwise_for_double;  \
  extern const ConvKernels for_convolutions;                \
  }

ANODE_DECLARE(baseline)
#ifdef ANODE_X86
ANODE_DECLARE(avx2)
ANODE_DECLARE(avx512)
#endif

namespace {

struct Choice {
  const Kernels<float>* for_float;
  const Kernels<double>* for_double;
  const Elementwise<float>* elementwise_for_float;
  const Elementwise<double>* elementwise_for_double;
  const ConvKernels* for_convolutions;
};

#define ANODE_CHOICE(isa)                                                                                        \
  {&isa::for_float, &isa::for_double, &isa::elementwise_for_float, &isa::elementwise_for_double, &isa::for_convolutions}

/// What this processor can run, best first.
const std::vector<Choice>& choices() {
  static const std::vector<Choice> found = [] {
    std::vector<Choice> usable;
#ifdef ANODE_X86
    __builtin_cpu_init();
    const bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
      usable.push_back(ANODE_CHOICE(avx512));
    if (fma) usable.push_back(ANODE_CHOICE(avx2));
#endif
    usable.push_back(ANODE_CHOICE(baseline));
    return usable;
  }();
  return found;
}

const Choice& choice(const char* name) {
  for (const Choice& each : choices())
    if (!name || !std::strcmp(each.for_float->name, name)) return each;
  throw std::invalid_argument(std::string("this processor has no instructions called ") + name);
}

/// The choice for a number of points. If they fill no more than half of the widest vectors, half as wide ones are faster.
const Choice& choice(long points, long bytes, const char* name) {
  const bool narrow = !name && points * bytes <= 32 && choices().size() == 3;
  return narrow ? choices()[1] : choice(name);
}

}  // namespace

template <>
const Kernels<float>& kernels<float>(long points, const char* name) {
  return *choice(points, sizeof(float), name).for_float;
}

template <>
const Kernels<double>& kernels<double>(long points, const char* name) {
  return *choice(points, sizeof(double), name).for_double;
}

template <>
const Elementwise<float>& elementwise<float>(const char* name) {
  return *choice(name).elementwise_for_float;
}

template <>
const Elementwise<double>& elementwise<double>(const char* name) {
  return *choice(name).elementwise_for_double;
}

const ConvKernels& conv_kernels(const char* name) { return *choice(name).for_convolutions; }

const char* instruction_sets() {
  static const std::string names = [] {
    std::string all;
    for (const Choice& each : choices()) all += (all.empty() ? "" : " ") + std::string(each.for_float->name);
    return all;
  }();
  return names.c_str();
}

}  // namespace anode
