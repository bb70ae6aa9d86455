#include "broker/pool/principals.h"

#include <algorithm>

#include "base/check.h"

namespace weft::broker {

namespace {
constexpr size_t kAskedAtOnce = 64;
}  // namespace

bool Principals::is_admitted(const PeerId& who, proto::Role role) const {
  const auto key = by_key_.find(who);
  return key != by_key_.end() && key->second.contains(role);
}

void Principals::admit(const PeerId& who, proto::Role role, uint64_t token) {
  std::list<Admission>& all = by_token_[token];
  all.push_back({who, role});
  const bool is_new = by_key_[who].insert({role, {token, std::prev(all.end())}}).second;
  WEFT_CHECK(is_new);
}

void Principals::seen(const PeerId& who) {
  const auto key = by_key_.find(who);
  if (key == by_key_.end()) return;
  for (const auto& [role, place] : key->second) {
    std::list<Admission>& all = by_token_.at(place.token);
    all.splice(all.end(), all, place.at);
  }
}

std::vector<PrincipalForgotten> Principals::forget(uint64_t token,
                                                   const std::function<bool(const PeerId&)>& is_needed) {
  std::vector<PrincipalForgotten> forgotten;
  const auto of_token = by_token_.find(token);
  if (of_token == by_token_.end()) return forgotten;
  std::list<Admission>& all = of_token->second;
  size_t left = std::min(all.size(), kAskedAtOnce);
  for (; left > 0 && all.size() > max_of_token_; --left) {
    const auto [who, role] = all.front();
    if (is_needed(who)) {
      all.splice(all.end(), all, all.begin());
      continue;
    }
    const auto key = by_key_.find(who);
    key->second.erase(role);
    if (key->second.empty()) by_key_.erase(key);
    all.pop_front();
    forgotten.push_back({who, role});
  }
  return forgotten;
}

std::map<PeerId, std::set<proto::Role>> Principals::revoke(const std::set<uint64_t>& tokens) {
  std::map<PeerId, std::set<proto::Role>> gone;
  for (const uint64_t token : tokens) {
    const auto of_token = by_token_.find(token);
    if (of_token == by_token_.end()) continue;
    for (const auto& [who, role] : of_token->second) {
      gone[who].insert(role);
      const auto key = by_key_.find(who);
      key->second.erase(role);
      if (key->second.empty()) by_key_.erase(key);
    }
    by_token_.erase(of_token);
  }
  return gone;
}

}  // namespace weft::broker
