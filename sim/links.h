// The connections between the stages of a plan at one peer: peer/machine/link.h over the simulated network,
// as peer/service/links.h has it over sockets. Tensors come in any order that several are under way in.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "peer/machine/link.h"
#include "sim/network.h"

namespace weft::sim {

inline constexpr int64_t kTimedSizeMin = 64 << 10;  // of a tensor: its coming tells something of the link
inline constexpr Duration kLinkTick = std::chrono::seconds(1);

class LinkSet {
 public:
  struct Connector {  // how connections come about; the host knows
    std::function<void(const std::string& address, Duration deadline, std::function<void(Result<Line>)> done)>
        dial;
    std::function<void(const proto::Secret& ticket, Duration deadline,
                       std::function<void(Result<Line>)> done)>
        relay;
    // Runs it now, or when the process is thawed; not at all when it or this stage has gone.
    std::function<void(std::function<void()>)> guarded;
  };
  struct Handlers {
    std::function<void()> on_all_up;  // once
    std::function<void(plan::Seat seat, const Error&)> on_failed;
    std::function<void(plan::Seat seat, const TensorPacket&, bool again)> on_tensor;
  };
  LinkSet(World& world, NodeId node, std::shared_ptr<const proto::AssignStage> assignment,
          Connector connector, Handlers handlers, uint64_t seed);
  ~LinkSet();

  void start();
  void send(plan::Seat seat, const TensorPacket& packet);
  // `who` dialled and said which link it is. Whether it is one of these.
  bool offer(const Line& line, const PeerId& who, const proto::LinkHello& hello);
  void invite(const proto::Secret& ticket);
  void on_tick();  // every kLinkTick
  // A planted bug: after a reconnect, what was received and not acknowledged is sent again, and taken again.
  void take_again() { takes_again_ = true; }

 private:
  struct Outbox final : peer::LinkOutbox {
    Status acknowledged(uint64_t received) override { return ledger.acknowledged(received); }
    Status resume(uint64_t received) override { return ledger.resume(received); }
    bool is_empty() const override { return ledger.kept_frames() == 0; }
    peer::LinkLedger<TensorPacket> ledger;
  };
  struct Link {
    Outbox outbox;
    std::unique_ptr<peer::LinkMachine> machine;
    std::map<uint64_t, Line> lines;  // by number
    uint64_t carries = 0;            // the line that tensors go over; 0: none
    uint64_t attempt = 0, wake = 0;  // so far: what comes of older ones is dropped
    uint64_t told = 0;               // for the planted bug
    bool failed = false;             // it was said so, and nothing comes of it any more
  };
  using Machine = peer::LinkMachine;
  void act(Link& link, Machine::Effects effects);
  void dial(Link& link, const std::string& address, Duration deadline);
  uint64_t take(Link& link, const Line& line);
  void begin(Link& link, const peer::link_effects::Begin& effect);
  void fail(Link& link, const Error& error);
  void on_packet(Link& link, uint64_t number, const Packet& packet);
  void on_tensor(Link& link, uint64_t number, const Packet& packet);
  static void send_over_line(Link& link, uint64_t number, const TensorPacket& packet);
  void say(Link& link, const peer::link_effects::Say& effect);
  bool are_all_up() const;
  void check_all_up();

  World& world_;
  NodeId node_;
  std::shared_ptr<const proto::AssignStage> assignment_;
  Connector connector_;
  Handlers handlers_;
  Draw draw_, late_;                  // late_: of tensors
  std::map<plan::Seat, Link> links_;  // by the other seat
  uint64_t lines_ = 0;                // so far
  bool all_up_said_ = false, takes_again_ = false;
};

}  // namespace weft::sim
