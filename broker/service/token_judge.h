// What the token in a Hello is worth, by what the store knows of it. Nothing else decides that.
#pragma once

#include <optional>

#include "broker/events.h"
#include "broker/store.h"

namespace weft::broker {

struct TokenJudgement {
  TokenVerdict verdict = TokenVerdict::None;
  std::optional<proto::Role> role{};  // of a valid one: what it admits as
};

// Every admission that was granted before is in the store: a token's count of uses is true.
TokenJudgement judge_token(Store& store, const proto::Hello& hello, int64_t unix_ms);

}  // namespace weft::broker
