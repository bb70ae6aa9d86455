// A broker with peers whose seats do as they are told: a job whose replicas make local steps.
#pragma once

#include <gtest/gtest.h>

#include "tests/broker/local_seats.h"
#include "tests/broker/world.h"

namespace weft::broker {

using proto::JobEventKind;
using test::LocalSeat;
using test::LocalShape;

// Peers with seats, by connection, which is also their key.
class LocalWorld {
 public:
  explicit LocalWorld(LocalShape of, const StoredState& state = {},
                      BrokerOptions options = {.software = "0.1.0"})
      : world(state, std::move(options)), shape(std::move(of)) {}

  void begin(uint8_t peers) {
    for (uint8_t peer = 1; peer <= peers; ++peer) world.join(peer, peer);
    world.submit(100, shape.replicas * shape.stages);
    plan();
  }
  void plan() {
    ASSERT_FALSE(world.plannings.empty());
    const StartPlanning request = world.plannings.back();
    world.plannings.clear();
    std::vector<PeerId> peers;
    for (uint32_t s = 0; s < shape.replicas * shape.stages; ++s)
      peers.push_back(request.candidates.at(request.previous ? request.placed.at(s) : s).peer);
    begun_at.push_back(request.checkpoint ? request.checkpoint->made() : 0);
    world.step(PlanningDone{request.job, request.plan_version,
                            test::local_plan(shape, request.checkpoint ? &*request.checkpoint : nullptr,
                                             peers, request.plan_version)});
  }
  void hear(ConnectionId peer, const proto::Message& message) {
    const auto at = seats.find(peer);
    if (const auto* assign = std::get_if<proto::AssignStage>(&message)) {
      for (const auto& tensor : assign->tensors)
        EXPECT_TRUE(are_others || tensor.sha256 == test::local_digest(tensor.key, assign->after_step))
            << to_string(tensor.key) << " after " << assign->after_step;
      seats.insert_or_assign(peer, LocalSeat(shape, std::make_shared<const proto::AssignStage>(*assign)));
      world.receive(peer, proto::StageReady{.run = 1, .plan_version = assign->plan_version});
    } else if (const auto* probe = std::get_if<proto::ProbeLink>(&message)) {
      if (answers && answers(peer, probe->peer))
        world.receive(peer, proto::ProbeReport{.round = probe->round,
                                               .peer = probe->peer,
                                               .bytes_per_second = 2.5e6,
                                               .round_trip = std::chrono::milliseconds(50)});
    } else if (std::get_if<proto::ReleaseStage>(&message) != nullptr) {
      seats.erase(peer);
    } else if (const auto* resume = std::get_if<proto::ResumeStage>(&message)) {
      ASSERT_NE(at, seats.end());
      world.receive(peer, proto::StageResumed{1, resume->plan_version, at->second.last_sequence()});
      for (const proto::Message& said : at->second.said()) world.receive(peer, said);
    } else if (at != seats.end()) {
      at->second.hear(message);
    }
  }
  // Whatever lies at the peers; whether there was anything.
  bool deliver() {
    bool any = false;
    for (uint8_t peer = 1; peer <= 9; ++peer)
      for (size_t& next = read[peer]; next < world.sent[peer].size(); any = true) {
        const proto::Message message = world.sent[peer][next++];
        hear(peer, message);
      }
    return any;
  }
  // One message of a seat; false: nobody has any.
  bool turn() {
    world.now += std::chrono::milliseconds(10);
    while (deliver()) {
    }
    for (auto& [peer, seat] : seats) {
      if (peer == silent) continue;
      uint64_t computed = ~uint64_t{0};
      for (const auto& [other, at] : seats) computed = std::min(computed, at.computed());
      auto message = seat.work(computed);
      if (!message) continue;
      if (change) change(peer, *message);
      world.receive(peer, *message);
      return true;
    }
    return false;
  }
  // Half a second, in which peers 1 to `peers` are heard of.
  void wait_and_hear(uint8_t peers) {
    for (uint8_t peer = 1; peer <= peers; ++peer) world.receive(peer, proto::Heartbeat{});
    world.wait(std::chrono::milliseconds(500));
  }
  void play(const std::function<bool()>& until) {
    for (int idle = 0; idle < 3 && !until() && !testing::Test::HasFailure();) idle = turn() ? 0 : idle + 1;
  }
  uint8_t peer_of(uint32_t replica) const {
    for (const auto& [peer, seat] : seats)
      if (seat.stage().seat.replica == replica) return static_cast<uint8_t>(peer);
    return 0;
  }
  // Until the run is planned anew; who may have a part in it.
  std::set<uint8_t> asked() {
    play([&] { return !world.plannings.empty(); });
    std::set<uint8_t> peers;
    if (world.plannings.empty()) return peers;
    for (const Candidate& candidate : world.plannings.back().candidates)
      peers.insert(candidate.peer.digest.bytes[0]);
    return peers;
  }
  void lose(uint8_t peer) {
    seats.erase(peer);
    world.step(Disconnected{peer, "reset by peer"});
    world.sent[peer].clear();
    read[peer] = 0;
  }
  std::vector<uint64_t> steps_of(JobEventKind kind) const {
    std::vector<uint64_t> steps;
    for (const auto& event : world.events)
      if (event.kind == kind) steps.push_back(event.step);
    return steps;
  }
  bool has_ended() const { return world.states.at(1) >= JobState::Finished; }
  std::string notices() const {
    std::string all;
    for (const auto& event : world.events)
      if (event.kind == JobEventKind::Notice) all += event.text + "\n";
    return all;
  }
  std::string reason() const {
    std::string reason;
    for (const Record& record : world.records)
      if (const auto* changed = std::get_if<JobChanged>(&record)) reason = changed->reason;
    return reason;
  }

  World world;
  LocalShape shape;
  std::map<ConnectionId, LocalSeat> seats;
  std::map<ConnectionId, size_t> read;
  std::vector<uint64_t> begun_at;        // each plan, in steps of the run
  bool are_others = false;               // replicas have tensors of others, or of other numbers
  std::optional<ConnectionId> silent{};  // computes nothing any more
  std::function<void(ConnectionId, proto::Message&)> change{};
  std::function<bool(ConnectionId, const PeerId& other)> answers{};  // what is asked of their link
};

}  // namespace weft::broker
