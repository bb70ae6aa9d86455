// What decides, for a class of devices, how a graph is lowered. One struct from the backend that says it,
// over the wire, to dag::lower: two devices whose traits are equal run the same ops.
#pragma once

#include <compare>

#include "dag/graph.h"

namespace weft::dag {

struct BackendTraits {
  bool fuse_elementwise = false;
  // A matrix product takes the bias that is added to it, and a Relu or Gelu behind that.
  bool fuse_products = false;
  Layout convolution_layout = Layout::Plain;
  auto operator<=>(const BackendTraits&) const = default;
};

}  // namespace weft::dag
