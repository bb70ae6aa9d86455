// What the broker has sent to peers about their stages: which stage each one serves, and the last command on
// each connection. Each function says what is wrong about what was sent now; nothing: it is in order.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "proto/messages.h"

namespace weft::sim {

class SentStages {
 public:
  using Complaint = std::optional<std::string>;

  // A peer has one stage at a time on a connection. The new one is served from here on all the same.
  Complaint on_assigned(const PeerId& peer, uint64_t connection, const proto::AssignStage& stage);
  void on_released(const PeerId& peer, const proto::ReleaseStage& stage);
  // The peer says where its commands go on.
  void on_resumed(const PeerId& peer, uint64_t connection, const proto::ResumeStage& stage);

  struct Judged {
    bool has_stage = true;  // false: the peer has none of that plan
    Complaint complaint{};
  };
  // Commands of a plan follow each other on a connection.
  Judged on_command(uint64_t connection, const proto::Command& command);

  void on_connection_ended(uint64_t connection) { sequences_.erase(connection); }
  void clear();

 private:
  struct Serving {
    proto::JobNumber job;
    proto::PlanVersion plan;
    uint64_t connection;
  };
  // Of which plan, the last command sent; none: a peer that resumes says where to go on.
  struct Sequence {
    proto::JobNumber job = 0;
    proto::PlanVersion plan = 0;
    std::optional<uint64_t> last;
  };
  std::map<PeerId, Serving> serving_;
  std::unordered_map<uint64_t, Sequence> sequences_;  // by connection: a number never used again
};

}  // namespace weft::sim
