// Whether somebody who introduces itself is let in: what its key may do, by the tokens that admitted it, and
// how many of its connections there may be.
#pragma once

#include <map>
#include <set>
#include <string>

#include "broker/clients.h"
#include "broker/events.h"
#include "broker/pool/principals.h"

namespace weft::broker {

class Admission {
 public:
  Admission(const BrokerOptions& options, Step& step, Pool& pool, const JobBook& book, const Clients& clients)
      : options_(options),
        step_(step),
        pool_(pool),
        book_(book),
        clients_(clients),
        principals_(options.limits.keys_of_token_max) {}

  // As it was admitted before this broker's start.
  void load(const PrincipalAdmitted& principal) {
    principals_.admit(principal.principal, principal.role, principal.token);
  }
  // Whether it may be what it says. If not, it is told why, and its connection ends.
  bool admit(const Introduced& event);
  bool is_admin(const PeerId& who) const { return principals_.is_admitted(who, proto::Role::Admin); }
  // What such tokens admitted is known no more: who, in which roles.
  std::map<PeerId, std::set<proto::Role>> revoke(const std::set<uint64_t>& tokens) {
    return principals_.revoke(tokens);
  }

  // The second connection of a peer.
  void enter_bulk(const Introduced& event);
  void leave(ConnectionId connection) { bulk_.erase(connection); }

 private:
  bool refuse(ConnectionId connection, ErrorCode code, std::string message);
  void forget(uint64_t token, const PeerId& newcomer);

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  const JobBook& book_;
  const Clients& clients_;
  Principals principals_;
  std::map<ConnectionId, PeerId> bulk_;
};

}  // namespace weft::broker
