// What proto/planning.h has, as bytes and back. Decoding trusts no more than that of messages: either end may
// have been taken over by what it read.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "proto/planning.h"

namespace weft::proto {

inline constexpr size_t kPlanQuestionSizeMax = size_t{64} << 20;  // bytes; a thousand peers at as many sites

std::vector<std::byte> encode_question(const PlanQuestion& question);
Result<PlanQuestion> decode_question(std::span<const std::byte> bytes);
// At most kMessageSizeMax bytes are decoded.
std::vector<std::byte> encode_answer(const PlanAnswer& answer);
Result<PlanAnswer> decode_answer(std::span<const std::byte> bytes);

}  // namespace weft::proto
