// Single operations on plain arrays, for the tests.

#pragma once

#include <nanobind/nanobind.h>

namespace anode {

void bind_probe(nanobind::module_& m);

}  // namespace anode
