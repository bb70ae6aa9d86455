#include "broker/service/token_judge.h"

#include "security/token.h"

namespace weft::broker {

proto::Role role_of(security::Role role) {
  switch (role) {
    case security::Role::Peer:
      return proto::Role::Peer;
    case security::Role::Submitter:
      return proto::Role::Submitter;
    case security::Role::Admin:
      return proto::Role::Admin;
    case security::Role::Caller:
      return proto::Role::Caller;
  }
  return proto::Role::Peer;
}

security::Role role_of(proto::Role role) {
  for (const security::Role one : {security::Role::Submitter, security::Role::Admin, security::Role::Caller})
    if (role_of(one) == role) return one;
  return security::Role::Peer;
}

TokenVerdict judge_secret(const StoredToken& token, const proto::Secret& secret, int64_t unix_ms) {
  // First, so that whoever does not have the secret learns nothing of the token.
  const Digest shown = security::secret_digest({secret});
  if (!security::equal_in_constant_time(shown, token.secret_digest)) return TokenVerdict::Unknown;
  if (token.revoked) return TokenVerdict::Revoked;
  if (token.expires_unix_ms && *token.expires_unix_ms <= unix_ms) return TokenVerdict::Expired;
  if (token.uses_max && token.uses >= *token.uses_max) return TokenVerdict::Used;
  return TokenVerdict::Valid;
}

TokenJudgement judge_token(Store& store, const proto::Hello& hello, int64_t unix_ms) {
  if (!hello.token) return {.verdict = TokenVerdict::None};
  const auto found = store.find_token(hello.token->id);
  if (!found || !*found) return {.verdict = TokenVerdict::Unknown};
  const StoredToken& token = **found;
  const TokenVerdict verdict = judge_secret(token, hello.token->secret, unix_ms);
  if (verdict != TokenVerdict::Valid) return {.verdict = verdict};
  const auto role = hello.role == proto::Role::PeerBulk ? proto::Role::Peer : hello.role;
  if (role == proto::Role::Caller || !proto::includes(token.role, role))
    return {.verdict = TokenVerdict::Unknown};
  return {TokenVerdict::Valid, token.role, token.label};
}

}  // namespace weft::broker
