// What the token in a Hello is worth, by what the store knows of it. Nothing else decides that.
#pragma once

#include <optional>

#include "broker/events.h"
#include "broker/store.h"
#include "security/token.h"

namespace weft::broker {

struct TokenJudgement {
  TokenVerdict verdict = TokenVerdict::None;
  std::optional<proto::Role> role{};  // of a valid one: what it admits as
  std::string label{};                // likewise: for whom it was made
};

// Whether the secret is the token's, and it is good still.
TokenVerdict judge_secret(const StoredToken& token, const proto::Secret& secret, int64_t unix_ms);
// Whether tokens of the role are good for the HTTP door.
inline bool may_call(proto::Role role) { return role == proto::Role::Caller || proto::is_user(role); }
// A token's role as it is stored, and as it is written.
proto::Role role_of(security::Role role);
security::Role role_of(proto::Role role);

// Every admission that was granted before is in the store: a token's count of uses is true.
TokenJudgement judge_token(Store& store, const proto::Hello& hello, int64_t unix_ms);

}  // namespace weft::broker
