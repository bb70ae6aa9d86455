// What stands before a tensor on a link or a bulk connection.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "compress/codec.h"
#include "dag/tensor.h"
#include "proto/hello.h"
#include "proto/stage.h"

namespace weft::proto {

enum class Direction : uint8_t {
  Forward = 0,   // an activation
  Backward = 1,  // a cotangent
};

// What stands before a tensor's payload, fixed in size but for the dims (proto/codec/tensor_header.cc). A
// dense one is its raw bytes.
struct TensorHeader {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  uint32_t microbatch = 0;
  uint32_t edge = 0;  // for an answer to GetMicrobatch: the index of the input
  ProgramKind program = ProgramKind::Train;
  Direction direction = Direction::Forward;
  uint16_t replica = 0;     // the sender's
  dag::TensorSpec spec{};   // of the tensor, whatever its payload is
  compress::Codec codec{};  // of the payload
  bool operator==(const TensorHeader&) const = default;
};

// A codec is the sender's to leave where a tensor is not finite, and only then.
inline bool may_come_as(const compress::Codec& codec, const compress::Codec& assigned) {
  return codec == assigned || codec.kind == compress::Kind::Dense;
}
// What a tensor takes on the wire without its header; where that is not fixed, the most.
inline Bytes payload_bytes(const dag::TensorSpec& spec, const compress::Codec& codec) {
  if (codec.kind == compress::Kind::Dense) return spec.bytes();
  return {static_cast<int64_t>(compress::wire_bytes(codec, static_cast<size_t>(spec.element_count())))};
}

}  // namespace weft::proto
