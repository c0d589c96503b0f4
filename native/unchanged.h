// Whether Python objects still hold what they held before.

#pragma once

#include <nanobind/nanobind.h>

namespace anode {

void bind_unchanged(nanobind::module_& m);

}  // namespace anode
