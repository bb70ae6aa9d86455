// The relay: joins two connections that present the same ticket and forwards their bytes. Internal to net/.
//   to the relay: "WEFTR1", one byte that is zero, 16 bytes of ticket; nothing more until the answer
//   from it: one byte, 1, once both sides are there; then what the other side sends
#pragma once

#include <array>
#include <deque>
#include <map>
#include <set>
#include <string_view>

#include "net/byte_queue.h"
#include "net/context.h"
#include "net/listener.h"
#include "net/transport.h"

namespace weft::net {

inline constexpr std::string_view kRelayMagic = "WEFTR1";
inline constexpr size_t kRelayPreambleSize = 6 + 1 + 16;
inline constexpr std::byte kRelayJoined{1};
std::array<std::byte, kRelayPreambleSize> relay_preamble(const RelayTicket& ticket);
// Nothing unless it is exactly one.
std::optional<RelayTicket> parse_relay_preamble(std::span<const std::byte> bytes);

class RelayPair;

class Relay {
 public:
  // `stats` must outlive this: open_relays, relayed_bytes, timed_out and refused_by_limit are kept there.
  Relay(std::shared_ptr<Context> context, const ListenLimits& limits,
        std::function<bool(const RelayTicket&)> is_granted, ListenStats& stats);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // A connection whose preamble was read. `token` is held as long as the connection is.
  void arrive(const RelayTicket& ticket, TransportPtr transport, std::shared_ptr<void> token);

 private:
  friend class RelayPair;
  class Waiting;
  void remove_waiting(const RelayTicket& ticket);
  void remove_pair(const RelayPair* pair);
  bool is_spent(const RelayTicket& ticket) const { return spent_.contains(ticket); }
  void spend(const RelayTicket& ticket);

  const std::shared_ptr<Context> context_;
  const ListenLimits limits_;
  const std::function<bool(const RelayTicket&)> is_granted_;
  ListenStats& stats_;
  std::map<RelayTicket, std::shared_ptr<Waiting>> waiting_;
  std::set<std::shared_ptr<RelayPair>> pairs_;
  std::set<RelayTicket> spent_;  // joined once; the latest few thousand
  std::deque<RelayTicket> spent_in_order_;
};

}  // namespace weft::net
