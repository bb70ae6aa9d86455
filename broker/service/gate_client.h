// Internal to the gate: what it knows of one connection.
#pragma once

#include <memory>
#include <optional>

#include "broker/service/gate.h"

namespace weft::broker {

struct Gate::Client {
  uint64_t number = 0;
  net::ConnectionPtr connection;
  Instant since;
  bool introduced = false;          // its Hello went to the core
  std::optional<proto::Role> role;  // admitted

  // Whether it takes what is sent.
  uint64_t bytes_sent = 0;  // at the last tick
  Instant taking_at{};      // when it was last seen to take something, or had taken all

  // Of a peer.
  uint64_t bytes_received = 0;           // at the last tick
  std::optional<proto::StageWork> work;  // of the newest heartbeat, not told yet

  size_t bytes_queued() const { return connection->stats().bytes_queued; }
};

}  // namespace weft::broker
