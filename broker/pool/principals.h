// Keys that a token admitted, in which role: whoever comes again with one needs no token. A token without
// limit of uses lets a stranger bring as many keys as it can make connections, so of one token only so many
// are kept, those that were seen last: who is forgotten shows its token again. A stranger's keys so displace
// at most what the same token admitted.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <vector>

#include "broker/records.h"

namespace weft::broker {

class Principals {
 public:
  explicit Principals(size_t max_of_token) : max_of_token_(max_of_token) {}

  bool is_admitted(const PeerId& who, proto::Role role) const;
  // REQUIRES: it is not admitted in this role.
  void admit(const PeerId& who, proto::Role role, uint64_t token);
  // It is there: of those that its tokens admitted it was seen last.
  void seen(const PeerId& who);

  // Those of `token` that were seen longest ago, as far as there are too many, but for who is needed: that
  // counts as seen. They are admitted no more. A call asks for few of them; what is too many then goes with
  // the next.
  std::vector<PrincipalForgotten> forget(uint64_t token, const std::function<bool(const PeerId&)>& is_needed);
  // All that these tokens admitted is admitted no more: who, in which roles.
  std::map<PeerId, std::set<proto::Role>> revoke(const std::set<uint64_t>& tokens);

 private:
  struct Admission {
    PeerId who{};
    proto::Role role = proto::Role::Caller;
  };
  struct Place {
    uint64_t token = 0;
    std::list<Admission>::iterator at{};
  };
  std::map<PeerId, std::map<proto::Role, Place>> by_key_;
  std::map<uint64_t, std::list<Admission>> by_token_;  // seen longest ago first
  size_t max_of_token_;
};

}  // namespace weft::broker
