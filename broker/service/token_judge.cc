#include "broker/service/token_judge.h"

#include "security/token.h"

namespace weft::broker {

TokenJudgement judge_token(Store& store, const proto::Hello& hello, int64_t unix_ms) {
  if (!hello.token) return {TokenVerdict::None, {}};
  const auto found = store.find_token(hello.token->id);
  if (!found || !*found) return {TokenVerdict::Unknown, {}};
  const StoredToken& token = **found;
  // First, so that whoever does not have the secret learns nothing of the token.
  const Digest shown = security::secret_digest({hello.token->secret});
  if (!security::equal_in_constant_time(shown, token.secret_digest)) return {TokenVerdict::Unknown, {}};
  if (token.revoked) return {TokenVerdict::Revoked, {}};
  if (token.expires_unix_ms && *token.expires_unix_ms <= unix_ms) return {TokenVerdict::Expired, {}};
  if (token.uses_max && token.uses >= *token.uses_max) return {TokenVerdict::Used, {}};
  const auto role = hello.role == proto::Role::PeerBulk ? proto::Role::Peer : hello.role;
  if (!proto::includes(token.role, role)) return {TokenVerdict::Unknown, {}};
  return {TokenVerdict::Valid, token.role};
}

}  // namespace weft::broker
