// A simulated peer's links to other peers, its probes, and the tensors that come.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/peer_shell.h"

namespace weft::sim {

class PeerLinks {
 public:
  explicit PeerLinks(PeerShell& shell) : shell_(shell) {}

  // Another peer has dialled.
  void accept(const Line& line, const Network::Accepted& accepted);
  void open(const peer::OpenLinks& effect);
  void probe(const proto::ProbeLink& link);
  // What was timed since the last report goes with this one.
  void tell(proto::StepReport& report) { timings_.tell(report); }
  void end() { arrivals_.clear(); }  // with the process

  // As peers advertise it: the node, and how often it has moved.
  static std::pair<NodeId, uint32_t> node_at(const std::string& address);

 private:
  struct Waiting {
    Line line;
    NodeId from = 0;
    proto::LinkHello hello;
    Instant since{};
  };
  PeerId key_of(NodeId node) const;
  void tick(uint64_t generation);
  void on_tensor(uint64_t generation, const plan::Seat& from, const TensorPacket& packet, bool again);
  void note_timing(const plan::Seat& from, const proto::TensorHeader& header);

  PeerShell& shell_;
  std::vector<Waiting> arrivals_;
  LinkTimings timings_;
  uint64_t probes_ = 0;
};

}  // namespace weft::sim
