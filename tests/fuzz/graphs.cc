#include "base/check.h"
#include "proto/codec/codec.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void graphs(std::span<const std::byte> bytes) {
  const auto graph = proto::decode_graph(bytes);
  if (!graph) return;
  const std::vector<std::byte> again = proto::encode_graph(*graph);
  const auto twice = proto::decode_graph(again);
  WEFT_CHECK_MSG(twice.has_value(), "a graph that was decoded cannot be sent on");
  WEFT_CHECK(proto::encode_graph(*twice) == again);
}

}  // namespace weft::fuzz
