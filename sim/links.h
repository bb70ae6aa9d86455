// The connections between the stages of a plan at one peer, as peer/service keeps them: a link outlives its
// connections; what was not acknowledged is sent again over the next. Tensors come in any order that several
// are under way in.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "peer/machine/link_ledger.h"
#include "sim/network.h"

namespace weft::sim {

inline constexpr int64_t kTimedSizeMin = 64 << 10;  // of a tensor: its coming tells something of the link

class LinkSet {
 public:
  struct Way {  // how connections come about; the host knows
    std::function<void(const proto::LinkRoute& route, std::function<void(Result<Line>)> done)> dial;
    std::function<void(const proto::Secret& ticket, std::function<void(Result<Line>)> done)> relay;
    // Runs it now, or when the process is thawed; not at all when it or this stage has gone.
    std::function<void(std::function<void()>)> guarded;
  };
  struct Handlers {
    std::function<void()> on_all_up;  // once
    std::function<void(plan::Seat seat, const Error&)> on_failed;
    std::function<void(plan::Seat seat, const TensorPacket&, bool again)> on_tensor;
  };
  LinkSet(World& world, NodeId node, std::shared_ptr<const proto::AssignStage> assignment, Way way,
          Handlers handlers, uint64_t seed);
  ~LinkSet();

  void start();
  void send(plan::Seat seat, TensorPacket packet);
  // Somebody dialled and said which link it is. Whether it is one of these.
  bool offer(const Line& line, NodeId from, const proto::LinkHello& hello);
  bool wants(const proto::LinkHello& hello) const;
  void invite(const proto::Secret& ticket);
  void on_tick();  // every two seconds
  // A planted bug: after a reconnect, what was received and not acknowledged is sent again, and taken again.
  void take_again() { takes_again_ = true; }
  size_t kept_max() const { return kept_max_; }

 private:
  struct Link {
    proto::LinkRoute route;
    peer::LinkLedger<TensorPacket> ledger;
    peer::LinkReceipts receipts;
    Line line;
    uint64_t connections = 0;  // so far: handlers of older ones are dropped
    bool ready = false, was_up = false, dialling = false, failed = false;
    Instant down_since{}, heard{}, said{};
    uint32_t attempts = 0;
    uint64_t told = 0;  // for the planted bug
  };
  void dial(Link& link);
  void take(Link& link, const Line& line, bool introduces);
  void on_packet(Link& link, uint64_t connection, const Packet& packet);
  void on_tensor(Link& link, const Packet& packet);
  static void send_over_line(Link& link, uint64_t number, const TensorPacket& packet);
  void down(Link& link, const std::string& why);
  void resume(Link& link, uint64_t received);
  void say(Link& link, proto::Message message);
  uint64_t tell_received(Link& link, bool connects);
  void check_all_up();

  World& world_;
  NodeId node_;
  std::shared_ptr<const proto::AssignStage> assignment_;
  Way way_;
  Handlers handlers_;
  Draw draw_, late_;                  // late_: of tensors
  std::map<plan::Seat, Link> links_;  // by the other seat
  bool all_up_said_ = false, takes_again_ = false;
  size_t kept_max_ = 0;
};

}  // namespace weft::sim
