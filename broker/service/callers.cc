#include "broker/service/callers.h"

#include <algorithm>

#include "broker/service/token_judge.h"
#include "broker/service/wall_clock.h"
#include "broker/store/sqlite_store.h"

namespace weft::broker {

namespace {

// One message for all that is wrong with a token, so that whoever guesses learns nothing.
tl::unexpected<Error> not_known() {
  return fail(ErrorCode::NotFound,
              "no token, or none that this broker knows: `weft token create --role caller` makes one");
}

}  // namespace

Result<std::unique_ptr<Callers>> Callers::open(const std::filesystem::path& database, const PeerId& broker) {
  WEFT_TRY(auto store, open_sqlite_store(database));
  return std::make_unique<Callers>(std::move(store), broker);
}

Result<Caller> Callers::check(std::string_view bearer_token) {
  const auto token = security::parse_token(bearer_token);
  if (!token || token->broker != broker_) return not_known();
  std::optional<StoredToken> found;
  {
    const MutexLock lock(mutex_);
    auto stored = store_->find_token(token->id);
    if (!stored) return fail(ErrorCode::Unavailable, "tokens cannot be read now: " + stored.error().message);
    found = std::move(*stored);
  }
  if (!found || judge_secret(*found, token->secret.bytes, unix_ms()) != TokenVerdict::Valid)
    return not_known();
  if (!may_call(found->role))
    return fail(ErrorCode::PermissionDenied,
                "a token for the role " + std::string(security::to_string(role_of(found->role))) +
                    " does not ask for tokens: `weft token create --role caller` makes one that does");
  return Caller{.token = found->id, .role = role_of(found->role), .label = found->label};
}

bool Callers::nobody_was_invited() {
  const MutexLock lock(mutex_);
  if (somebody_was_invited_) return false;
  const auto tokens = store_->tokens();
  somebody_was_invited_ =
      !tokens || std::any_of(tokens->begin(), tokens->end(),
                             [](const StoredToken& token) { return token.role == proto::Role::Caller; });
  return !somebody_was_invited_;
}

}  // namespace weft::broker
