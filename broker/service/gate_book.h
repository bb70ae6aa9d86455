// The desk of the core that speaks to gates: to the one that holds a connection, or to all of them, and to
// one that comes later of what still holds. Has no socket.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "broker/service/bus.h"

namespace weft::broker {

class GateBook {
 public:
  class Outside {
   public:
    virtual ~Outside() = default;
    virtual void send(uint32_t gate, std::shared_ptr<const ToGate> message) = 0;
    virtual void publish(std::shared_ptr<const Published> value) = 0;
  };
  explicit GateBook(Outside& outside) : outside_(outside) {}

  void on_ready(uint32_t gate, Instant now);
  void on_hearing(uint32_t gate, Instant until) { gates_[gate] = until; }
  bool is_empty() const { return gates_.empty(); }
  // Each gate has told of all that came until then.
  std::optional<Instant> heard_until() const;

  void tell(ConnectionId connection, ToGate message);  // by the gate that holds it
  void tell_all(ToGate message);                       // that are there now
  void publish(Published value);
  // What a gate that comes later is told, too.
  void set_feed(proto::JobNumber job, ToGate feed);
  void close_feed(proto::JobNumber job);
  bool has_feed(proto::JobNumber job) const { return feeds_.contains(job); }
  void grant(const proto::Secret& ticket);
  void revoke(const proto::Secret& ticket);
  void set_entry(const ServedEntry& entry);
  void set_peers(proto::PeerList peers);

 private:
  Outside& outside_;
  std::map<uint32_t, Instant> gates_;  // until when each has told whom it heard
  std::map<proto::JobNumber, ToGate> feeds_;
  std::set<proto::Secret> tickets_;
  std::map<proto::JobNumber, ServedEntry> entries_;
  std::shared_ptr<const Published> peers_ = std::make_shared<const Published>(proto::PeerList{});
};

}  // namespace weft::broker
