// Internal to proto/codec: a walk over a message's wire format that adds up what protobuf would take in
// memory for it, without taking any. Protobuf can grow to 70 times the bytes it is given; what passes here
// does not.
#pragma once

#include <google/protobuf/descriptor.h>

#include <cstddef>
#include <span>

#include "base/result.h"

namespace weft::proto {

// Errors: Corrupted for bytes that are no message, with where; ResourceExhausted beyond kScanOverheadMax,
// kUnknownFieldsMax or kNestingMax.
Status scan(std::span<const std::byte> bytes, const google::protobuf::Descriptor& message);

}  // namespace weft::proto
