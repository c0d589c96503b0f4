// Which of the compiled kernels this processor can run.

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "conv_kernels.h"

namespace anode {

#define ANODE_DECLARE(isa)                  \
  namespace isa {                           \
  extern const Kernels<float> for_float;    \
  extern const Kernels<double> for_double;  \
  extern const ConvKernels for_convolutions; \
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
  const ConvKernels* for_convolutions;
};

/// What this processor can run, best first.
const std::vector<Choice>& choices() {
  static const std::vector<Choice> found = [] {
    std::vector<Choice> usable;
#ifdef ANODE_X86
    __builtin_cpu_init();
    const bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
      usable.push_back({&avx512::for_float, &avx512::for_double, &avx512::for_convolutions});
    if (fma) usable.push_back({&avx2::for_float, &avx2::for_double, &avx2::for_convolutions});
#endif
    usable.push_back({&baseline::for_float, &baseline::for_double, &baseline::for_convolutions});
    return usable;
  }();
  return found;
}

const Choice& choice(const char* name) {
  for (const Choice& each : choices())
    if (!name || !std::strcmp(each.for_float->name, name)) return each;
  throw std::invalid_argument(std::string("this processor has no instructions called ") + name);
}

}  // namespace

template <>
const Kernels<float>& kernels<float>(const char* name) {
  return *choice(name).for_float;
}

template <>
const Kernels<double>& kernels<double>(const char* name) {
  return *choice(name).for_double;
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
